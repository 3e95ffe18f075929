"""What compress=auto decides, machine by machine: gain, break-even rate and reason. Nothing is run.

The command is `python bench/compress_auto.py`; it prints a table in Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.config import (
    AdapterConfig,
    BatchConfig,
    Compress,
    CompressConfig,
    DataConfig,
    Engine,
    EngineConfig,
    ModelConfig,
    RunConfig,
)
from orchestrator.errors import UserError
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.model import Topology
from topology.network.spec import NetworkKind, NetworkSpec
from topology.presets import preset

_COMMON = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 8192}
_MODELS = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
_TOKENS = 1024
_LOADS = (("8B", 16, 1), ("8B", 16, 8), ("70B", 64, 1))  # model, adapter.rank, accumulation
_BYTES_PER_GBIT = 1e9 / 8


def machines() -> Iterator[tuple[str, Topology, int]]:
    """Yield name, machine and ranks."""
    yield "NVLink box, 8 x H100", preset("dgx_h100"), 8
    yield "PCIe box, 8 x L40S", preset("pcie_l40s_x8"), 8
    for gbit in (100, 10, 1):
        spec = NetworkSpec(kind=NetworkKind.flat, bytes_per_second=gbit * _BYTES_PER_GBIT)
        yield f"2 hosts of 8 x L40S, {gbit} Gb/s ports", preset("pcie_l40s_x8", nodes=2, network=spec), 16


def plan_of(topology: Topology, ranks: int, model: str, rank: int, accumulation: int) -> Plan:
    """Plan ddp on all ranks, one row of a rank in a forward pass."""
    config = RunConfig(
        model=ModelConfig(path=model),
        data=DataConfig(path="rows.jsonl"),
        adapter=replace(AdapterConfig(), rank=rank),
        batch=BatchConfig(global_=ranks * accumulation, micro=1),
        engine=EngineConfig(name=Engine.ddp),
        compress=CompressConfig(name=Compress.auto),
        devices=ranks,
        nodes=len(topology.hosts),
    )
    rows = DataStats(
        rows=10_000,
        eval_rows=50,
        mean_tokens=_TOKENS,
        max_tokens=_TOKENS,
        total_tokens=10_000 * _TOKENS,
        source="assumed",
    )
    shape = shape_from_config(model, {**_COMMON, **_MODELS[model]})
    return make_plan(config, topology, shape, rows, "compress-auto")


def main() -> int:
    """Print the table."""
    print("| machine | load | decision | step, dense | gain | break-even | residual |")
    print("|---|---|---|---|---|---|---|")
    for name, topology, ranks in machines():
        for model, rank, accumulation in _LOADS:
            load = f"{model} r={rank}, accumulation {accumulation}"
            try:
                found = plan_of(topology, ranks, model, rank, accumulation).chosen.strategy.compression
            except UserError:
                print(f"| {name} | {load} | ddp does not fit | | | | |")
                continue
            if found is None or found.step_seconds is None or found.gain_seconds is None:
                continue
            even = found.break_even_bytes_per_second
            rate = "any rate" if even is None else f"{even / 1e9:.3g} GB/s"
            decision = f"on ({found.exchange.value})" if found.kind.value == "topk" else f"off ({found.exchange.value})"
            print(
                f"| {name} | {load} | {decision} | {found.step_seconds:.3g} s "
                f"| {found.gain_seconds * 1e3:+.4g} ms, {found.gain_seconds / found.step_seconds:+.1%} "
                f"| {rate} | {found.residual_bytes / 2**20:.0f} MiB |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
