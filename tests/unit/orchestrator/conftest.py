"""Builders for the planner's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config import DataConfig, ModelConfig, RunConfig
from orchestrator.errors import UserError
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.model import Topology
from topology.presets import preset

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
        "max_position_embeddings": 1024,
    },
    "7b": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
}


@pytest.fixture(scope="session")
def fresh_plan_for() -> Callable[..., Plan]:
    """Return a planner of a named model on a named machine; keyword arguments replace fields of RunConfig."""

    def build(model: str, machine: str | Topology, *, tokens: int = 512, run_id: str = "run", **changes: Any) -> Plan:
        config = RunConfig(model=ModelConfig(path=model), data=DataConfig(path="rows.jsonl"))
        stats = DataStats(
            rows=1000,
            eval_rows=50,
            mean_tokens=tokens / 2,
            max_tokens=tokens,
            total_tokens=500 * tokens,
            source="counted",
        )
        topology = preset(machine) if isinstance(machine, str) else machine
        shape = shape_from_config(model, {"model_type": "llama", **MODELS[model]})
        return make_plan(replace(config, **changes), topology, shape, stats, run_id)

    return build


@pytest.fixture(scope="session")
def plan_for(fresh_plan_for: Callable[..., Plan]) -> Callable[..., Plan]:
    """The same, once for each question: plans are values, and many tests ask for the same one."""
    known: dict[object, Plan | UserError] = {}

    def build(model: str, machine: str | Topology, **changes: Any) -> Plan:
        key = (model, machine, tuple(sorted(changes.items())))
        if key not in known:
            try:
                known[key] = fresh_plan_for(model, machine, **changes)
            except UserError as error:
                known[key] = error
        found = known[key]
        if isinstance(found, UserError):
            raise found.with_traceback(None)
        return found

    return build
