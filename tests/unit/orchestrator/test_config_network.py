"""A described network needs its kind: numbers alone would be dropped without a word."""

from __future__ import annotations

import pytest

from orchestrator.config_codec import parse_config
from orchestrator.errors import UserError

RAW = {"model": {"path": "m"}, "data": {"path": "d"}}
NUMBERS = {"port_gbit": 10.0, "hosts_per_leaf": 4, "oversubscription": 2.0, "rails": 2}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_without_a_kind_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"network\.{name}: network=auto .* has no effect"):
        parse_config({**RAW, "network": {name: NUMBERS[name]}})


def test_all_numbers_go_with_a_kind() -> None:
    found = parse_config({**RAW, "network": {"kind": "leaf_spine", **NUMBERS}}).network
    assert {name: getattr(found, name) for name in NUMBERS} == NUMBERS
