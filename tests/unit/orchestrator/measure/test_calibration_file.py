"""The file: exact both ways, and never a traceback whatever is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.calibration_file import Calibration, Measured, Section, dumps, loads, merged, to_json
from orchestrator.errors import UserError

Make = Callable[..., Calibration]
SECTIONS = {"gemm": {"fp32.256": 3e10, "fp32.1024": 4e10}, "stack": {"trl.logit_bytes": 2.0}}
_TEXT = st.text(min_size=1, max_size=8)
_MEASURED = st.builds(
    Measured,
    name=_TEXT,
    value=st.floats(min_value=1e-9, max_value=1e5),
    unit=_TEXT,
    repeats=st.integers(1, 1000),
    spread=st.floats(0, 1e3),
    how=st.text(max_size=8),
    device=st.text(max_size=8),
)
_DAY = st.dates().map(lambda day: day.isoformat())
_SECTION = st.builds(
    Section,
    name=_TEXT,
    made=_DAY,
    measured=st.lists(_MEASURED, max_size=3, unique_by=lambda item: (item.name, item.device)).map(tuple),
)
_CALIBRATION = st.builds(
    Calibration,
    made=_DAY,
    fingerprint=st.text(max_size=8),
    hosts=st.lists(_TEXT, max_size=2).map(tuple),
    devices=st.lists(_TEXT, max_size=2).map(tuple),
    versions=st.dictionaries(_TEXT, _TEXT, max_size=2).map(lambda found: tuple(found.items())),
    ranks=st.integers(0, 64),
    threads=st.integers(0, 64),
    sections=st.lists(_SECTION, max_size=3, unique_by=lambda section: section.name).map(tuple),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(_CALIBRATION)
def test_what_is_written_is_read(calibration: Calibration) -> None:
    assert loads(dumps(calibration), "file") == calibration


def _paths(body: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(body) if isinstance(body, dict) else list(range(len(body))) if isinstance(body, list) else []
    return [path for key in keys for path in ((*at, key), *_paths(body[key], (*at, key)))]


@given(data=st.data(), value=_JSON)
def test_any_value_anywhere_is_read_or_refused_in_a_line(make_calibration: Make, data: Any, value: object) -> None:
    body = to_json(make_calibration(SECTIONS))
    path = data.draw(st.sampled_from(_paths(body)))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        read = loads(json.dumps(body), "calibration=c.json")
    except UserError as error:
        (problem,) = error.problems
        assert problem.where.startswith("calibration=c.json")
        assert problem.found
        assert "trainmaster" in problem.remedy
    else:
        assert loads(dumps(read), "again") == read


@given(cut=st.integers(0, 400))
def test_a_cut_file_is_refused(make_calibration: Make, cut: int) -> None:
    text = dumps(make_calibration(SECTIONS)).strip()
    with pytest.raises(UserError, match="no JSON"):
        loads(text[: min(cut, len(text) - 1)], "c.json")


def test_each_damage_is_told_with_its_place(make_calibration: Make) -> None:
    body = to_json(make_calibration(SECTIONS))
    body["sections"]["gemm"]["measured"][1]["value"] = "fast"
    with pytest.raises(UserError, match=r"sections\.gemm\.measured\[1\]\.value: found 'fast', not a number"):
        loads(json.dumps(body), "c.json")
    body["sections"]["gemm"]["measured"][1]["value"] = -1.0
    with pytest.raises(UserError, match=r"sections\.gemm\.measured\[1\]: fp32.1024 is -1.0, not a number above 0"):
        loads(json.dumps(body), "c.json")


def test_a_later_version_is_refused_by_name(make_calibration: Make) -> None:
    body = {**to_json(make_calibration(SECTIONS)), "schema": 7}
    with pytest.raises(UserError, match="schema 7, and this version reads up to 1") as found:
        loads(json.dumps(body), "c.json")
    assert "Update" in found.value.problems[0].remedy


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", "null", '{"schema": 1, "sections": {}, "made": "today"}'])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        loads(text, "c.json")


def test_later_measurements_replace_whole_sections(make_calibration: Make) -> None:
    old = make_calibration({"gemm": {"a": 1.0, "b": 2.0}, "memory": {"copy": 3.0}}, day="2026-11-01")
    new = make_calibration({"gemm": {"a": 5.0}}, day="2026-11-30")
    both = merged(old, new)
    assert both.find("gemm", "a", "Card").value == 5.0
    assert both.find("gemm", "b", "Card") is None
    assert both.find("memory", "copy", "Card").value == 3.0
    assert (both.made, both.section("memory").made) == ("2026-11-30", "2026-11-01")


@pytest.mark.parametrize(
    "changes", [{"fingerprint": "e"}, {"versions": (("torch", "9"),)}, {"ranks": 1}, {"threads": 2}], ids=str
)
def test_nothing_is_kept_of_another_machine_or_library(make_calibration: Make, changes: dict[str, Any]) -> None:
    old, new = make_calibration({"memory": {"copy": 3.0}}, **changes), make_calibration({"gemm": {"a": 5.0}})
    assert merged(old, new) == new


@pytest.mark.parametrize(
    "unit", ["bytes/s", "FLOP/s", "weights/s", "s", "share", "bytes", "bytes a piece", "bytes a logit"]
)
@pytest.mark.parametrize("value", [1e300, 1e-300, 0, -1.0, float("nan"), float("inf"), 10**400], ids=range(7))
def test_numbers_no_machine_reaches_are_refused_by_name(make_calibration: Make, unit: str, value: float) -> None:
    body = to_json(make_calibration(SECTIONS))
    body["sections"]["gemm"]["measured"][1] |= {"unit": unit, "value": value}
    with pytest.raises(UserError) as caught:
        loads(json.dumps(body), "mine.json")
    assert "mine.json: sections.gemm.measured[1]" in str(caught.value)
    body["sections"]["gemm"]["measured"][1] |= {"value": 3.0}
    loads(json.dumps(body), "mine.json")
    body["sections"]["gemm"]["measured"][1] |= {"spread": 1e9}
    with pytest.raises(UserError, match=r"measured\[1\].*spread of 1e\+09"):
        loads(json.dumps(body), "mine.json")
