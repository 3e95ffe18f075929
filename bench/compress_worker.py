"""One rank of `bench/compress_exchange.py`: backward passes that do nothing but exchange gradients, by several hooks.

python bench/compress_worker.py SETTINGS.json RANK
"""

# Annotations are values here, not texts: DDP compares those of its hooks with its own types.

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from route_worker import _sent_bytes
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from launch.parent_death import die_with_parent
from orchestrator.compress.hook import Compressor, attach
from orchestrator.planner.compression import CompressionPlan, Exchange, Kind, Pattern, Values, codec_of, parts_of

_TIMEOUT: Final = timedelta(seconds=300)
_QUIET_SECONDS: Final = 0.05  # until the last packets are counted
_ONE_BUCKET_MB: Final = 4096
_EVERY_STEP: Final = 1e-9  # a fraction that is below one step of any run
_RANK: Final = 16
_HIDDEN, _KEYS, _INNER = 4096, 1024, 14336  # Llama-3-8B
_INS_OUTS: Final = [
    (_HIDDEN, _HIDDEN),
    (_HIDDEN, _KEYS),
    (_HIDDEN, _KEYS),
    (_HIDDEN, _HIDDEN),
    (_HIDDEN, _INNER),
    (_HIDDEN, _INNER),
    (_INNER, _HIDDEN),
]


class Adapters(nn.Module):
    """The matrices of an adapter, without a model around them."""

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        """Two matrices for each linear of a layer."""
        super().__init__()
        shapes = [shape for ins, outs in _INS_OUTS for shape in ((_RANK, ins), (outs, _RANK))]
        made = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for _ in range(layers) for shape in shapes]
        self.matrices = nn.ParameterList(made)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """A loss whose gradients are the given ones."""
        return _Handed.apply(gradients, *self.matrices)  # type: ignore[no-any-return, no-untyped-call]


class _Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *matrices: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.gradients = gradients
        return matrices[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]  # noqa: ANN401
        return (None, *ctx.gradients)


@dataclass(slots=True)
class Way:
    """A hook on a model of its own, and what its passes took.

    Attributes:
        name: in the table.
        model: under DDP.
        gradients: handed out in each pass.
        warm_passes: before the first that counts: buckets are formed anew after the first.
        hook: ours, if it is.
        seconds: of each pass, the slowest rank's.
        cpu_seconds: of each pass, the mean over the ranks.
        egress_bytes: of each pass, the busiest host's.
    """

    name: str
    model: DistributedDataParallel
    gradients: list[torch.Tensor]
    warm_passes: int = 2
    hook: Compressor | None = None
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    egress_bytes: list[int] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)


class Clock:
    """Times passes in a group that nothing else uses."""

    def __init__(self) -> None:
        """Make the group; all ranks call this."""
        self._group = dist.new_group(timeout=_TIMEOUT)

    def once(self, way: Way) -> None:
        """One backward pass."""
        way.model.zero_grad(set_to_none=True)
        loss = way.model(way.gradients)
        dist.barrier(group=self._group)
        before, cpu, begin = _sent_bytes(), time.process_time(), time.perf_counter()
        loss.backward()
        taken, used = time.perf_counter() - begin, time.process_time() - cpu
        way.seconds.append(self._of(taken, dist.ReduceOp.MAX))
        way.cpu_seconds.append(self._of(used, dist.ReduceOp.SUM) / dist.get_world_size())
        time.sleep(_QUIET_SECONDS)
        way.egress_bytes.append(int(self._of(_sent_bytes() - before, dist.ReduceOp.MAX)))

    def _of(self, value: float, op: Any) -> float:  # noqa: ANN401
        one = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(one, op=op, group=self._group)
        return float(one)


def main() -> None:
    """Measure what the settings ask for."""
    die_with_parent()
    settings, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    torch.set_num_threads(1)  # ranks share the cores
    size = settings["hosts"] * settings["slots"]
    dist.init_process_group(
        "gloo", init_method=f"file://{settings['meet']}", rank=rank, world_size=size, timeout=_TIMEOUT
    )
    clock = Clock()
    ways = [_way(name, settings) for name in settings["ways"]]
    for way in ways:
        for _ in range(way.warm_passes):
            clock.once(way)
        if rank == 0:
            print(f"{way.name}: warm, last pass {way.seconds[-1]:.2f} s", file=sys.stderr, flush=True)
        way.seconds, way.cpu_seconds, way.egress_bytes = [], [], []
        way.before = _phases(way)
    for turn in range(settings["runs"]):
        for way in ways:
            if rank == 0 and settings.get("profile") == way.name and not turn:
                _profiled(clock, way)
            else:
                clock.once(way)
    if rank == 0:
        found = [_told(way, settings) for way in ways]
        elements = sum(gradient.numel() for gradient in ways[0].gradients)
        Path(settings["answer"]).write_text(json.dumps({"elements": elements, "ways": found}))
    dist.barrier()
    for way in ways:
        if way.hook is not None:
            way.hook.close()
    dist.destroy_process_group()


