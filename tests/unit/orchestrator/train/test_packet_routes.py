"""Who moves the packets of sparse gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.compress.transport import Library
from orchestrator.config import Compress, CompressConfig, Engine, EngineConfig, GradientRoute
from orchestrator.errors import UserError
from orchestrator.planner.plan import Plan
from orchestrator.train.packet_routes import packet_transport
from topology.codec import to_json
from topology.presets import preset

MACHINE = "pcie_a40_x4"


def _plan(plan_for: Callable[..., Plan], route: GradientRoute, compress: Compress = Compress.topk) -> Plan:
    engine = EngineConfig(name=Engine.ddp, gradient_route=route)
    return plan_for("tiny", MACHINE, engine=engine, compress=CompressConfig(name=compress), devices=4)


def _group(size: int) -> Any:
    return SimpleNamespace(world_size=size, gather=lambda value: [value] * size)


@pytest.mark.parametrize(
    ("route", "compress", "size"),
    [
        (GradientRoute.auto, Compress.topk, 4),
        (GradientRoute.builtin, Compress.topk, 4),
        (GradientRoute.executor, Compress.none, 4),
        (GradientRoute.executor, Compress.topk, 3),
    ],
)
def test_the_library_unless_asked_for(
    plan_for: Callable[..., Plan], tmp_path: Path, route: GradientRoute, compress: Compress, size: int
) -> None:
    assert packet_transport(_plan(plan_for, route, compress), tmp_path, _group(size)) is Library


def test_routes_where_asked_for(plan_for: Callable[..., Plan], tmp_path: Path) -> None:
    (tmp_path / "topology.json").write_text(json.dumps(to_json(preset(MACHINE))))
    assert packet_transport(_plan(plan_for, GradientRoute.executor), tmp_path, _group(4)) is not Library


def test_another_machine_is_a_users_error(plan_for: Callable[..., Plan], tmp_path: Path) -> None:
    (tmp_path / "topology.json").write_text(json.dumps(to_json(preset("1x24gb"))))
    with pytest.raises(UserError):
        packet_transport(_plan(plan_for, GradientRoute.executor), tmp_path, _group(4))
