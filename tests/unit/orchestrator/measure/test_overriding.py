"""Measured numbers in the place of the tables': which estimate changes, by how much, and that it says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.calibration_file import Calibration, Chosen
from orchestrator.config import DataConfig, ModelConfig, RunConfig
from orchestrator.config import Stack as StackName
from orchestrator.estimate.calibration import CUDA_CONTEXT_BYTES
from orchestrator.estimate.setting import Machine, MeasuredRates
from orchestrator.planner.build import make_plan
from orchestrator.planner.explain import explain, explain_estimate
from orchestrator.planner.measured import with_calibration
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.model import Topology
from topology.presets import preset
from topology.units import GIB

Make = Callable[..., Calibration]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
MACHINE = Machine(
    is_gpu=False,
    memory_bytes=2**34,
    flops_per_second=8e10,
    memory_bytes_per_second=5e9,
    cores=1.0,
    link_bytes_per_second=1e9,
    gather_bytes_per_second=1e9,
    link_alpha_seconds=1e-4,
    h2d_bytes_per_second=12e9,
    known=False,
    device_name="Card",
)
CPU_SECTIONS = {
    "gemm": {"fp32.256": 2e10, "fp32.4096": 4e10},
    "memory": {"copy": 9e9},
    "dequantise": {"nf4.fp32.1024": 1e9},
    "overhead": {"layer_pass": 7e-3},
    "layer": {"elementwise": 2e9},
}
GPU_SECTIONS = {
    "gemm": {"bf16.1024": 1e14, "bf16.8192": 2e14},
    "memory": {"copy": 8e11},
    "dequantise": {"nf4.bf16.1024": 5e10},
    "transfer": {"host_to_device": 2e10},
    "context": {"context": 0.5 * GIB},
}


def plan(machine: Topology, calibration: Calibration | None = None, **changes: Any) -> Plan:
    config = RunConfig(model=ModelConfig(path="m"), data=DataConfig(path="rows.jsonl"))
    stats = DataStats(
        rows=1000, eval_rows=50, mean_tokens=256.0, max_tokens=512, total_tokens=256_000, source="counted"
    )
    chosen = Chosen(calibration=calibration, path="/c.json" if calibration else "")
    return make_plan(replace(config, **changes), machine, shape_from_config("m", LLAMA), stats, "run", chosen)


def terms(found: Plan) -> dict[str, Any]:
    return {term.name: term for term in found.chosen.estimate.time_terms}


@pytest.fixture
def cpu() -> Topology:
    return preset("cpu")


@pytest.fixture
def gpu() -> Topology:
    return preset("rtx4090")


def of(make: Make, machine: Topology, sections: dict[str, dict[str, float]]) -> Calibration:
    device = machine.devices[0]
    threads = max(1, (machine.hosts[0].cores or 1) // 2)
    return make(sections, device=device.name, threads=threads)


@pytest.mark.parametrize("section", list(CPU_SECTIONS))
def test_each_part_changes_its_own_term_of_a_cpu_step(make_calibration: Make, cpu: Topology, section: str) -> None:
    before, after = terms(plan(cpu)), terms(plan(cpu, of(make_calibration, cpu, {section: CPU_SECTIONS[section]})))
    changed = {name for name in before if before[name].seconds != after[name].seconds}
    name = {"gemm": "products", "memory": "optimizer", "layer": "elementwise"}.get(section, section)
    assert changed == {name}
    if section != "memory":
        assert "(measured 2026-11-30)" in after[name].why
        assert "table" in before[name].why


def test_products_take_the_time_that_the_measured_rate_tells(make_calibration: Make, cpu: Topology) -> None:
    once = of(make_calibration, cpu, {"gemm": {"fp32.1024": 2e10}})
    twice = of(make_calibration, cpu, {"gemm": {"fp32.1024": 4e10}})
    slow, fast = (terms(plan(cpu, found))["products"].seconds for found in (once, twice))
    assert slow == pytest.approx(2 * fast)


@pytest.mark.parametrize(
    ("section", "name"), [("gemm", "products"), ("memory", "elementwise"), ("dequantise", "dequantise")]
)
def test_each_part_changes_its_own_term_of_a_gpu_step(
    make_calibration: Make, gpu: Topology, section: str, name: str
) -> None:
    table, found = plan(gpu), plan(gpu, of(make_calibration, gpu, {section: GPU_SECTIONS[section]}))
    before, after = terms(table)[name], terms(found)[name]
    assert before.total_seconds != pytest.approx(after.total_seconds, rel=0.01)
    assert "measured 2026-11-30" in after.why
    assert "table" in before.why


def test_context_and_logits_change_memory(make_calibration: Make, gpu: Topology) -> None:
    fixed: dict[str, Any] = {"stack": StackName.hf_plain}
    before = plan(gpu, **fixed).chosen
    context = plan(gpu, of(make_calibration, gpu, {"context": GPU_SECTIONS["context"]}), **fixed).chosen
    assert context.strategy == before.strategy
    saved = before.estimate.memory.train.device_bytes - context.estimate.memory.train.device_bytes
    assert saved == pytest.approx(CUDA_CONTEXT_BYTES.value - 0.5 * GIB, abs=2)
    logits = plan(gpu, of(make_calibration, gpu, {"stack": {"hf_plain.logit_bytes": 24.0}}), **fixed).chosen
    sizes = [
        next(term.bytes for term in found.estimate.memory.train.terms if term.name == "logits")
        for found in (before, logits)
    ]
    assert sizes[1] / sizes[0] == pytest.approx(2, rel=0.1)


def test_the_other_stack_keeps_the_table(make_calibration: Make, gpu: Topology) -> None:
    other = of(make_calibration, gpu, {"stack": {"hf_plain.logit_bytes": 24.0}})
    assert plan(gpu, other).chosen == plan(gpu).chosen


def test_other_devices_and_precisions_keep_their_tables(make_calibration: Make, gpu: Topology) -> None:
    assert plan(gpu, make_calibration(GPU_SECTIONS, device="Another card")).chosen == plan(gpu).chosen
    fp16 = of(make_calibration, gpu, {"gemm": {"fp16.8192": 1e14}, "dequantise": {"nf4.fp16.1024": 1e9}})
    assert plan(gpu, fp16).chosen == plan(gpu).chosen


def test_a_plan_tells_its_calibration_and_comes_back_equal(make_calibration: Make, gpu: Topology) -> None:
    found = plan(gpu, of(make_calibration, gpu, GPU_SECTIONS))
    assert loads(dumps(found)) == found
    sources = {rate.name: rate.source for rate in found.calibration.rates}
    assert sources["products"] == sources["context"] == sources["host_to_device"] == "measured 2026-11-30"
    assert sources["layer_pass"] == sources["logit_bytes"] == "table"
    values = {rate.name: rate.value for rate in found.calibration.rates}
    assert values["products"] == 2e14
    assert values["memory"] == pytest.approx(8e11)
    assert values["dequantise"] == 5e10
    assert "Rates    measured on 2026-11-30 (/c.json)" in explain(found)
    assert "Rates of a rank" in explain_estimate(found)


def test_without_one_the_estimate_says_that_tables_speak(gpu: Topology) -> None:
    found = plan(gpu)
    assert found.calibration is None
    assert "`trainmaster bench` measures" in explain_estimate(found)
    assert "Rates" not in explain(found)


def test_an_unknown_card_is_known_once_it_is_measured(make_calibration: Make, gpu: Topology) -> None:
    host = gpu.hosts[0]
    card = replace(host.devices[0], name="Card of tomorrow")
    machine = replace(gpu, hosts=(replace(host, devices=(card,)),))
    assert any("no peak rates are known" in text for text in plan(machine).warnings)
    assert not any("no peak" in text for text in plan(machine, of(make_calibration, machine, GPU_SECTIONS)).warnings)


def test_more_threads_than_measured_count_as_in_the_tables(make_calibration: Make) -> None:
    calibration = make_calibration({"gemm": {"fp32.256": 1e10}}, threads=1)
    rates = [
        with_calibration(replace(MACHINE, cores=cores), calibration, "fp32").measured.products_at(256)
        for cores in (0.5, 1.0, 2.0)
    ]
    assert rates == pytest.approx([0.5e10, 1e10, 1.3e10])


def test_a_file_of_gpus_says_nothing_of_cpu_ranks(make_calibration: Make) -> None:
    assert with_calibration(MACHINE, make_calibration(CPU_SECTIONS, threads=0), "fp32") == MACHINE


@given(
    points=st.dictionaries(st.integers(1, 10**5), st.floats(1e6, 1e15), min_size=1, max_size=4),
    width=st.integers(1, 10**6),
)
def test_a_rate_lies_between_its_neighbours(points: dict[int, float], width: int) -> None:
    table = tuple(sorted(points.items()))
    rate = MeasuredRates(products=table).products_at(width)
    below = [value for at, value in table if at <= width][-1:] or [table[0][1]]
    above = [value for at, value in table if at >= width][:1] or [table[-1][1]]
    assert min(below + above) * 0.999 <= rate <= max(below + above) * 1.001
    if width in points:
        assert rate == pytest.approx(points[width])
