"""Levers for people and scripts."""

from __future__ import annotations

import json

from orchestrator.environment.given import SHELL, Setting, UserEnvironment
from orchestrator.environment.harm import harms
from orchestrator.environment.lever import levers
from orchestrator.environment.present import levers_json, levers_text, places_of
from topology.presets import preset

USERS = UserEnvironment(
    settings=(
        Setting(name="NCCL_DEBUG", value="INFO", source=SHELL),
        Setting(name="NCCL_P2P_DISABLE", value="1", source="/etc/nccl.conf"),
    )
)


def test_the_text_tells_whose_setting_stands() -> None:
    topology = preset("dgx_h100", nodes=2)
    text = levers_text(levers(topology, (), USERS), harms(USERS), places=places_of(topology))
    assert "yours    NCCL_DEBUG=WARN" in text
    assert "yours stands: NCCL_DEBUG=INFO (environment)" in text
    assert "set      NCCL_IB_HCA==mlx5_0:1" in text
    assert "mlx5_3: dgx-h100-1/1, dgx-h100-2/1" in text
    assert "NCCL_P2P_DISABLE=1 (/etc/nccl.conf): it ends copies over NVLink" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_large_cluster_stays_short() -> None:
    topology = preset("dgx_h100", nodes=64)
    text = levers_text(levers(topology, (), USERS), places=places_of(topology))
    assert len(text.splitlines()) < 60


def test_the_document_has_every_field() -> None:
    topology = preset("4xv100-16gb")
    found = levers(topology, (), USERS)
    body = json.loads(json.dumps(levers_json(found, harms(USERS))))
    assert [entry["name"] for entry in body["levers"]] == [lever.name for lever in found]
    debug = next(entry for entry in body["levers"] if entry["name"] == "NCCL_DEBUG")
    assert (debug["value"], debug["applies"], debug["overridden_by"]) == ("WARN", True, "NCCL_DEBUG=INFO (environment)")
    assert body["warnings"][0]["source"] == "/etc/nccl.conf"
