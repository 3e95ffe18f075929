from __future__ import annotations

import pickle

from topology.errors import TopologyError
from topology.units import GIB, format_bytes, format_rate, format_seconds


def test_bytes_print_as_gib_and_small_ones_keep_their_digits() -> None:
    assert [format_bytes(n) for n in (24 * GIB, 0, GIB // 8)] == ["24.0 GiB", "0.0 GiB", "0.125 GiB"]


def test_rates_print_in_powers_of_ten() -> None:
    assert [format_rate(n) for n in (300e9, 125e6)] == ["300.0 GB/s", "0.125 GB/s"]


def test_seconds_take_the_unit_that_fits() -> None:
    assert [format_seconds(n) for n in (2.5, 0.0125, 3.2e-6, 0)] == ["2.50 s", "12.50 ms", "3.20 us", "0.00 s"]


def test_an_error_tells_its_three_parts_and_survives_pickling() -> None:
    error = TopologyError(asked="a file", problems=("no a", "no b"), remedy="write it")
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) == "asked: a file; found: no a; no b; do: write it"
    assert again.problems == ("no a", "no b")
