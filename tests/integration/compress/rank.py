"""One rank of the tests: `python rank.py RANK SIZE FILE PART...`. Prints a line of JSON for each part."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from launch.parent_death import die_with_parent
from orchestrator.compress import error_feedback
from orchestrator.compress.build import Reducers, reducers_of
from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import Layout, Reducer
from orchestrator.compress.exchange import Flat, Hierarchical, Split
from orchestrator.compress.transport import Library
from orchestrator.planner.compression import (
    CHUNK,
    Codec,
    CompressionPlan,
    Exchange,
    Kind,
    Values,
)

Tensors = dict[str, torch.Tensor]
CPU = torch.device("cpu")
# A ragged one, a tiny one, a whole chunk, several, and none.
SHAPES = {"a": (3, 1999), "b": (7,), "c": (64, 64), "d": (5, CHUNK), "e": (0,)}
LAYOUT = Layout(names=tuple(SHAPES), numels=tuple(torch.Size(shape).numel() for shape in SHAPES.values()))
CODECS = (
    Codec(kept=42, values=Values.int8),
    Codec(kept=42, values=Values.int4),
    Codec(kept=100, values=Values.bf16),
    Codec(kept=42, values=Values.fp32),
)
EVERYTHING = Codec(kept=CHUNK, values=Values.fp32)
ISLANDS = {4: (2,), 8: (4, 2)}
Way = tuple[Exchange, int]


def ways(size: int) -> list[Way]:
    flat_ways = [(kind, 1) for kind in Exchange if kind is not Exchange.hierarchical]
    return flat_ways + [(Exchange.hierarchical, island) for island in ISLANDS.get(size, ())]


def planned(way: Way, codec: Codec, *, warmup: int = 0, refresh: float = 0.0) -> CompressionPlan:
    kind, island = way
    return CompressionPlan(
        kind=Kind.topk,
        why="a test",
        codec=codec,
        exchange=kind,
        island=island,
        warmup_steps=warmup,
        refresh_fraction=refresh,
    )


def reducers_for(way: Way, codec: Codec) -> Reducers:
    return reducers_of(planned(way, codec), dist.group.WORLD, Clock(CPU))


def reducer_for(way: Way, codec: Codec) -> Reducer:
    return reducers_for(way, codec).topk


def reducer_of_few(way: Way, codec: Codec, few: int) -> Reducer | None:
    """An exchange among the first ranks; all ranks call this, for it makes groups."""
    kind, island = way
    clock = Clock(CPU)
    whole = dist.new_group(list(range(few)))
    inner = [dist.new_group(list(range(at, at + island))) for at in range(0, few, island)]
    outer = [dist.new_group(list(range(at, few, island))) for at in range(island)]
    rank = dist.get_rank()
    if rank >= few:
        return None
    if kind is not Exchange.hierarchical:
        return Flat(Split(Library(whole), codec, clock), codec, clock)
    inside, across = Library(inner[rank // island]), Library(outer[rank % island])
    return Hierarchical(inside, inside, Split(across, codec, clock), codec, clock)


def gradients(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensors:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    made = {}
    for at, (name, shape) in enumerate(SHAPES.items()):
        value = torch.randn(shape, generator=generator) ** 3 * 10.0 ** (at - 2)
        made[name] = value.to(dtype)
    return made


def flat(tensors: Tensors) -> torch.Tensor:
    return torch.cat([tensors[name].reshape(-1).double() for name in tensors])


def summed(value: torch.Tensor) -> torch.Tensor:
    total = value.clone()
    dist.all_reduce(total)
    return total


def assert_alike(value: torch.Tensor) -> None:
    """The same bits on all ranks."""
    mine = value.contiguous().view(-1).view(torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    assert all(torch.equal(one, mine) for one in everyone), "the ranks hold different results"


def law(rank: int, size: int) -> dict[str, float]:
    """Worst deviation from the law, relative to the largest number of its parameter, by exchange and codec."""
    worst = {}
    for way in ways(size):
        for codec in CODECS:
            worst[f"{way[0].value}/{way[1]} {codec.values.value}"] = deviation(way, codec, rank, size)
    return worst


def deviation(way: Way, codec: Codec, rank: int, size: int) -> float:
    reducers = reducers_for(way, codec)
    state, worst, said = error_feedback.init(LAYOUT, CPU, reducers.topk), 0.0, 0
    for step in range(5):
        reducer = reducers.refresh if step in {1, 3} else reducers.topk
        before = error_feedback.state_dict(state, reducer)
        given = gradients(rank, step)
        decoded, state = error_feedback.update(state, given, reducer)
        after = error_feedback.state_dict(state, reducer)
        assert_alike(flat(decoded))
        said += int((flat(decoded) != 0).sum())
        if step in {1, 3}:
            largest = max(float(value.abs().max()) for value in given.values() if value.numel())
            assert flat(after).abs().max() < largest, "a refresh leaves no more than what bits are too few for"
        worst = max(worst, off(given, before, decoded, after, size))
    assert said > 0, "nothing was said"
    return worst


def off(given: Tensors, before: Tensors, decoded: Tensors, after: Tensors, size: int) -> float:
    """How far gradients and old residuals are from what was decoded and the new residuals, summed over the ranks."""
    owed = summed(flat(given) + flat(before))
    told = size * flat(decoded) + summed(flat(after))
    numels = [given[name].numel() for name in given]
    parts = zip(told.split(numels), owed.split(numels), strict=True)
    return max(float((part - wanted).abs().max() / wanted.abs().max()) for part, wanted in parts if len(part))


def everything(rank: int, size: int) -> dict[str, bool]:
    """Whether keeping everything gives the bits of a dense mean; asserts that it does but for the order of sums."""
    found = {}
    for way in ways(size):
        reducer = reducer_for(way, EVERYTHING)
        given = gradients(rank, 0)
        decoded, state = error_feedback.update(error_feedback.init(LAYOUT, CPU, reducer), given, reducer)
        dense = flat(given).float().div_(size)
        exact = summed(flat(given)) / size
        dist.all_reduce(dense)
        ours = flat(decoded).float()
        assert ((ours.double() - exact).abs() <= 1e-6 * summed(flat(given).abs())).all(), way
        assert all(not value.any() for value in error_feedback.state_dict(state, reducer).values()), way
        found[f"{way[0].value}/{way[1]}"] = torch.equal(ours, dense)
    return found


def saved(rank: int, size: int) -> str:
    """Residuals go on bit for bit at the same size, keep their mean at another, and end where the shape changes."""
    few, codec = {3: 2, 8: 4}[size], CODECS[0]
    pairs: list[tuple[Way, Way]] = [((Exchange.split, 1), (Exchange.gather, 1))]
    pairs += [((Exchange.hierarchical, 2), (Exchange.hierarchical, island)) for island in ISLANDS.get(size, ())]
    for fewer, more in pairs:
        small, large = reducer_of_few(fewer, codec, few), reducer_for(more, codec)
        kept = stepped(small, rank) if small else {}
        old = [one for one in gathered(kept) if one]
        grown = gathered(changed(old, large))
        shrunk = [one for one in gathered(changed(grown, small) if small else {}) if one]
        assert (len(old), len(grown), len(shrunk)) == (few, size, few)
        assert_same_mean(old, grown)
        assert_same_mean(grown, shrunk)
    return "ok"


def stepped(reducer: Reducer, rank: int) -> Tensors:
    state = error_feedback.init(LAYOUT, CPU, reducer)
    for step in range(2):
        _, state = error_feedback.update(state, gradients(rank, step), reducer)
    kept = error_feedback.state_dict(state, reducer)
    again, anew = error_feedback.load(error_feedback.init(LAYOUT, CPU, reducer), kept, reducer)
    assert torch.equal(again.base, state.base)
    assert not anew
    wrong = {**kept, "c": torch.ones(5)}
    del wrong["b"]
    again, anew = error_feedback.load(state, wrong, reducer)
    assert anew == ("b", "c")
    assert not error_feedback.state_dict(again, reducer)["c"].any()
    return kept


def gathered(value: Tensors) -> list[Tensors]:
    everyone: list[Tensors] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, value)
    return everyone


def changed(old: list[Tensors], reducer: Reducer) -> Tensors:
    """Load the mean of `old`; return what this rank holds then."""
    mean = error_feedback.mean_of(old)
    state, anew = error_feedback.load(error_feedback.init(LAYOUT, CPU, reducer), mean, reducer)
    assert not anew
    return error_feedback.state_dict(state, reducer)


def assert_same_mean(old: list[Tensors], new: list[Tensors]) -> None:
    owed, owes = sum(map(flat, old)) / len(old), sum(map(flat, new)) / len(new)
    assert owed.abs().max() > 0
    assert (owed - owes).abs().max() <= 1e-6 * owed.abs().max()


def main(parts: Mapping[str, object]) -> None:
    die_with_parent()
    rank, size, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=size, timeout=wait)
    for part in sys.argv[4:]:
        action = parts[part]
        assert callable(action)
        print(json.dumps([part, action(rank, size)]), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(globals())
