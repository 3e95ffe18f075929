"""What `route` answers, as a document and as text."""

from __future__ import annotations

import json

import pytest

from orchestrator.route.answer import answer, size_text, to_json, to_text
from orchestrator.route.ask import Asked
from orchestrator.route.places import group_json, group_of, group_text, pair_json, pair_of, pair_text
from topology.collectives import Collective
from topology.graph import graph_of
from topology.presets import preset

MACHINE = preset("dgx1_v100")
SIZES = (2**20, 2**30)


def question(count: int = 0, pair: tuple[str, ...] = ()) -> Asked:
    """Two collectives in two sizes."""
    collectives = (Collective.all_reduce, Collective.all_to_all)
    return Asked(devices=(), count=count, collectives=collectives, sizes=SIZES, pair=pair)


def test_document_has_the_contract() -> None:
    body = json.loads(json.dumps(to_json(answer(graph_of(MACHINE), question()))))
    assert {"collective", "bytes", "ranks", "chosen", "bound", "alternatives", "routes"} <= body.keys()
    assert {"algorithm", "phases", "seconds", "bus_bytes_per_second"} <= body["chosen"].keys()
    assert {"seconds", "bus_bytes_per_second", "cut"} == body["bound"].keys()
    assert body["bytes"] == 2**30
    assert body["collective"] == "all_reduce"
    assert len(body["ranks"]) == 8
    assert [(route["collective"], route["bytes"]) for route in body["routes"]] == [
        (name, size) for name in ("all_reduce", "all_to_all") for size in SIZES
    ]


def test_text_says_what_limits() -> None:
    text = to_text(answer(graph_of(MACHINE), question()))
    assert "all_reduce over 8 devices" in text
    assert "150.0 GB/s" in text
    assert "of what the wires allow" in text
    assert "flow with relay" in text


def test_best_four_of_a_cube_mesh() -> None:
    group = group_of(MACHINE, question(count=4))
    indices = sorted(MACHINE.gpus.index(next(gpu for gpu in MACHINE.gpus if gpu.id == name)) for name in group.devices)
    assert indices in ([0, 1, 2, 3], [4, 5, 6, 7])
    listed = group_json(group)
    rates = [one["all_gather_bus_bytes_per_second"] for one in listed]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] / rates[-1] > 5
    assert "groups of 4 devices" in group_text(MACHINE, group)


@pytest.mark.parametrize("far", [1, 5])
def test_pairs_are_explained(far: int) -> None:
    pair = (MACHINE.gpus[0].id, MACHINE.gpus[far].id)
    score = pair_of(MACHINE, (), pair)
    body = pair_json(score, pair)
    assert body["level"] == ("NV" if far == 1 else "SYS")
    assert body["bytes_per_second"] == (25e9 if far == 1 else 15_754e6)
    assert body["text"] in pair_text(score)


@pytest.mark.parametrize(("size", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (2**20, "1 MiB"), (2**30, "1 GiB")])
def test_sizes_read_well(size: int, text: str) -> None:
    assert size_text(size) == text
