"""The search finds what trying everything finds, on many small instances; written without the search's own loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import (
    AdapterConfig,
    BatchConfig,
    Checkpointing,
    Compress,
    CompressConfig,
    DataConfig,
    Engine,
    EngineConfig,
    ModelConfig,
    Offload,
    Optimizer,
    OptimizerConfig,
    RunConfig,
)
from orchestrator.errors import NothingFits
from orchestrator.estimate.calibration import DEVICE_FILL
from orchestrator.planner.assign import share_rows
from orchestrator.planner.dtypes import choose_precision
from orchestrator.planner.evaluate import Job, Point, fit_of, time_of
from orchestrator.planner.plan import Plan
from orchestrator.planner.points import places_of, points_of, with_knobs
from orchestrator.planner.solve import Asked, Solution, solve
from orchestrator.planner.variants import job_of, packed_rows, sequence_length
from orchestrator.planner.ways import Residency, Way, conflict_of, handicap_of
from orchestrator.planner.world import World
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.model import Device, DeviceKind, Host, Pair, Topology
from topology.units import GIB

CARDS = (("NVIDIA A100-SXM4-40GB", (8, 0)), ("Tesla T4", (7, 5)), ("NVIDIA GeForce RTX 4090", (8, 9)))


def _machine(cards: list[int], sizes: list[int], kinds: list[str], host_gib: int) -> Topology:
    devices = tuple(
        Device(
            id=f"GPU-{at}",
            host="h",
            kind=DeviceKind.gpu,
            name=CARDS[card][0],
            memory_bytes=size * GIB,
            compute_capability=CARDS[card][1],
            numa=at % 2,
        )
        for at, (card, size) in enumerate(zip(cards, sizes, strict=False))
    )
    couples = [(a.id, b.id) for at, a in enumerate(devices) for b in devices[at + 1 :]]
    pairs = tuple(Pair(a=a, b=b, kind=kind) for (a, b), kind in zip(couples, kinds, strict=False))
    return Topology(hosts=(Host(name="h", memory_bytes=host_gib * GIB, cores=16, devices=devices),), pairs=pairs)


@st.composite
def _instances(draw: st.DrawFn) -> Asked:
    count = draw(st.integers(1, 4))
    topology = _machine(
        draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
        draw(st.lists(st.integers(3, 14), min_size=count, max_size=count)),
        draw(st.lists(st.sampled_from(["NV4", "PIX", "NODE", "SYS"]), min_size=6, max_size=6)),
        draw(st.integers(8, 64)),
    )
    config = RunConfig(
        model=ModelConfig(path="m"),
        data=DataConfig(path="rows.jsonl", packing=draw(st.sampled_from([True, False, None]))),
        batch=BatchConfig(global_=draw(st.integers(4, 9)), micro=draw(st.sampled_from([None, None, 2]))),
        engine=EngineConfig(
            name=draw(st.sampled_from(list(Engine))),
            offload_param=draw(st.sampled_from([Offload.auto, Offload.auto, Offload.cpu])),
            nvme_path=draw(st.sampled_from(["", "/fast"])),
            window=draw(st.sampled_from([None, None, 2])),
        ),
        # Wide adapters have moments that decide what fits.
        adapter=AdapterConfig(rank=draw(st.sampled_from([8, 64, 256]))),
        optimizer=OptimizerConfig(name=draw(st.sampled_from([Optimizer.adamw, Optimizer.adamw_8bit, Optimizer.auto]))),
        checkpointing=draw(st.sampled_from([Checkpointing.auto, Checkpointing.auto, Checkpointing.full])),
        compress=CompressConfig(name=Compress.none),  # the trial below sends dense gradients
    )
    shape = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": draw(st.sampled_from([3, 10])),
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }
    tokens = draw(st.sampled_from([256, 1500]))
    data = DataStats(
        rows=100, eval_rows=0, mean_tokens=tokens / 2, max_tokens=tokens, total_tokens=50 * tokens, source="counted"
    )
    return Asked(config=config, topology=topology, model=shape_from_config("m", shape), data=data)


def _offloads(asked: Asked, wanted: Offload) -> list[Offload]:
    everywhere = [Offload.none, Offload.cpu] + ([Offload.nvme] if asked.config.engine.nvme_path else [])
    return everywhere if wanted is Offload.auto else [wanted]


def _every_way(asked: Asked, world: World | None = None) -> list[Way]:
    config = asked.config
    modes = [
        m for m in Checkpointing if m is not Checkpointing.auto and config.checkpointing in {Checkpointing.auto, m}
    ]
    ways = []
    if config.engine.name in {Engine.auto, Engine.ddp}:
        ways += [Way(engine=Engine.ddp, checkpointing=mode) for mode in modes]
    if config.engine.name in {Engine.auto, Engine.streamed}:
        islands = [None, *(() if world is None else world.groups)]
        nowhere = {"param": Offload.none, "optimizer": Offload.none}
        ways += [
            Way(engine=Engine.streamed, checkpointing=mode, residency=Residency(**nowhere, island=island))
            for mode, island in product(modes, islands)
            if mode is not Checkpointing.selective
        ]
    if config.engine.name in {Engine.auto, Engine.zero3}:
        places = product(
            _offloads(asked, config.engine.offload_param), _offloads(asked, config.engine.offload_optimizer)
        )
        copies = [None, *(() if world is None else world.groups)]
        ways += [
            Way(
                engine=Engine.zero3,
                checkpointing=mode,
                residency=Residency(param=param, optimizer=optimizer, second_copy=copy),
            )
            for mode, (param, optimizer), copy in product(modes, list(places), copies)
            if copy is None or param is Offload.none
        ]
    return ways


def _every_job(asked: Asked) -> list[Job]:
    """Each packing and optimizer that is open, one plain job after the other."""
    config = asked.config
    packings, optimizers = [config.data.packing], [config.optimizer.name]
    if config.data.packing is None:
        blocks = packed_rows(asked.data, sequence_length(config, asked.model))
        packings = [False, True] if blocks >= config.batch.global_ else [False]
    if config.optimizer.name is Optimizer.auto:
        optimizers = [Optimizer.paged_adamw_8bit, Optimizer.adamw_8bit, Optimizer.adamw]
    made = []
    for packing, optimizer in product(packings, optimizers):
        data = replace(config.data, packing=packing)
        closed = replace(config, data=data, optimizer=replace(config.optimizer, name=optimizer))
        made.append(job_of(closed, asked.model, asked.data))
    return made


def _cost(job: Job, point: Point) -> float:
    """Handicapped seconds per token of the data."""
    tokens = job.config.batch.global_ * job.batch.real_tokens_per_row
    optimizer = {Optimizer.adamw_8bit: 1.03, Optimizer.paged_adamw_8bit: 1.05}.get(job.config.optimizer.name, 1.0)
    return time_of(job, point).step_seconds / tokens * handicap_of(point.way) * optimizer


def _parts(job: Job, bare: Point) -> list[Point]:
    """Every number of layers that may be recomputed, where all of them fit and none does not."""
    if job.config.checkpointing is not Checkpointing.auto or bare.way.checkpointing is Checkpointing.none:
        return []
    nothing = with_knobs(job, replace(bare, way=replace(bare.way, checkpointing=Checkpointing.none)))
    if fit_of(job, nothing).misfit is None or fit_of(job, with_knobs(job, bare)).misfit is not None:
        return []
    counts = range(1, job.model.layers)
    return [with_knobs(job, replace(bare, way=replace(bare.way, recomputed=count))) for count in counts]


def _by_trial(asked: Asked, solution: Solution) -> tuple[float, float, int] | None:
    """Handicapped seconds per token, margin and devices of the best of everything."""
    found = []
    tried = [
        (job, world, way)
        for job, world in product(_every_job(asked), solution.worlds)
        for way in _every_way(asked, world)
    ]
    for job, world, way in tried:
        precision = choose_precision(job.config, world).precision
        if conflict_of(job.config, world, way, precision) is not None:
            continue
        for place in places_of(job, world):
            rows = place.rows
            micros = range(1, max(rows) + 1) if asked.config.batch.micro is None else [asked.config.batch.micro]
            for micro in micros:
                passes = -(-max(rows) // min(micro, max(rows)))
                each = [
                    -(-ranks.rows // passes) if asked.config.batch.micro is None else min(micro, ranks.rows)
                    for ranks in place.classes
                ]
                bare = Point(place=place, way=way, micro=tuple(each), accumulation=passes)
                for point in (with_knobs(job, bare), *_parts(job, bare)):
                    fit = fit_of(job, point)
                    if fit.misfit is None:
                        found.append((_cost(job, point), fit.margin, world.size))
    if not found:
        return None
    limit = min(cost for cost, _, _ in found) * 1.02
    return min((x for x in found if x[0] <= limit), key=lambda x: (-x[1], x[2], x[0]))


@settings(max_examples=6, deadline=None)
@given(_instances())
def test_the_chosen_one_is_the_best_of_all(asked: Asked) -> None:
    solution = solve(asked)
    best, found = _by_trial(asked, solution), solution.found
    if best is None:
        assert found.best is None
        assert found.ranked == ()
        return
    assert found.best is not None
    job = solution.job
    cost, margin, devices = best
    assert _cost(job, found.best) == pytest.approx(cost)
    assert job.config.optimizer.name is not Optimizer.auto
    assert job.config.data.packing in {True, False}
    assert fit_of(job, found.best).margin == pytest.approx(margin)
    assert found.best.place.world.size == devices
    assert found.ranked[0].strategy.global_batch == asked.config.batch.global_


@settings(max_examples=12, deadline=None)
@given(
    layers=st.integers(2, 14),
    share=st.floats(0.02, 0.98),
    batch=st.integers(1, 5),
    tokens=st.sampled_from([256, 1500]),
    optimizer=st.sampled_from([Optimizer.adamw, Optimizer.auto]),
    engine=st.sampled_from([Engine.ddp, Engine.auto]),
)
def test_a_part_of_the_layers_is_found(
    *, layers: int, share: float, batch: int, tokens: int, optimizer: Optimizer, engine: Engine
) -> None:
    """On a card whose memory lies between what recomputing all layers needs and what recomputing none does."""
    asked = _asked_of(
        layers,
        tokens,
        RunConfig(
            model=ModelConfig(path="m"),
            data=DataConfig(path="rows.jsonl"),
            batch=BatchConfig(global_=batch),
            engine=EngineConfig(name=engine),
            optimizer=OptimizerConfig(name=optimizer),
        ),
    )
    job = _every_job(asked)[-1]
    place = next(iter(places_of(job, solve(asked).worlds[0])))
    needs = [
        fit_of(job, Point(place=place, way=Way(engine=Engine.ddp, checkpointing=mode), micro=(1,), accumulation=batch))
        for mode in (Checkpointing.full, Checkpointing.none)
    ]
    least, most = (fit.memory.device_bytes for fit in needs)
    asked = replace(asked, topology=_one_card(int((least + share * (most - least)) / DEVICE_FILL.value) + 1))
    solution = solve(asked)
    best = _by_trial(asked, solution)
    assert best is not None
    assert solution.found.best is not None
    cost, margin, _ = best
    assert _cost(solution.job, solution.found.best) == pytest.approx(cost)
    assert fit_of(solution.job, solution.found.best).margin == pytest.approx(margin)


def _one_card(size_bytes: int) -> Topology:
    device = Device(
        id="GPU-0",
        host="h",
        kind=DeviceKind.gpu,
        name=CARDS[0][0],
        memory_bytes=size_bytes,
        compute_capability=CARDS[0][1],
    )
    return Topology(hosts=(Host(name="h", memory_bytes=64 * GIB, cores=16, devices=(device,)),))


def _asked_of(layers: int, tokens: int, config: RunConfig) -> Asked:
    """A small wide model on one large card."""
    shape = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }
    data = DataStats(
        rows=100, eval_rows=0, mean_tokens=tokens / 2, max_tokens=tokens, total_tokens=50 * tokens, source="counted"
    )
    return Asked(config=config, topology=_one_card(80 * GIB), model=shape_from_config("m", shape), data=data)


@settings(max_examples=6, deadline=None)
@given(_instances())
def test_even_rows_are_always_among_the_options(asked: Asked) -> None:
    """So that sharing by speed is never worse than equal shares."""
    solution = solve(asked)
    batch = asked.config.batch.global_
    for world in solution.worlds:
        options = [place.rows for place in places_of(solution.job, world)]
        assert share_rows(batch, [1.0] * world.size) in options
        assert all(sum(rows) == batch for rows in options)


@settings(max_examples=6, deadline=None)
@given(_instances())
def test_memory_never_falls_as_the_micro_batch_grows(asked: Asked) -> None:
    """What the bisection rests on; one forward pass a step keeps no gradient between passes, and is tried apart."""
    solution = solve(replace(asked, config=replace(asked.config, batch=replace(asked.config.batch, micro=None))))
    job = solution.job
    for way in _every_way(asked):
        place = next(iter(places_of(job, solution.worlds[0])))
        line = [point for point in points_of(job.config, place, way) if point.accumulation > 1]
        margins = [fit_of(job, with_knobs(job, point)).margin for point in line]
        # What a device has no room for waits in host memory, so that the device is full to a few bytes.
        slack = 1e-6 if way.engine is Engine.streamed else 1e-9
        assert all(after <= before + slack for before, after in pairwise(margins))


def test_of_many_micro_batches_the_best_is_not_missed(plan_for: Callable[..., Plan]) -> None:
    """Beyond 16 not all are timed; what is chosen is still within the 2% that memory may cost."""
    plan = plan_for("tiny", "1x24gb", tokens=48, batch=BatchConfig(global_=2000), engine=EngineConfig(name=Engine.ddp))
    strategy, estimate = plan.chosen.strategy, plan.chosen.estimate
    for micro in (*range(1, 40, 3), 100, 200, 500, 1000, 2000):
        try:
            other = plan_for(
                "tiny",
                "1x24gb",
                tokens=48,
                batch=BatchConfig(global_=2000, micro=micro),
                engine=EngineConfig(name=Engine.ddp),
                checkpointing=strategy.checkpointing,
            )
        except NothingFits:
            continue
        assert estimate.step_seconds <= 1.03 * other.chosen.estimate.step_seconds, micro
