"""Readings of healthy runs, to which tests add faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding
from orchestrator.monitor.readings import DeviceReading, RankReading

GIB = 2**30


def rank(step: int, at: int = 0, **values: Any) -> RankReading:
    """One rank's step of one second, as of a healthy run."""
    usual: dict[str, Any] = {
        "time": 1e9 + step,
        "rank": at,
        "host": 0,
        "step": step,
        "step_seconds": 1.0,
        "busy_seconds": 0.9,
        "communication_seconds": 0.05,
        "tokens": 4096.0,
        "rows": 4,
        "loss": 2.0,
        "grad_norm": 1.0,
        "device_bytes": 10 * GIB,
        "host_bytes": 4 * GIB,
    }
    return RankReading(**{**usual, **values})


def device(second: float, **values: Any) -> DeviceReading:
    """A GPU under load, as of a healthy run, with all its counters at rest."""
    usual: dict[str, Any] = {
        "time": 1e9 + second,
        "device": "gpu0",
        "host": 0,
        "utilisation": 0.98,
        "throttle_reasons": 0,
        "throttle_ns": tuple((name, 0) for name in ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")),
        "pcie_generation": 4,
        "pcie_width": 16,
        "max_pcie_generation": 4,
        "max_pcie_width": 16,
        "pcie_replays": 0,
        "nvlink_errors": 0,
        "ecc_uncorrected": 0,
        "recovery_action": 0,
    }
    return DeviceReading(**{**usual, **values})


def feed(begin: Any, update: Callable[..., Any], readings: Iterable[Any], facts: Facts | None = None) -> list[Finding]:
    """Put readings through one detector."""
    state, found = begin, []
    for reading in readings:
        state, more = update(state, reading, facts or Facts())
        found += more
    return found


def kinds(found: Sequence[Finding]) -> list[str]:
    """Names of what was found."""
    return [one.kind.value for one in found]


def chance(seed: int) -> random.Random:
    """Chance that comes out the same each time."""
    return random.Random(seed)


@pytest.fixture(scope="session")
def made() -> SimpleNamespace:
    """The builders."""
    return SimpleNamespace(rank=rank, device=device, feed=feed, kinds=kinds, chance=chance, GIB=GIB)
