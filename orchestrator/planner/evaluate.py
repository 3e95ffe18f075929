"""The estimate of one way to run: memory of the tightest class of ranks, time of the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.config import Attention, Checkpointing, Engine, RunConfig
from orchestrator.estimate import base
from orchestrator.estimate.masks import EAGER_BY_DEFAULT
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Generation, Machine, Setting, Zero3Knobs
from orchestrator.estimate.time import estimate_time
from orchestrator.estimate.values import Memory, StepTime, Term
from orchestrator.planner.compress_costs import Offer
from orchestrator.planner.dtypes import adapter_dtype
from orchestrator.planner.fits import Fit, fit_in
from orchestrator.planner.groups import Group
from orchestrator.planner.measured import counted_stack
from orchestrator.planner.strategy import Zero3Extras
from orchestrator.planner.streaming_cut import Streaming
from orchestrator.planner.ways import Way
from orchestrator.planner.world import RankClass, World
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.model import ModelShape

# Rows of varying length leave holes that only growable segments can reuse.
_EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all strategies of one plan share."""

    config: RunConfig
    model: ModelShape
    adapter: AdapterShape
    batch: BatchShape
    seq_len: int
    num_steps: int = 0  # of the run; 0 where nobody needs it


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A world with what its ranks can expect, and the rows each of them takes.

    Attributes:
        world: the devices.
        precision: of the passes there.
        kinds: of each rank (`device_classes`).
        rows: of each rank per optimizer step.
        classes: ranks that are alike in kind and rows.
    """

    world: World
    precision: str
    kinds: tuple[int, ...]
    rows: tuple[int, ...]
    classes: tuple[RankClass, ...]

    @property
    def class_of_ranks(self) -> tuple[int, ...]:
        """Number of each rank's class."""
        at = {(self.kinds[ranks.rank], ranks.rows): number for number, ranks in enumerate(self.classes)}
        return tuple(at[key] for key in zip(self.kinds, self.rows, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One fully specified way to run at a place: micro-batch rows of each class, and forward passes per step.

    `sparse` is how gradients travel, None for dense ones; `streaming` how layers are fetched under engine streamed.
    """

    place: Place
    way: Way
    micro: tuple[int, ...]
    accumulation: int
    zero3: Zero3Knobs | None = None
    extras: Zero3Extras | None = None
    sparse: Offer | None = None
    streaming: Streaming | None = None


def setting_of(job: Job, point: Point, at: int) -> Setting:
    """Return what the ranks of class `at` do."""
    config, place, way = job.config, point.place, point.way
    ranks = place.classes[at]
    machine = ranks.machine
    if way.residency is not None and way.residency.second_copy is not None:
        machine = _near_gathers(machine, _passes(job, way) - 1, way.residency.second_copy)
    return Setting(
        model=job.model,
        adapter=job.adapter,
        batch=job.batch,
        quant=config.base.quant,
        double_quant=config.base.double_quant,
        engine=way.engine,
        world_size=place.world.size,
        micro=point.micro[at],
        rows=ranks.rows,
        accumulation=point.accumulation,
        compute_dtype=place.precision,
        load_dtype=place.precision,
        adapter_dtype=adapter_dtype(config, way.engine, place.precision),
        checkpointing=way.checkpointing,
        recomputed_layers=way.recomputed,
        optimizer=config.optimizer.name,
        allocator=allocator_of(config, place.world),
        eager_attention=_is_eager(job),
        flash_attention=config.model.attention is Attention.flash_attention_2,
        sparse=None if point.sparse is None else point.sparse.cost,
        zero3=point.zero3,
        streamed=None if point.streaming is None else point.streaming.classes[at],
        generation=_generation(job),
        machine=machine,
        stack=config.stack.value,
        counted=counted_stack(place.world.calibration, config.stack.value),
    )


def _generation(job: Job) -> Generation | None:
    wanted = job.config.eval
    if not wanted.generates:
        return None
    return Generation(rows=wanted.batch, prompt_tokens=job.seq_len, new_tokens=wanted.max_new_tokens)


def allocator_of(config: RunConfig, world: World) -> str:
    """PYTORCH_ALLOC_CONF of the ranks; empty leaves torch's default."""
    return config.allocator or (_EXPANDABLE if world.is_gpu else "")


def _passes(job: Job, way: Way) -> float:
    """Passes over a layer of a micro-step: forward, backward and recomputation; the mean of all layers."""
    if way.checkpointing is Checkpointing.none:
        return 2
    return 3 if way.recomputed is None else 2 + way.recomputed / job.model.layers


def _near_gathers(machine: Machine, inside: float, group: Group) -> Machine:
    """Mean rate and latency where the forward pass gathers from all ranks, and `inside` others inside a group."""
    far = machine.link_alpha_seconds if machine.gather_alpha_seconds is None else machine.gather_alpha_seconds
    return replace(
        machine,
        gather_bytes_per_second=(1 + inside) / (1 / machine.gather_bytes_per_second + inside / group.bytes_per_second),
        gather_alpha_seconds=(far + inside * group.alpha_seconds) / (1 + inside),
    )


def _is_eager(job: Job) -> bool:
    wanted = job.config.model.attention
    return wanted is Attention.eager or (wanted is Attention.auto and job.model.architecture in EAGER_BY_DEFAULT)


def layer_seconds(job: Job, point: Point) -> float:
    """Seconds of one pass over one decoder layer, on the slowest class: these knobs are the same on all ranks.

    From the time of one micro-step on a single rank, where nothing is gathered. It grows with the micro-batch, and
    so do the knobs that follow from it.
    """
    seconds = 0.0
    for at, rows in enumerate(point.micro):
        setting = setting_of(job, point, at)
        alone = replace(setting, engine=Engine.ddp, zero3=None, streamed=None, world_size=1, rows=rows, accumulation=1)
        seconds = max(seconds, estimate_time(alone, terms=False).step_seconds)
    return seconds / job.model.layers / _passes(job, point.way)


def settings_of(job: Job, point: Point) -> tuple[Setting, ...]:
    """What the ranks of each class do."""
    return tuple(setting_of(job, point, at) for at in range(len(point.place.classes)))


def time_of(job: Job, point: Point, *, terms: bool = True, settings: Sequence[Setting] | None = None) -> StepTime:
    """Time of the slowest class; a search needs no `terms`, and knows the `settings_of` the point already."""
    times = (estimate_time(setting, terms=terms) for setting in settings or settings_of(job, point))
    return max(times, key=lambda time: time.step_seconds)


def fit_of(job: Job, point: Point, settings: Sequence[Setting] | None = None) -> Fit:
    """Memory of the tightest class, and whether it fits; `settings` as in `time_of`."""
    return min(fits_of(job, point, settings), key=lambda fit: fit.margin)


def memory_of(job: Job, point: Point, at: int) -> Memory:
    """Memory of the ranks of class `at`."""
    return estimate_memory(setting_of(job, point, at))


def fits_of(job: Job, point: Point, settings: Sequence[Setting] | None = None) -> tuple[Fit, ...]:
    """Memory of each class of ranks."""
    fits = []
    for ranks, setting in zip(point.place.classes, settings or settings_of(job, point), strict=True):
        memory = estimate_memory(setting)
        if point.extras is not None and point.extras.hpz_partition_size > 1:
            memory = _with_second_copy(job, memory, point.extras.hpz_partition_size)
        fits.append(fit_in(point.place.world, ranks, memory))
    return tuple(fits)


def _with_second_copy(job: Job, memory: Memory, ranks: int) -> Memory:
    """Add the host's second copy of the packed base, shared by its `ranks`."""
    packed = sum(
        count * base.linear_packed_bytes(linear, job.config.base.quant, 2) for linear, count in job.model.linear_counts
    )
    extra = Term(name="second_copy", bytes=-(-packed // ranks), why=f"1/{ranks} of the near copy of the base (hpZ)")
    train = memory.train
    return replace(
        memory,
        train=replace(
            train,
            allocated_bytes=train.allocated_bytes + extra.bytes,
            reserved_bytes=train.reserved_bytes + extra.bytes,
            device_bytes=train.device_bytes + extra.bytes,
            terms=(*train.terms, extra),
        ),
    )
