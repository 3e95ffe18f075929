"""Pairs that links tell are added, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topology.complete import completed, nvlink_counts
from topology.judge import contradictions
from topology.model import Link, Switch, SwitchKind
from topology.presets import preset, preset_names
from topology.probe.smi import parse_smi


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in {"gb200_nvl72", "cpu"}])
def test_pairs_that_are_left_out_come_back(name: str) -> None:
    whole = preset(name)
    found = completed(replace(whole, pairs=()))
    kinds = [{frozenset((pair.a, pair.b)): pair.kind for pair in one.pairs} for one in (whole, found)]
    assert kinds[0] == kinds[1]


def test_pairs_that_are_there_stay() -> None:
    whole = preset("8xh100")
    assert completed(whole) is whole
    one = replace(whole, pairs=(replace(whole.pairs[0], kind="SYS"),))
    assert completed(one).pairs[0] == one.pairs[0]


def _matrix(sizes: tuple[int, ...], links: int) -> str:
    """The text of nvidia-smi of a machine with islands of these sizes, a socket each."""
    island = [at for at, size in enumerate(sizes) for _ in range(size)]
    names = [f"GPU{at}" for at in range(len(island))]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for a, name in enumerate(names):
        cells = [" X " if a == b else f"NV{links}" if island[a] == island[b] else "SYS" for b in range(len(names))]
        lines.append("\t".join([name, *cells, f"{8 * island[a]}-{8 * island[a] + 7}", str(island[a])]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("sizes", "links"), [((4, 4), 12), ((4, 4), 18), ((2, 2), 4), ((8, 8), 6), ((4, 4, 4), 12)])
def test_islands_without_links_between_them_are_no_contradiction(sizes: tuple[int, ...], links: int) -> None:
    topology = parse_smi(_matrix(sizes, links), host="h")
    assert not contradictions(topology)
    assert tuple(map(len, topology.islands)) == sizes
    counts = nvlink_counts(topology)
    inside = {frozenset((pair.a, pair.b)) for pair in topology.pairs if pair.is_nvlink}
    assert {ends for ends, number in counts.items() if number} == inside
    assert set(counts.values()) == {links}


def test_switches_that_are_joined_are_one_fabric() -> None:
    """Four GPUs behind two switches: two each, or all on both."""
    one = parse_smi(_matrix((4,), 12), host="h")
    a, b = (Switch(id=f"s{at}", kind=SwitchKind.nvswitch, host=one.hosts[0].name) for at in range(2))
    gpus = [device.id for device in one.gpus]

    def counts(*links: tuple[str, str, int]) -> dict[frozenset[str], int]:
        wires = tuple(Link(a=x, b=y, kind=f"NV{n}", source="drawn") for x, y, n in links)
        return nvlink_counts(replace(one, switches=(*one.switches, a, b), links=wires, pairs=()))

    apart = [(gpu, "s0" if at < 2 else "s1", 6) for at, gpu in enumerate(gpus)]
    assert counts(*apart) == {frozenset(gpus[:2]): 6, frozenset(gpus[2:]): 6}
    assert set(counts(*apart, ("s0", "s1", 36)).values()) == {6}
    assert len(counts(*apart, ("s0", "s1", 36))) == 6
    both = [(gpu, switch, 5 if gpu == gpus[0] and switch == "s0" else 6) for gpu in gpus for switch in ("s0", "s1")]
    found = counts(*both)
    assert {found[ends] for ends in found if gpus[0] in ends} == {11}
    assert {found[ends] for ends in found if gpus[0] not in ends} == {12}


def test_links_that_the_labels_deny_are_still_found() -> None:
    whole = parse_smi(_matrix((4,), 12), host="h")
    (first, *rest) = whole.pairs
    assert contradictions(replace(whole, pairs=(replace(first, kind="SYS"), *rest)))
