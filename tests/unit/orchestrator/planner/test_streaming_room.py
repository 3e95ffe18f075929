"""The room that is left for streamed layers: what fills it must fit by the estimate's own sums."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import EngineConfig
from orchestrator.estimate.values import Memory, PhaseMemory
from orchestrator.planner import streaming_ground
from topology.units import GIB

SLACK = 1.06
CONTEXT_BYTES = 487_123_456


def _phase(allocated_bytes: int) -> PhaseMemory:
    """As the estimate rounds it."""
    reserved = round(allocated_bytes * SLACK)
    return PhaseMemory(
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved,
        device_bytes=reserved + CONTEXT_BYTES,
        host_bytes=GIB,
        terms=(),
        host_terms=(),
    )


@given(st.integers(GIB // 16, 20 * GIB), st.integers(24 * GIB, 80 * GIB))
def test_what_fills_the_room_fits(rest: int, limit: int) -> None:
    machine = SimpleNamespace(is_gpu=True)
    ranks: Any = SimpleNamespace(budget_bytes=None, host_bytes=64 * GIB, machine=machine, ceilings=())
    memory = Memory(load=_phase(GIB // 32), train=_phase(rest), save=_phase(GIB))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming_ground, "device_limit_bytes", lambda _ranks, _phase: limit)
        room = streaming_ground._room(ranks, memory, EngineConfig(), is_gpu=True, staging=0, tiers=True)
    assert 0 <= limit - _phase(rest + room.device).device_bytes <= 8192
