"""Cases from JSON: what cannot be simulated is told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.simulate.case import Case, read_case

GOOD: dict[str, Any] = {"model": {"model_type": "llama"}, "micro": 1, "tokens": 8, "rank": 4}


def _read(tmp_path: Path, body: object) -> Case:
    path = tmp_path / "case.json"
    path.write_text(json.dumps(body))
    return read_case(path)


def test_defaults_are_those_of_our_own_runs(tmp_path: Path) -> None:
    case = _read(tmp_path, {**GOOD, "targets": ["q_proj"]})
    assert (case.stack, case.checkpointing, case.quant, case.targets) == ("trl", "full", "nf4", ("q_proj",))


def test_all_bad_values_come_together(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        _read(tmp_path, {**GOOD, "model": {}, "micro": 0, "tokens": 1.5, "stack": "other", "quant": "int8"})
    assert {problem.where for problem in error.value.problems} == {"model", "micro", "tokens", "stack", "quant"}


@pytest.mark.parametrize(
    "changes", [{"recomputed": 0}, {"recomputed": True}, {"recomputed": 2, "checkpointing": "none"}]
)
def test_a_part_of_the_layers_needs_checkpointing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert _read(tmp_path, {**GOOD, "recomputed": 2}).recomputed == 2
    with pytest.raises(UserError) as error:
        _read(tmp_path, {**GOOD, **changes})
    assert [problem.where for problem in error.value.problems] == ["recomputed"]


@pytest.mark.parametrize("body", [[], {}, 3, {**GOOD, "micros": 2}, None])
def test_missing_and_unknown_keys_are_named(tmp_path: Path, body: object) -> None:
    with pytest.raises(UserError, match=r"missing|unknown"):
        _read(tmp_path, body)


def test_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(b"\xff{")
    with pytest.raises(UserError):
        read_case(path)
    with pytest.raises(UserError):
        read_case(tmp_path / "none.json")
