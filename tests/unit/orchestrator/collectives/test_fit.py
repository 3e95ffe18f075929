from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.collectives.fit import Sample, fit_links
from orchestrator.errors import UserError

_SIZES = (64, 4096, 1 << 20, 1 << 26)


@given(alpha=st.floats(1e-6, 1e-2), rate=st.floats(1e6, 1e12))
def test_a_line_is_found_again(alpha: float, rate: float) -> None:
    fits = fit_links(Sample(link="net", size_bytes=n, seconds=alpha + n / rate) for n in _SIZES)
    assert fits["net"].worst_error < 1e-6
    assert fits["net"].seconds(1 << 26) == pytest.approx(alpha + (1 << 26) / rate, rel=1e-6)


def test_one_slow_run_of_three_changes_nothing_and_links_stay_apart() -> None:
    steady = [Sample(link="net", size_bytes=n, seconds=1e-3 + n / 25e6) for n in _SIZES for _ in range(2)]
    hiccup = [Sample(link="net", size_bytes=n, seconds=9.0) for n in _SIZES]
    memory = [Sample(link="memory", size_bytes=n, seconds=1e-5 + n / 2e9) for n in _SIZES]
    fits = fit_links([*steady, *hiccup, *memory])
    assert fits["net"].bytes_per_second == pytest.approx(25e6, rel=1e-6)
    assert fits["net"].alpha_seconds == pytest.approx(1e-3, rel=1e-6)
    assert fits["net"].samples == 12
    assert fits["memory"].bytes_per_second == pytest.approx(2e9, rel=1e-6)


def test_a_line_that_bends_says_how_much() -> None:
    fits = fit_links(Sample(link="x", size_bytes=n, seconds=s) for n, s in ((1, 1.0), (2, 1.0), (4, 2.0)))
    assert 0.05 < fits["x"].worst_error < 0.4


def test_what_cannot_be_fitted_is_told_all_at_once() -> None:
    one = Sample(link="one", size_bytes=5, seconds=1.0)
    zero = [Sample(link="zero", size_bytes=n, seconds=0.0) for n in (1, 2)]
    with pytest.raises(UserError) as told:
        fit_links([one, *zero])
    assert [problem.where for problem in told.value.problems] == ["one", "zero"]
    with pytest.raises(UserError, match="do not grow"):
        fit_links([Sample(link="flat", size_bytes=n, seconds=1.0 / n) for n in (1, 1000)])
    assert fit_links([]) == {}