def _way(name: str, settings: dict[str, Any]) -> Way:
    """`none`, `dense DTYPE`, `powersgd RANK DTYPE`, `topk EXCHANGE VALUES DTYPE`, or `refresh` with the same words."""
    words = name.split()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[words[-1]]
    generator = torch.Generator().manual_seed(dist.get_rank())
    adapters = Adapters(settings["layers"], dtype)
    gradients = [torch.randn(one.shape, generator=generator).to(dtype) for one in adapters.matrices]
    # PowerSGD sums from callbacks, in the order in which they come: over gloo, several buckets wait for each other.
    cap_mb = _ONE_BUCKET_MB if words[0] == "powersgd" else None
    model = DistributedDataParallel(adapters, gradient_as_bucket_view=True, bucket_cap_mb=cap_mb)
    way = Way(name, model, gradients)
    if words[0] == "none":
        model.register_comm_hook(None, _nothing)
    elif words[0] == "powersgd":
        state = PowerSGDState(dist.group.WORLD, int(words[1]), start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook)
        way.warm_passes = 3
    elif words[0] in {"topk", "refresh"}:
        exchange = Exchange(words[1])
        plan = CompressionPlan(
            kind=Kind.topk,
            why="a bench",
            codec=codec_of(settings["density"], Values(words[2])),
            exchange=exchange,
            island=_island(exchange, settings["slots"]),
            refresh_fraction=_EVERY_STEP if words[0] == "refresh" else 0.0,
        )
        way.hook = attach(model, plan, dist.new_group(timeout=_TIMEOUT), step_of=lambda: 0)
    else:
        way.warm_passes = 1
    return way


def _nothing(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _profiled(clock: Clock, way: Way) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        clock.once(way)
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=30), flush=True)


def _phases(way: Way) -> dict[str, float]:
    if way.hook is None:
        return {}
    told = way.hook.summary()
    return {name: value * told["compressed_steps"] for name, value in told["seconds_per_step"].items()}


def _island(exchange: Exchange, slots: int) -> int:
    """Ranks of an island: those of a host."""
    return slots if exchange is Exchange.hierarchical else 1


def _formula_bytes(way: Way, settings: dict[str, Any]) -> int | None:
    """What the first host sends to others in a pass: gloo's all-gather is a ring, its all-to-all direct.

    A ring over all ranks leaves a host once, at its last rank; parts of different sizes are handed round directly.
    """
    if way.hook is None:
        return None
    slots, size = settings["slots"], settings["hosts"] * settings["slots"]
    kind, name, values, _ = way.name.split()
    codec, exchange = codec_of(settings["density"], Values(values)), Exchange(name)
    if kind == "refresh":
        pattern = Pattern(exchange=exchange, ranks=size, island=_island(exchange, slots))
        codec, exchange = codec.whole, pattern.whole.exchange
    total = 0
    for chunks in way.hook.sparse_chunks:
        parts = parts_of(chunks, size)
        messages = [codec.message_bytes(part) for part in parts]
        if exchange is Exchange.gather:
            total += (size - 1) * codec.message_bytes(chunks)
        elif exchange is Exchange.split:
            outside = size - slots
            total += slots * sum(messages[slots:])
            total += (size - 1) * messages[0] if len(set(parts)) == 1 else outside * sum(messages[:slots])
        else:  # of two hosts: each rank sends its part of the island's sum once
            total += sum(codec.message_bytes(part) for part in parts_of(chunks, slots))
    return total


def _told(way: Way, settings: dict[str, Any]) -> dict[str, Any]:
    passes, after = len(way.seconds), _phases(way)
    mid: Callable[[list[float]], float] = median
    return {
        "name": way.name,
        "seconds": way.seconds,
        "cpu_seconds": way.cpu_seconds,
        "egress_bytes": int(mid([float(each) for each in way.egress_bytes])),
        "formula_bytes": _formula_bytes(way, settings),
        "phases": {name: (after[name] - way.before[name]) / passes for name in after},
        "residual_bytes": way.hook.summary()["residual_bytes"] if way.hook else 0,
    }


if __name__ == "__main__":
    main()
