"""What gradients take on the links, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import Engine
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.time_moves import moves_of, trained_bytes
from orchestrator.estimate.time_practice import practice_of

Make = Callable[..., Setting]
_TREES, _RING = 40e9, 10e9


def _reduce_seconds(setting: Setting) -> float:
    """Of one reduction of all gradients, over links without latency whose all-reduce is faster than a ring."""
    machine = replace(
        setting.machine,
        link_bytes_per_second=_TREES,
        gather_bytes_per_second=_RING,
        link_alpha_seconds=0.0,
        gather_alpha_seconds=0.0,
    )
    found = moves_of(replace(setting, machine=machine), practice_of(setting.stack))
    return found.reduce_seconds * found.groups


def test_copies_reduce_at_the_all_reduce_s_rate(make_setting: Make) -> None:
    setting = make_setting(engine=Engine.ddp, world_size=4, machine="gpu")
    assert _reduce_seconds(setting) == pytest.approx(2 * 3 / 4 * trained_bytes(setting) / _TREES)


def test_shards_reduce_at_the_ring_s_rate(make_setting: Make) -> None:
    """Trees and sums in a switch serve an all-reduce; a reduce-scatter goes round the ring, as a gather does."""
    setting = make_setting(engine=Engine.zero3, world_size=4, machine="gpu")
    assert _reduce_seconds(setting) == pytest.approx(3 / 4 * trained_bytes(setting) / _RING)


def test_gloo_scatters_as_it_reduces(make_setting: Make) -> None:
    setting = make_setting(engine=Engine.zero3, world_size=4)
    assert _reduce_seconds(setting) == pytest.approx(3 / 4 * trained_bytes(setting) / _TREES)
