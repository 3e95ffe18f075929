"""One threshold for all elements in place of a fixed count in each chunk, after Ok-Topk.

Li and Hoefler, PPoPP 2022, doi 10.1145/3503221.3508399, from the paper alone. Each rank selects what is above its own
threshold; ranks own regions that are cut so that each gets about as many elements; an owner sums what comes and hands
on what is above the global threshold. Thresholds are exact now and then, and steered by counts in between. Sizes vary,
so the host waits for counts, and values travel as fp32. The paper's balancing of packages before the last phase is
left out: blocks of different sizes are gathered as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import torch

from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import OwnRows, Step
from orchestrator.compress.packets import slices, too_large
from orchestrator.compress.transport import Library
from orchestrator.planner.compression import CHUNK, Codec

_THRESHOLD_STEPS: Final = 128  # from one exact threshold to the next
_REGION_STEPS: Final = 64
_FEWER: Final = 4 / 5  # of the wanted count: from here up to `_MORE` of it a threshold stays as it is
_MORE: Final = 5 / 4
_LOST: Final = 4.0  # further off than this factor, a threshold is found exactly at once
_TURN: Final = 1.05  # by which a threshold is steered
_DENSE: Final = 3  # a third of all elements selected: dense is cheaper
_SMALLEST: Final = torch.finfo(torch.float32).tiny  # zeros are never selected


@dataclass(slots=True)
class Memory:
    """What is reused from step to step, for one bucket.

    Attributes:
        steps: done; the same on all ranks, as all but `local` is.
        local: this rank's threshold.
        common: threshold of sums.
        regions: elements of the region of each rank.
        is_lost: whether `common` must be found exactly in the next step.
        dense_steps: that fell back to dense sums.
    """

    steps: int = 0
    local: float = 0.0
    common: float = 0.0
    regions: list[int] = field(default_factory=list)
    is_lost: bool = True
    dense_steps: int = 0


class Threshold(OwnRows):
    """Exchanges what is above thresholds; values are fp32 whatever the codec says, its `kept` sets the count."""

    def __init__(self, transport: Library, codec: Codec, clock: Clock) -> None:
        """Take what moves the bytes, the wanted density, and who counts the time."""
        self._transport, self._codec, self._clock = transport, codec, clock
        self.memories: dict[tuple[str, ...], Memory] = {}

    def reduce(self, step: Step) -> torch.Tensor:
        """Write the mean over the ranks to `out`, and the new residual to `candidate`; see `Reducer`."""
        candidate, out, scale = step.candidate, step.out, step.scale
        memory = self.memories.setdefault(step.layout.names, Memory())
        divisor, wanted = self._transport.size / scale, max(1, round(candidate.numel() * self._codec.density))
        flat = candidate.view(-1)
        with self._clock.phase("encode"):
            torch.add(step.base, step.gradients, alpha=1 / scale, out=candidate)
        with self._clock.phase("select"):
            bad = torch.stack(torch.aminmax(flat)).isfinite().all().logical_not()
            if memory.steps % _THRESHOLD_STEPS == 0:
                memory.local = exact_threshold(flat, wanted)
            chosen, memory.local = select(flat, memory.local, wanted)
            if memory.steps % _REGION_STEPS == 0:
                memory.regions = self._regions(chosen, flat.numel())
        with self._clock.phase("wire"):
            counts, bad = self._counts(chosen, memory.regions, bad)
        if bool(bad):
            # Thresholds of numbers that are none must not stay.
            self.memories[step.layout.names] = Memory()
            return bad
        memory.steps += 1
        if sum(map(sum, counts)) * _DENSE >= flat.numel():
            memory.dense_steps += 1
            memory.local, memory.is_lost = exact_threshold(flat, wanted), True
            return self._dense(candidate, out, divisor)
        total = self._sums(flat, chosen, counts, memory.regions)
        pairs = self._pairs_above(total, memory, wanted)
        with self._clock.phase("decode"):
            places = pairs[:, 0].long()
            said = places[flat[places].abs() >= memory.local]  # this rank's own among them
            flat[said] = 0
            out.zero_()
            out.view(-1)[places] = (pairs[:, 1].contiguous().view(torch.float32) / divisor).to(out.dtype)
            return too_large(out)

    def _regions(self, chosen: torch.Tensor, elements: int) -> list[int]:
        """Sizes of the ranks' regions, from the mean over the ranks of where equal parts of the chosen end."""
        size = self._transport.size
        ends = torch.arange(1, size, device=chosen.device)
        even = ends * elements // size
        own = chosen[ends * len(chosen) // size] if len(chosen) >= size else even
        all_ends = self._transport.all_gather(own.contiguous(), [size - 1] * size).view(size, size - 1)
        inner = all_ends.double().mean(0).round().long().tolist()
        return [end - begin for begin, end in pairwise((0, *inner, elements))]

    def _counts(
        self, chosen: torch.Tensor, regions: Sequence[int], bad: torch.Tensor
    ) -> tuple[list[list[int]], torch.Tensor]:
        """How many elements each rank (row) has for each region, and whether one was not finite anywhere."""
        size = self._transport.size
        ends = torch.tensor([place.stop for place in slices(regions)], device=chosen.device)
        upto = torch.searchsorted(chosen, ends)
        own = torch.cat([upto.diff(prepend=upto.new_zeros(1)), bad.long().view(1)])
        everyone = self._transport.all_gather(own, [size + 1] * size).view(size, size + 1)
        return everyone[:, :-1].tolist(), everyone[:, -1].any()

    def _sums(
        self, flat: torch.Tensor, chosen: torch.Tensor, counts: list[list[int]], regions: Sequence[int]
    ) -> torch.Tensor:
        """The sum over the ranks, in their order, of what they chose in the own region."""
        rank, place = self._transport.rank, slices(regions)[self._transport.rank]
        with self._clock.phase("wire"):
            gives, gets = counts[rank], [row[rank] for row in counts]
            pairs = _paired(chosen, flat[chosen])
            came = self._transport.exchange(pairs.view(-1), [2 * n for n in gives], [2 * n for n in gets]).view(-1, 2)
        with self._clock.phase("decode"):
            total = flat.new_zeros(place.stop - place.start)
            for part in torch.split(came, gets):
                # Places of one rank differ from each other, so the order of sums is that of the ranks.
                total.index_add_(0, part[:, 0].long() - place.start, part[:, 1].contiguous().view(torch.float32))
        return total

    def _pairs_above(self, total: torch.Tensor, memory: Memory, wanted: int) -> torch.Tensor:
        """Places and sums of all regions that are above the common threshold."""
        transport, start = self._transport, slices(memory.regions)[self._transport.rank].start
        if memory.is_lost or memory.steps % _THRESHOLD_STEPS == 1:
            memory.common = self._common_threshold(total, wanted)
        with self._clock.phase("decode"):
            above = (total.abs() >= memory.common).nonzero().view(-1)
            pairs = _paired(above + start, total[above])
        with self._clock.phase("wire"):
            lengths = self._lengths(len(above), total.device)
            whole = transport.all_gather(pairs.view(-1), [2 * length for length in lengths]).view(-1, 2)
        found = sum(lengths)
        memory.is_lost = not wanted / _LOST <= found <= wanted * _LOST
        memory.common = steered(memory.common, found, wanted)
        return whole

    def _common_threshold(self, total: torch.Tensor, wanted: int) -> float:
        """Exact, from the largest sums of every region."""
        sizes = total.abs()
        largest = sizes.topk(min(wanted, int(sizes.count_nonzero()))).values
        lengths = self._lengths(len(largest), total.device)
        return exact_threshold(self._transport.all_gather(largest, lengths), wanted)

    def _lengths(self, own: int, device: torch.device) -> list[int]:
        size = self._transport.size
        found: list[int] = self._transport.all_gather(torch.tensor([own], device=device), [1] * size).tolist()
        return found

    def _dense(self, candidate: torch.Tensor, out: torch.Tensor, divisor: float) -> torch.Tensor:
        """Say everything: too much was chosen for places to pay."""
        size, rank = self._transport.size, self._transport.rank
        each, more = divmod(candidate.numel(), size)
        counts = [each + (at < more) for at in range(size)]
        with self._clock.phase("wire"):
            came = self._transport.all_to_all(candidate.view(-1), counts)
            total = came[0].clone()
            for part in came[1:]:
                total.add_(part)
            whole = self._transport.all_gather(total, counts).view(-1, CHUNK)
        assert len(total) == counts[rank]  # noqa: S101
        out.copy_(whole.div_(divisor))
        candidate.zero_()
        return too_large(out)


def exact_threshold(values: torch.Tensor, wanted: int) -> float:
    """Size of the `wanted` largest of the values, or of the smallest that is not zero where there are fewer."""
    if not values.numel():
        return _SMALLEST
    return max(_SMALLEST, float(values.abs().topk(min(wanted, values.numel()), sorted=False).values.min()))


def select(values: torch.Tensor, threshold: float, wanted: int) -> tuple[torch.Tensor, float]:
    """Places of the values above the threshold, in order, and the threshold that was used in the end.

    A threshold that has drifted is steered; one that selects far too many or few is replaced by the exact one.
    """
    chosen = (values.abs() >= threshold).nonzero().view(-1)
    if wanted / _LOST <= len(chosen) <= wanted * _LOST:
        after = steered(threshold, len(chosen), wanted)
    else:
        after = exact_threshold(values, wanted)
    if after != threshold:
        chosen = (values.abs() >= after).nonzero().view(-1)
    return chosen, after


def steered(threshold: float, found: int, wanted: int) -> float:
    """The threshold, lower where it selected too few, and higher where too many."""
    if found < _FEWER * wanted:
        return max(_SMALLEST, threshold / _TURN)
    return threshold * _TURN if found > _MORE * wanted else threshold


def _paired(places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Places and the bits of fp32 values, [count, 2] int32."""
    return torch.stack([places.to(torch.int32), values.view(torch.int32)], dim=1)
