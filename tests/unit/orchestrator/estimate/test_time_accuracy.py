"""Step times against published ones, where the records are at hand."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_BENCH = Path(__file__).resolve().parents[4] / "bench"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(_BENCH))
    try:
        module = import_module("time_accuracy")
    finally:
        sys.path.remove(str(_BENCH))
    if not module.RECORDS.is_file():
        pytest.skip("the file of published records is not here")
    return module


@pytest.fixture(scope="module")
def results(bench: ModuleType) -> Any:
    return bench.compare(bench.read_records())


def test_uncalibrated_errors(bench: ModuleType, results: Any) -> None:
    compared, left = results
    assert bench.median_error(one.error for one in compared) <= 0.10
    assert len(compared) >= 130
    assert all(one.reason for one in left)


def test_one_factor_per_machine(bench: ModuleType, results: Any) -> None:
    machines = {name: rows for name, rows in bench.machines_of(results[0]).items() if len(rows) >= bench.MIN_RECORDS}
    assert len(machines) >= 7
    errors = {name: bench.median_error(bench.calibrated_errors(rows)) for name, rows in machines.items()}
    assert {name: error for name, error in errors.items() if error > 0.10} == {}
    uncalibrated = {name: bench.median_error(one.error for one in rows) for name, rows in machines.items()}
    assert {name: error for name, error in uncalibrated.items() if error > 0.20} == {}


def test_bounds_hold_most_records(results: Any) -> None:
    compared = results[0]
    assert sum(one.inside for one in compared) >= 0.93 * len(compared)


def test_the_page_names_every_record(bench: ModuleType, results: Any) -> None:
    compared, left = results
    page = bench.markdown(compared, left)
    assert all(one.reading.id in page for one in compared)
    assert all(one.id in page for one in left)
