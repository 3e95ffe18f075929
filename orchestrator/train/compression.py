"""Sparse gradients of a run as its plan says: the hook, its residuals over a resume, and what the summary tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.compress.build import TransportOf
from orchestrator.compress.hook import Compressor, attach
from orchestrator.compress.transport import Library
from orchestrator.planner.compression import CompressionPlan, Exchange, Kind
from orchestrator.train.groups import TIMEOUT, MetricsGroup
from orchestrator.train.sparse_moments import SparseMoments

_MEASURED: Final = ("select", "encode", "wire", "decode")
_SEPARATOR: Final = "."
_SINCE: Final = "since"  # in the place of a rank: what all ranks know


class Compression:
    """Whether this rank's gradients travel sparse, and what that took."""

    def __init__(self, plan: CompressionPlan | None, note: str = "", compressor: Compressor | None = None) -> None:
        """Take the plan's decision, why it is not followed to the letter (if so), and the hook that follows it."""
        self.plan, self.note, self.compressor = plan, note, compressor
        self._told: dict[str, Any] = {}
        self._moments: SparseMoments | None = None

    def follow(self, optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> None:
        """Keep the moments of torch's AdamW what dense gradients would make of them; others are left alone."""
        compressor = self.compressor
        if compressor is not None and isinstance(optimizer, torch.optim.AdamW):
            self._moments = SparseMoments(optimizer, named, lambda: compressor.says_all)

    def leave(self) -> None:
        """Let go of a model and an optimizer that are to be made anew; counts and times begin anew as well."""
        if self.compressor is not None:
            self.compressor.close()
        if self._moments is not None:
            self._moments.close()

    @property
    def is_on(self) -> bool:
        """Whether a hook compresses."""
        return self.compressor is not None

    @property
    def why(self) -> str:
        """Whether, and why, in a few words."""
        return self.note or ("one rank, or compress=none" if self.plan is None else self.plan.why.replace("\n", " "))

    @property
    def form(self) -> dict[str, Any]:
        """Who keeps which residual: what a checkpoint must agree in to be restored as it is."""
        if self.plan is None or self.compressor is None:
            return {}
        return {"exchange": self.plan.exchange.value, "island": self.plan.island}

    def gather_residuals(self, group: MetricsGroup) -> dict[str, torch.Tensor]:
        """What no rank has sent yet, `RANK.NAME` to tensor; collective."""
        if self.compressor is None:
            return {}
        states = group.gather(self.compressor.residual_state())
        found = {f"{rank}{_SEPARATOR}{name}": value for rank, own in enumerate(states) for name, value in own.items()}
        since = {} if self._moments is None else self._moments.state()
        return {**found, **{f"{_SINCE}{_SEPARATOR}{name}": value for name, value in since.items()}}

    def restore(self, saved: Mapping[str, torch.Tensor], state: Mapping[str, Any], rank: int, world_size: int) -> str:
        """Go on with what a checkpoint holds; all ranks call this.

        Args:
            saved: of all ranks, as `gather_residuals` gave it.
            state: of the checkpoint: `world_size` and `compression`, the form of the run that wrote it.
            rank: of this process.
            world_size: of this run.

        Returns:
            What was done, for people; empty where there was nothing to do.
        """
        before = state.get("compression") or {}
        if self.compressor is None:
            return "gradients travel dense now: what had not been sent is dropped" if saved else ""
        if not saved:
            return "the checkpoint holds no unsent gradients: they begin at zero"
        if self._moments is not None:
            self._moments.load({name: saved[key] for key, name in _keys(saved, _SINCE)})
        ranks = int(state["world_size"])
        if ranks == world_size and before == self.form:
            own, text = {name: saved[key] for key, name in _keys(saved, rank)}, "restored as they were"
        else:
            own = _mean(saved, ranks)
            text = f"shared out anew: the mean of {ranks} ranks on each of {world_size}"
        anew = self.compressor.load_residual_state(own)
        if anew:
            text += f"; {len(anew)} of other size begin at zero"
        return f"unsent gradients are {text}"

    def end(self, group: MetricsGroup) -> None:
        """End the hook after the last step, and learn what all ranks took; all ranks call this.

        A rank that is early waits for the others: on the wire the shortest time of a rank counts, of work the longest.
        """
        if self.compressor is None:
            return
        own = self.compressor.summary()
        self.compressor.close()
        if self._moments is not None:
            self._moments.close()
        seconds = own["seconds_per_step"]
        steps = max(1, own["compressed_steps"])
        wire = seconds["wire"] + seconds.get("dense", 0.0)
        refreshes = own["refresh_steps"]
        # `sent_bytes` are of the sparse exchange alone.
        sent = [own["sent_bytes"] / steps, own["topk_bytes"] / max(1, steps - refreshes)]
        sent += [own["refresh_bytes"] / max(1, refreshes), own["residual_bytes"]]
        times = [seconds["select"], seconds["encode"], -wire, seconds["decode"]]
        select, encode, wire, decode, *nbytes = group.max([float(value) for value in (*times, *sent)])
        mean, topk, refresh, residual = map(round, nbytes)
        self._told = {
            "steps": {
                "compressed": own["compressed_steps"],
                "refresh": refreshes,
                "dense": own["dense_steps"],
                "not_finite": own["skipped_steps"],
            },
            "measured": {
                "wire_bytes": mean if own["compressed_steps"] else None,
                "topk_bytes": topk if own["compressed_steps"] > refreshes else None,
                "refresh_bytes": refresh if refreshes else None,
                "residual_bytes": residual,
                "seconds": dict(zip(_MEASURED, (select, encode, -wire, decode), strict=True)),
            },
        }

    @property
    def residual_bytes(self) -> int:
        """Measured, of the largest rank; 0 before `end`."""
        return int(self._told.get("measured", {}).get("residual_bytes", 0))

    @property
    def not_finite(self) -> int:
        """Compressed steps in which a gradient of a rank was no number."""
        return int(self._told.get("steps", {}).get("not_finite", 0))

    def summary(self) -> dict[str, Any] | None:
        """Return decision, prediction and measurement; None for one rank, or where the user wants none."""
        plan = self.plan
        if plan is None:
            return None
        found: dict[str, Any] = {"kind": (Kind.topk if self.is_on else Kind.none).value, "why": self.why}
        if plan.codec is None or plan.seconds is None:
            return found
        seconds = plan.seconds
        predicted = (seconds.select, seconds.encode, seconds.wire, seconds.decode)
        return {
            **found,
            **self.form,
            "kept": plan.codec.kept,
            "values": plan.codec.values.value,
            "warmup_steps": plan.warmup_steps,
            "refresh_fraction": plan.refresh_fraction,
            "gain_seconds": plan.gain_seconds,
            "break_even_bytes_per_second": plan.break_even_bytes_per_second,
            "dense_bytes": plan.dense_bytes,
            "predicted": {
                "wire_bytes": plan.sparse_bytes,
                "topk_bytes": plan.topk_bytes,
                "refresh_bytes": plan.refresh_bytes,
                "residual_bytes": plan.residual_bytes,
                "seconds": dict(zip(_MEASURED, predicted, strict=True)),
            },
            **self._told,
        }


def compress_gradients(
    plan: CompressionPlan | None,
    group: MetricsGroup,
    model: nn.Module,
    *,
    scale: Callable[[], float] | None,
    step_of: Callable[[], int],
    transport: TransportOf = Library,
) -> Compression:
    """Make the wrapped model's gradients travel as planned, from the next backward pass on; all ranks call this.

    Args:
        plan: the decision; None for one rank.
        group: of this run's ranks.
        model: as the trainer wrapped it.
        scale: of the loss; None where it is not scaled.
        step_of: optimizer steps done.
        transport: makes what moves packets among ranks, from a process group of them.

    Raises:
        UserError: on all ranks, if the plan does not fit the group.
    """
    if plan is None or plan.kind is Kind.none:
        return Compression(plan)
    if not isinstance(model, DistributedDataParallel):
        return Compression(plan, f"{group.world_size} rank runs: gradients need not travel")
    note = ""
    try:
        plan.pattern(group.world_size)
    except ValueError:
        note = f"islands of {plan.island} do not divide the {group.world_size} ranks that run: exchange=split is used"
        plan = replace(plan, exchange=Exchange.split, island=1)
    own = dist.new_group(timeout=TIMEOUT)
    return Compression(plan, note, attach(model, plan, own, scale=scale, step_of=step_of, transport=transport))


def _keys(saved: Mapping[str, torch.Tensor], rank: int | str) -> Iterator[tuple[str, str]]:
    prefix = f"{rank}{_SEPARATOR}"
    return ((key, key.removeprefix(prefix)) for key in saved if key.startswith(prefix))


def _mean(saved: Mapping[str, torch.Tensor], ranks: int) -> dict[str, torch.Tensor]:
    """What each rank takes on: what P ranks owe counts 1/P of the mean gradient, so any number may owe the mean."""
    found: dict[str, torch.Tensor] = {}
    for rank in range(ranks):
        for key, name in _keys(saved, rank):
            found[name] = found[name] + saved[key] if name in found else saved[key].clone()
    return {name: total / ranks for name, total in found.items()}
