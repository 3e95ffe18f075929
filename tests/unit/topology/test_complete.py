"""Pairs that links tell are added, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topology.complete import completed
from topology.presets import preset, preset_names


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
