"""One rank of the tests of the hook; as `rank.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from rank import CODECS, SHAPES, Tensors, Way, assert_alike, flat, gradients, main, off, planned, ways
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.compress.hook import Compressor, attach
from orchestrator.compress.transport import Scheduled, Transport, routed
from orchestrator.planner.compression import Codec, Exchange, Values
from topology.collectives import Collective
from topology.graph import graph_of
from topology.presets.plain import cpu_host
from topology.routing.menu import menu

LAW = 1e-6  # of the largest number of a parameter
NAMES = [name for name in SHAPES if name != "e"]
BF16 = Codec(kept=42, values=Values.bf16)


class Given(nn.Module):
    """A model whose gradients are whatever one wants."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        for name in NAMES:
            self.register_parameter(name, nn.Parameter(torch.zeros(SHAPES[name], dtype=dtype)))

    def forward(self, wanted: Tensors) -> torch.Tensor:
        return sum((getattr(self, name) * wanted[name]).sum() for name in NAMES)  # type: ignore[return-value]


class Run:
    """The model under DDP with small buckets, so that there are several, which DDP forms anew after the first step."""

    def __init__(
        self, way: Way, codec: Codec, dtype: torch.dtype = torch.float32, *, warmup: int = 0, refresh: float = 0.0
    ) -> None:
        self.step, self.scale, self.dtype = 0, 1.0, dtype
        self.model = DistributedDataParallel(Given(dtype), bucket_cap_mb=0.04)
        plan = planned(way, codec, warmup=warmup, refresh=refresh)
        self.hook: Compressor = attach(
            self.model, plan, dist.group.WORLD, scale=lambda: self.scale, step_of=lambda: self.step
        )

    def backward(self, wanted: Tensors) -> Tensors:
        self.model.zero_grad()
        (self.model(wanted) * self.scale).backward()
        self.step += 1
        return {name: getattr(self.model.module, name).grad.clone() for name in NAMES}


@contextmanager
def running(
    way: Way, codec: Codec, dtype: torch.dtype = torch.float32, *, warmup: int = 0, refresh: float = 0.0
) -> Iterator[Run]:
    run = Run(way, codec, dtype, warmup=warmup, refresh=refresh)
    yield run
    run.hook.close()


