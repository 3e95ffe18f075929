"""plan.json: exact both ways, stable keys, and a hash that notices edits."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import AdapterConfig, BatchConfig, Engine, EngineConfig
from orchestrator.errors import UserError
from orchestrator.planner.plan import Plan, dumps, from_json, loads, to_json

Planner = Callable[..., Plan]


@settings(max_examples=6, deadline=None)
@given(
    machine=st.sampled_from(["1x24gb", "2x24gb-node", "4xv100-16gb", "8xa100-80gb", "cpu"]),
    engine=st.sampled_from(list(Engine)),
    rows=st.integers(8, 40),
    rank=st.integers(1, 64),
)
def test_round_trip_is_exact(plan_for: Planner, machine: str, engine: Engine, rows: int, rank: int) -> None:
    plan = plan_for(
        "tiny",
        machine,
        engine=EngineConfig(name=engine),
        batch=BatchConfig(global_=rows),
        adapter=AdapterConfig(rank=rank),
    )
    again = loads(dumps(plan))
    assert again == plan
    assert again.plan_hash == plan.plan_hash
    assert again.run_config == plan.run_config


def test_documented_keys(plan_for: Planner) -> None:
    data = to_json(plan_for("8b", "2x24gb-pcie", tokens=2048))
    assert {"schema", "run_id", "config", "chosen", "ranked", "rejected", "reasons", "warnings"} <= set(data)
    assert {"topology_fingerprint", "device_kind", "plan_hash", "workload"} <= set(data)
    assert data["chosen"] == data["ranked"][0]
    for entry in data["ranked"]:
        assert {"strategy", "memory", "step_seconds", "tokens_per_second"} <= set(entry)
        for phase in ("load", "train", "save"):
            assert {"allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes", "terms"} <= set(
                entry["memory"][phase]
            )
            assert all(set(term) == {"name", "bytes", "why"} for term in entry["memory"][phase]["terms"])
    assert all(set(entry) == {"strategy", "reason"} for entry in data["rejected"])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda data: data | {"schema": 9}, "schema 9"),
        (lambda data: data | {"run_id": "other"}, "edited or cut"),
        (lambda data: {key: value for key, value in data.items() if key != "plan_hash"}, "edited or cut"),
        (lambda _data: [], "schema 'list'"),
    ],
)
def test_edits_are_noticed(plan_for: Planner, edit: Callable[[dict[str, object]], object], words: str) -> None:
    data = json.loads(dumps(plan_for("tiny", "cpu")))
    with pytest.raises(UserError, match=words):
        from_json(edit(data))


def test_text_that_is_no_json() -> None:
    with pytest.raises(UserError, match="no JSON"):
        loads("{")
