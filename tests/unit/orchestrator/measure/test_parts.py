"""Choosing parts, timing, and how the numbers of several ranks become one."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UserError
from orchestrator.measure.parts import PARTS, Part, Where, chosen_parts
from orchestrator.measure.run import Crew, Outcome, run_crew
from orchestrator.measure.timing import MIN_REPEATS, Watch, summed_up, timed, timed_rounds

STAND_IN = '''
"""Answers like a measuring process."""
import json, os, sys, time
request = json.loads(sys.argv[1])
def say(**fields): print(json.dumps(fields), flush=True)
for part in request["parts"]:
    say(event="ready", part=part)
    if not sys.stdin.readline():
        sys.exit(0)
    if part == "hangs":
        time.sleep(600)
    if part == "dies":
        print("the driver is gone", file=sys.stderr)
        sys.exit(3)
    if part == "fails":
        say(event="failed", part=part, reason="no such kernel")
        continue
    value = 10.0 * (1 + request["rank"])
    entry = dict(name="x", value=value, unit="B/s", repeats=5 + request["rank"], spread=0.1 * value, how="so")
    threads = dict(entry, name="threads", value=float(os.environ.get("OMP_NUM_THREADS", 0)) or 0.5)
    say(event="measured", part=part, entries=[entry, threads])
say(event="end", versions={"torch": "9.9"})
'''


def part(name: str, seconds: float = 30.0) -> Part:
    return Part(name=name, module="stand_in", where=Where.device, text="a test", seconds=seconds)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start(*parts: Part, ranks: int = 1, said: list[str] | None = None) -> Outcome:
        crew = Crew(module="stand_in", parts=parts, device="cpu", device_name="Card", ranks=ranks, threads=3)
        return run_crew(crew, (said if said is not None else []).append)

    return start


def test_ranks_are_averaged_and_the_widest_spread_counts(run: Callable[..., Outcome]) -> None:
    said: list[str] = []
    outcome = run(part("one"), part("two"), ranks=2, said=said)
    item = next(item for item in outcome.measured["two"] if item.name == "x")
    assert (item.value, item.repeats, item.spread, item.device) == (15.0, 5, 2.0, "Card")
    assert next(item for item in outcome.measured["one"] if item.name == "threads").value == 3
    assert outcome.versions == {"torch": "9.9"}
    assert outcome.failed == {}
    assert [line.split(":")[0] for line in said] == ["one", "two"]


def test_a_part_that_fails_does_not_keep_the_next(run: Callable[..., Outcome]) -> None:
    outcome = run(part("fails"), part("one"))
    assert outcome.failed == {"fails": "no such kernel"}
    assert list(outcome.measured) == ["one"]


def test_a_process_that_dies_is_told_with_its_last_words(run: Callable[..., Outcome]) -> None:
    outcome = run(part("one"), part("dies"), part("two"))
    assert list(outcome.measured) == ["one"]
    assert set(outcome.failed) == {"dies", "two"}
    assert "ended" in outcome.failed["dies"]
    assert "the driver is gone" in outcome.failed["dies"]


def test_a_process_that_hangs_is_ended(run: Callable[..., Outcome]) -> None:
    outcome = run(part("one"), part("hangs", seconds=0.3), ranks=2)
    assert list(outcome.measured) == ["one"]
    assert outcome.failed["hangs"].startswith("no answer within")


def test_names_of_parts_are_distinct_and_their_modules_exist() -> None:
    names = [each.name for each in PARTS]
    assert len(set(names)) == len(names)
    root = Path(sys.modules["orchestrator"].__path__[0]).parent
    assert all((root / f"{each.module.replace('.', '/')}.py").is_file() for each in PARTS)


def test_all_means_what_the_device_has() -> None:
    on_gpu, on_cpu = (chosen_parts(("all",), device) for device in ("cuda", "cpu"))
    assert {each.name for each in on_gpu} - {each.name for each in on_cpu} == {"context", "transfer"}
    assert [each.name for each in chosen_parts(("memory", "gemm"), "cpu")] == ["gemm", "memory"]


def test_every_wrong_part_is_told() -> None:
    with pytest.raises(UserError) as found:
        chosen_parts(("gem", "context", "memory"), "cpu")
    assert [problem.found for problem in found.value.problems] == [
        "no part 'gem'",
        "context is measured on cuda only, and this machine computes on cpu",
    ]
    assert "gemm" in found.value.problems[0].remedy


@given(step=st.floats(1e-6, 10.0))
def test_the_time_of_one_call_is_found_whatever_it_takes(step: float) -> None:
    now = [0.0]

    def call() -> None:
        now[0] += step

    timing = timed(call, Watch(wait=lambda: None, clock=lambda: now[0]))
    assert timing.seconds == pytest.approx(step, rel=1e-3)
    assert timing.repeats >= MIN_REPEATS


@given(short=st.floats(1e-5, 1.0), more=st.floats(1e-5, 1.0))
def test_rounds_time_each_in_turn(short: float, more: float) -> None:
    now = [0.0]

    def lasts(seconds: float) -> Callable[[], None]:
        def call() -> None:
            now[0] += seconds

        return call

    rounds = timed_rounds([lasts(short), lasts(short + more)], Watch(wait=lambda: None, clock=lambda: now[0]))
    assert len(rounds) >= MIN_REPEATS
    found = summed_up([long - first for first, long in rounds])
    assert found.seconds == pytest.approx(more, rel=1e-3, abs=1e-9)


@given(st.lists(st.floats(1e-6, 1e3), min_size=5, max_size=15))
def test_the_middle_and_the_quartiles(seconds: list[float]) -> None:
    timing = summed_up(seconds)
    assert timing.seconds == statistics.median(seconds)
    assert 0 <= timing.spread <= (max(seconds) - min(seconds)) * 2 / timing.seconds


def test_a_difference_that_is_none_is_told() -> None:
    with pytest.raises(ArithmeticError, match="too busy"):
        summed_up([-1.0, 0.0, -2.0, 1.0, -1.0])