def given(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensors:
    made = gradients(rank, step, dtype)
    return {name: made[name] for name in NAMES}


def residual(run: Run) -> Tensors:
    held = run.hook.residual_state()
    return {name: held.get(name, torch.zeros(SHAPES[name])) for name in NAMES}


def training(rank: int, size: int) -> dict[str, float]:
    """The law holds through the hook, with new buckets and accumulated gradients; returns the worst deviation."""
    worst = {}
    for way in ways(size):
        with running(way, CODECS[0]) as run:
            found = []
            for step in range(4):
                before = residual(run)
                wanted = given(rank, step)
                if step == 2:  # two micro-batches, of which the first is not exchanged
                    with run.model.no_sync():
                        run.model.zero_grad()
                        run.model(wanted).backward()
                    run.model(given(rank, 9)).backward()
                    more = given(rank, 9)
                    wanted = {name: wanted[name] + more[name] for name in NAMES}
                    run.step += 1
                    mean = {name: getattr(run.model.module, name).grad.clone() for name in NAMES}
                else:
                    mean = run.backward(wanted)
                assert_alike(flat(mean))
                found.append(off(wanted, before, mean, residual(run), size))
            norm = nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            assert_alike(norm.reshape(1))
            assert torch.allclose(norm, flat(mean).norm().float())
            told = run.hook.summary()
            assert (told["compressed_steps"], told["dense_steps"], told["skipped_steps"]) == (4, 0, 0)
            worst[f"{way[0].value}/{way[1]}"] = max(found)
    return worst


def warming_up(rank: int, size: int) -> str:
    plain = DistributedDataParallel(Given(torch.bfloat16), bucket_cap_mb=0.04)
    with running((Exchange.split, 1), CODECS[0], torch.bfloat16, warmup=2) as run:
        for step in range(3):
            wanted = given(rank, step, torch.bfloat16)
            mean = run.backward(wanted)
            plain.zero_grad()
            plain(wanted).backward()
            same = [torch.equal(mean[name], getattr(plain.module, name).grad) for name in NAMES]
            assert all(same) if step < 2 else not any(same[2:]), (step, same)
        told = run.hook.summary()
        assert (told["compressed_steps"], told["dense_steps"]) == (1, 2)
        assert told["dense_sent_bytes"] > 0
    return "ok"


def not_finite(rank: int, size: int) -> str:
    """One rank's infinity or NaN reaches all, and changes no residual of any bucket, in sparse and dense ones."""
    for way in ways(size):
        for place, value in (("a", float("inf")), ("d", float("nan")), ("b", float("-inf"))):
            with running(way, CODECS[0]) as run:
                for step in range(2):
                    run.backward(given(rank, step))
                before = residual(run)
                wanted = given(rank, 2)
                if rank == size - 1:
                    wanted[place].view(-1)[3] = value
                mean = run.backward(wanted)
                assert not mean[place].isfinite().all()
                after = residual(run)
                assert all(torch.equal(before[name], after[name]) for name in NAMES), (way, place)
                mean = run.backward(given(rank, 3))
                assert flat(mean).isfinite().all()
                assert run.hook.summary()["skipped_steps"] == 1
    return "ok"


def scaled(rank: int, size: int) -> dict[str, float]:
    """fp16 with a loss scale that grows, and that is too large once, on one rank only: residuals are unscaled."""
    worst = {}
    for way in ways(size):
        with running(way, BF16, torch.float16) as run:
            found = []
            for step, scale in enumerate((1024.0, 2048.0, 2.0**15, 1024.0)):
                run.scale, before = scale, residual(run)
                wanted = {name: value.half() for name, value in tame(rank, step).items()}
                if scale == 2.0**15 and rank == 0:
                    wanted["c"][0, 0] = 100.0  # times the scale it is above what fp16 holds
                mean = run.backward(wanted)
                if scale == 2.0**15:
                    assert not flat(mean).isfinite().all()
                    after = residual(run)
                    assert all(torch.equal(before[name], after[name]) for name in NAMES)
                    continue
                assert_alike(flat(mean))
                unscaled = {name: value.float() / scale for name, value in mean.items()}
                found.append(off(wanted, before, unscaled, residual(run), size))
            assert run.hook.summary()["skipped_steps"] == 1
            worst[f"{way[0].value}/{way[1]}"] = max(found)
    return worst


def tame(rank: int, step: int) -> Tensors:
    """Gradients that stay in the range of fp16 when scaled."""
    return {name: value.clamp(-1000, 1000) * 1e-4 for name, value in given(rank, step).items()}


def restored(rank: int, size: int) -> str:
    """What was saved is what goes on: bit for bit with gather, and in the sum where owners depend on buckets.

    DDP begins again with its first buckets, in which other ranks own and select.
    """
    for way in [way for way in ways(size) if way[0] is not Exchange.threshold]:  # its thresholds are found anew
        with running(way, CODECS[0]) as whole, running(way, CODECS[0]) as one, running(way, CODECS[0]) as two:
            for step in range(2):
                whole.backward(given(rank, step))
            kept = whole.hook.residual_state()
            for other in (one, two):
                assert other.hook.load_residual_state(kept) == ()
            for step in range(2, 5):
                before = residual(one)
                means = [run.backward(given(rank, step)) for run in (one, two, whole)]
                assert torch.equal(flat(means[0]), flat(means[1])), (way, step)
                assert torch.equal(flat(means[0]), flat(means[2])) or way[0] is not Exchange.gather, step
                assert off(given(rank, step), before, means[0], residual(one), size) < LAW
            assert one.hook.load_residual_state({"a": torch.ones(5), "c": torch.ones(64 * 64)}) == ("a", "b", "d")
    return "ok"


def counted(rank: int, size: int) -> str:
    """What transports count is what the planner's formula says."""
    for way in ways(size):
        if way[0] is Exchange.threshold:
            continue  # sizes vary
        with running(way, CODECS[0]) as run:
            run.backward(given(rank, 0))
            run.backward(given(rank, 1))  # in the final buckets, with residuals in their places
            before = run.hook.summary()["sent_bytes"]
            run.backward(given(rank, 2))
            sent = run.hook.summary()["sent_bytes"] - before
            pattern, buckets = planned(way, CODECS[0]).pattern(size), run.hook.sparse_chunks
            assert sum(buckets) > 0
            told = [pattern.sent(CODECS[0], chunks, rank, dense_bytes=4).total_bytes for chunks in buckets]
            assert sent == sum(told), (way, sent, told)
    return "ok"


def refreshing(rank: int, size: int) -> dict[str, float]:
    """The law holds when refresh steps (up to 4, and 6) of 8 and others take turns; bytes are those of the formula."""
    worst = {}
    for way in ways(size):
        with running(way, CODECS[0], warmup=1, refresh=0.5) as run:
            found, pattern, groups = [], planned(way, CODECS[0]).pattern(size), dist.distributed_c10d._world.pg_map
            before_groups = len(groups)
            for step in range(8):
                before, told = residual(run), run.hook.summary()
                bad = step == 4  # a refresh that is left out: nothing may be said to have been sent
                wanted = given(rank, step)
                if bad and rank == 0:
                    wanted["d"][2, 7] = float("inf")
                mean = run.backward(wanted)
                assert run.hook.says_all == (step in {0, 1, 2, 3, 4, 6}), step
                after, now = residual(run), run.hook.summary()
                if bad:
                    assert not mean["d"].isfinite().all()
                    assert all(torch.equal(before[name], after[name]) for name in NAMES)
                    continue
                assert_alike(flat(mean))
                if step:
                    found.append(off(wanted, before, mean, after, size))
                if step in {2, 6}:
                    part = now["refresh_bytes"] - told["refresh_bytes"]
                    codec = CODECS[0].whole
                    sent = [pattern.whole.sent(codec, chunks, rank).total_bytes for chunks in run.hook.sparse_chunks]
                    assert part == sum(sent) > 0, (way, step, part, sent)
                    assert now["topk_bytes"] == told["topk_bytes"]
                    # Of each chunk no more is left than half a step of its levels, by each selection.
                    assert flat(after).abs().max() < 0.2 * flat(wanted).abs().max() + 0.2 * flat(before).abs().max()
            assert len(groups) == before_groups, "a step made a process group"
            told = run.hook.summary()
            assert (told["compressed_steps"], told["refresh_steps"], told["dense_steps"]) == (7, 5, 1)
            assert told["sent_bytes"] == told["topk_bytes"] + told["refresh_bytes"]
            assert told["skipped_steps"] == 1
            worst[f"{way[0].value}/{way[1]}"] = max(found)
    return worst


def along_schedules(rank: int, size: int) -> str:
    """Schedules of the topology move the same bytes as the library."""

    def by_schedules(group: dist.ProcessGroup) -> Transport:
        graph = graph_of(cpu_host(dist.get_world_size(group)))
        chosen = {}
        for kind in (Collective.all_to_all, Collective.all_gather):
            chosen[kind.value] = next(entry.schedule for entry in menu(graph, kind) if entry.schedule)
        return Scheduled(group, **chosen)

    chosen_by_topology = routed(graph_of(cpu_host(size)), 1 << 20)
    for way, transport in zip(ways(size)[:2] * 2, (by_schedules, by_schedules, *[chosen_by_topology] * 2), strict=True):
        model = DistributedDataParallel(Given(torch.float32), bucket_cap_mb=0.04)
        plan = planned(way, CODECS[0])
        hook = attach(model, plan, dist.group.WORLD, step_of=lambda: 0, transport=transport)
        with running(way, CODECS[0]) as plain:
            for step in range(3):
                wanted = given(rank, step)
                model.zero_grad()
                model(wanted).backward()
                theirs = plain.backward(wanted)
                for name in NAMES:
                    assert torch.equal(getattr(model.module, name).grad, theirs[name]), (way, step, name)
            hook.close()
    return "ok"


if __name__ == "__main__":
    main(globals())
