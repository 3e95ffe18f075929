"""The break-even rate is where it says: put in as the rate of the links, both kinds of gradients cost the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config import (
    AdapterConfig,
    BatchConfig,
    Compress,
    CompressConfig,
    CompressExchange,
    CompressValues,
    DataConfig,
    Engine,
    EngineConfig,
    ModelConfig,
    RunConfig,
)
from orchestrator.planner.compress_break_even import break_even
from orchestrator.planner.compress_choice import compression_of, offer_of
from orchestrator.planner.compress_costs import wire_of
from orchestrator.planner.evaluate import Job, Point, time_of
from orchestrator.planner.points import places_of
from orchestrator.planner.solve import Asked, solve
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from tests.unit.orchestrator.conftest import MODELS
from topology.model import Topology
from topology.network.spec import NetworkKind, NetworkSpec
from topology.presets import preset

GBIT = 1e9 / 8
SPLIT = CompressConfig(name=Compress.topk, exchange=CompressExchange.split)
HIERARCHICAL = replace(SPLIT, exchange=CompressExchange.hierarchical)


def _solved(
    machine: Topology, model: str, ranks: int, compress: CompressConfig, accumulation: int, *, rank: int = 16
) -> tuple[Job, Point]:
    config = RunConfig(
        model=ModelConfig(path=model),
        data=DataConfig(path="rows.jsonl", packing=False),
        adapter=replace(AdapterConfig(), rank=rank),
        batch=BatchConfig(global_=ranks * accumulation, micro=1),
        engine=EngineConfig(name=Engine.ddp),
        devices=ranks,
        nodes=len(machine.hosts),
        compress=compress,
    )
    rows = DataStats(rows=9000, eval_rows=9, mean_tokens=256, max_tokens=512, total_tokens=9000 * 256, source="counted")
    shape = shape_from_config(model, {"model_type": "llama", **MODELS[model]})
    solution = solve(Asked(config=config, topology=machine, model=shape, data=rows, calibration=None))
    best = solution.found.best
    assert best is not None
    return solution.job, best


def _even(job: Job, point: Point) -> float | None:
    offer, machine = offer_of(job, point.place), point.place.classes[0].machine
    assert offer is not None
    return break_even(job, point, offer, wire_of(point.place.world, machine), machine)


def _at_rate(job: Job, point: Point, rate: float) -> Point:
    """The same step where all-gathers reach this bus rate, and all-reduces in proportion."""
    reduce, gather = point.place.world.link_rates
    world = replace(point.place.world, link_rates=(reduce * rate / gather, rate))
    place = next(place for place in places_of(job, world) if place.rows == point.place.rows)
    return replace(point, place=place)


def _hosts(gbit: float) -> Topology:
    return preset("pcie_l40s_x8", nodes=2, network=NetworkSpec(kind=NetworkKind.flat, bytes_per_second=gbit * GBIT))


@pytest.mark.parametrize(
    ("machine", "model", "ranks", "compress", "accumulation"),
    [
        (preset("dgx_h100"), "8b", 8, SPLIT, 1),
        (preset("pcie_l40s_x8"), "8b", 8, SPLIT, 4),
        (_hosts(10), "8b", 16, SPLIT, 1),
        (_hosts(1), "8b", 16, SPLIT, 2),
        (_hosts(10), "8b", 16, HIERARCHICAL, 1),
        (preset("cpu"), "tiny", 2, replace(SPLIT, exchange=CompressExchange.gather), 2),
    ],
    ids=["nvlink", "pcie", "10 Gb/s", "1 Gb/s", "islands", "cpu"],
)
def test_at_the_break_even_rate_both_cost_the_same(
    machine: Topology, model: str, ranks: int, compress: CompressConfig, accumulation: int
) -> None:
    job, best = _solved(machine, model, ranks, compress, accumulation)
    even = _even(job, best)
    assert even
    there = _at_rate(job, best, even)
    found = compression_of(job, there, offer_of(job, there.place), 0)
    assert found is not None
    assert found.exposed_seconds == pytest.approx(found.dense_exposed_seconds, rel=0.01)
    # On both sides of it the other kind is the sooner one.
    for factor, dense_is_sooner in ((1.1, True), (1 / 1.1, False)):
        other = _at_rate(job, best, factor * even)
        sparse = replace(other, sparse=offer_of(job, other.place))
        dense = replace(other, sparse=None)
        assert (time_of(job, sparse).step_seconds > time_of(job, dense).step_seconds) is dense_is_sooner


def test_more_bytes_are_later_at_every_rate() -> None:
    everything = replace(SPLIT, density=1.0, values=CompressValues.fp32)
    job, best = _solved(preset("dgx_h100"), "8b", 8, everything, 1)
    assert _even(job, best) == 0.0
    found = compression_of(job, best, offer_of(job, best.place), 0)
    assert found is not None
    assert "Dense gradients are the sooner ones there at every rate" in found.why


def test_where_latency_decides_sparse_gradients_are_sooner_at_every_rate() -> None:
    """An all-reduce of four gloo ranks passes all of them twice; packets go round once."""
    gather = replace(SPLIT, exchange=CompressExchange.gather, refresh=0.0)
    job, best = _solved(preset("cpu"), "tiny", 4, gather, 1, rank=512)
    slow = tuple(replace(ranks, machine=replace(ranks.machine, link_alpha_seconds=1.0)) for ranks in best.place.classes)
    best = replace(best, place=replace(best.place, classes=slow))
    assert _even(job, best) is None
    found = compression_of(job, best, offer_of(job, best.place), 0)
    assert found is not None
    assert "Sparse gradients are the sooner ones there at every rate" in found.why
