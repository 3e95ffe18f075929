"""Escaping, numbers in words, axes and thinning."""

import math
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report.page.bars import Pair, comparison
from orchestrator.report.page.chart import Chart, Mark, Series, Unit, figure
from orchestrator.report.page.html import Markup, element, join, plain, table
from orchestrator.report.page.scale import MOST_POINTS, axis_of, bytes_axis, runs_of, thinned
from orchestrator.report.page.words import compared, deviation, number, percent, short, size, span


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes = dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text())
def test_whatever_the_text_is_it_stays_text(text: str) -> None:
    parser = _Tags()
    parser.feed(element("p", text, title=text))
    parser.close()
    assert parser.tags == ["p"]
    assert parser.text == plain(text)
    assert parser.attributes["title"] == plain(text)


def test_controls_and_characters_that_turn_the_direction_are_replaced() -> None:
    assert plain("a\x00b\x1b[31m\u202ec\nd") == "a\ufffdb\ufffd[31m\ufffdc\nd"


def test_markup_is_not_escaped_twice_and_nothing_is_left_out_of_a_join() -> None:
    assert element("b", Markup("<i>x</i>"), "<", None) == "<b><i>x</i>&lt;</b>"
    assert join(["<", Markup("<br>")]) == "&lt;<br>"


def test_attributes() -> None:
    assert (
        element("i", class_="a", data_x=1, hidden=True, open=False, title=None) == '<i class="a" data-x="1" hidden></i>'
    )
    assert element("br") == "<br>"


def test_a_table_names_its_columns_and_rows() -> None:
    text = table(("a", "b"), [("<x>", 1)], caption="what", numbers=[1])
    assert '<th scope="col">a</th>' in text
    assert '<th scope="row">&lt;x&gt;</th><td class="number">1</td>' in text
    assert "<caption" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "\u2013"),
        (0.0, "0 s"),
        (2.5e-5, "25 \u00b5s"),
        (0.0123, "12.3 ms"),
        (1.25, "1.25 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_spans(seconds: float | None, words: str) -> None:
    assert span(seconds) == words


def test_sizes_and_short_numbers() -> None:
    assert [size(n) for n in (None, 12, 2048, 3 * 2**20, 5 * 2**30)] == [
        "\u2013",
        "12 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert [short(n) for n in (0, 0.25, 3000, 2_500_000)] == ["0", "0.25", "3,000", "2.5M"]


def test_deviations_in_numbers_and_words() -> None:
    assert deviation(0, 5) is None
    assert deviation(5, None) is None
    assert percent(deviation(2, 3)) == "+50%"
    assert percent(deviation(100, 81)) == "\u221219%"
    assert percent(deviation(1, 30)) == "\u00d730"
    assert percent(0.001) == "\u00b10%"
    assert compared(deviation(100, 81)) == "19% less than planned"
    assert compared(deviation(100, 202)) == "twice what was planned"
    assert compared(deviation(100, 615)) == "6.15 times what was planned"
    assert compared(0.01) == "as planned"


@pytest.mark.parametrize("value", [None, "3", True, math.nan, math.inf, [1]])
def test_what_is_no_number_is_none(value: object) -> None:
    assert number(value) is None


@given(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=40), st.booleans())
def test_an_axis_holds_its_values_and_ticks(values: list[float], from_zero: bool) -> None:
    axis = axis_of(values, from_zero=from_zero)
    slack = 1e-6 * max(1.0, *map(abs, values))
    assert axis.low - slack <= min(values) <= max(values) <= axis.high + slack
    assert 2 <= len(axis.ticks) <= 9
    assert axis.low == axis.ticks[0] < axis.ticks[-1] == axis.high
    assert not from_zero or axis.low <= 0 <= axis.high


def test_steps_have_whole_ticks_within_the_ends() -> None:
    assert axis_of([1, 3], from_zero=False, whole=True).ticks == (1, 2, 3)
    assert axis_of([1], from_zero=False, whole=True).share(1) == pytest.approx(0.5)
    assert axis_of([1, 100_000], from_zero=False, wanted=6, whole=True).ticks[0] == 20_000


def test_bytes_have_round_ticks_in_their_unit() -> None:
    assert bytes_axis([3.5 * 2**30]).ticks == tuple(n * 2**30 for n in (0, 1, 2, 3, 4))


def test_thinning_keeps_peaks_ends_of_gaps_and_order() -> None:
    points = [(float(at), math.nan if at == 70_000 else 5.0) for at in range(100_000)]
    points[31_415] = (31_415.0, 99.0)
    points[2_718] = (2_718.0, -99.0)
    found = thinned(points)
    assert len(found) <= MOST_POINTS * 1.5
    assert {99.0, -99.0} <= {value for _, value in found}
    assert any(math.isnan(value) for _, value in found)
    assert [step for step, _ in found] == sorted(step for step, _ in found)
    assert thinned(points[:10]) == tuple(points[:10])


def test_a_line_is_cut_where_its_value_is_no_number() -> None:
    nan = math.nan
    assert runs_of([(0, nan), (1, 1), (2, 2), (3, nan), (4, nan), (5, 5)]) == (((1, 1), (2, 2)), ((5, 5),))


def _chart(*points: tuple[float, float], marks: tuple[Mark, ...] = ()) -> Chart:
    series = (Series(name="<s>", points=points),)
    return Chart(name="c", title="Title", told="What.", series=series, unit=Unit.plain, marks=marks)


def test_a_chart_of_one_step_is_a_dot() -> None:
    text = figure(_chart((1, 2.5)))
    assert 'class="dots c0"' in text
    assert "nan" not in text.lower().replace("name", "")
    assert "&lt;s&gt;" in text


def test_a_chart_without_values_says_only_what_it_is() -> None:
    text = figure(_chart((1, math.nan)))
    assert "<svg" not in text
    assert "Title" in text


def test_marks_at_one_step_stand_below_each_other_and_lead_to_their_rows() -> None:
    marks = tuple(Mark(step=5, label=str(n), words="w", kind="fault", anchor=f"event-{n}") for n in (1, 2))
    text = figure(_chart((1, 1), (9, 2), marks=marks))
    assert "left:50%;--row:0" in text
    assert "left:50%;--row:1" in text
    assert 'href="#event-2"' in text


def test_bars_are_on_one_scale_and_far_ones_are_marked() -> None:
    pairs = [
        Pair(name="near", predicted=100.0, measured=110.0),
        Pair(name="far", predicted=100.0, measured=50.0, why="because"),
        Pair(name="alone", predicted=200.0, note="only in the sum"),
    ]
    text = comparison(pairs, lambda value: f"{value:.0f}", "caption")
    assert [one.grade for one in pairs] == ["near", "worst", ""]
    assert "width:100%" in text
    assert "width:25%" in text
    assert "only in the sum" in text
    assert "because" in text
