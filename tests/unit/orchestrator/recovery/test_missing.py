"""Hosts that are missing, by what the others told."""

import pytest

from orchestrator.errors import Problem
from orchestrator.recovery.missing import missing

NAMES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([("host 10.0.0.2", "did not join within 30 s; there: 10.0.0.1, 10.0.0.3")], (1,)),
        ([("host 10.0.0.2, 10.0.0.3", "did not join within 30 s; there: 10.0.0.1")], (1, 2)),
        ([("host 10.0.0.3", "nothing could be started there: no route (exit code 255)")], (2,)),
        ([("host 10.0.0.2", "could not reach the first host 10.0.0.1 within 30 s (no answer)")], (0,)),
        ([("host 10.0.0.2", "is cut off from the first host 10.0.0.1 (no route)")], (1,)),
        (
            [
                ("host 10.0.0.2", "is cut off from the first host 10.0.0.1 (no route)"),
                ("host 10.0.0.1", "nothing could be started there: timed out (exit code 255)"),
            ],
            (0,),
        ),
        ([("host 10.0.0.9", "did not join within 30 s")], ()),
        ([("host 10.0.0.2", "did not join within 30 s"), ("data", "empty")], ()),
        ([("host 10.0.0.2", "has torch 2.12, host 10.0.0.1 has 2.13")], ()),
        ([], ()),
    ],
)
def test_missing(told: list[tuple[str, str]], expected: tuple[int, ...]) -> None:
    problems = [Problem(where=where, found=found, remedy="Look.") for where, found in told]
    assert missing(problems, NAMES) == expected


@pytest.mark.parametrize("told", ["fd00::2", "[fd00::2]", "me@fd00::2", "me@[fd00::2]"])
def test_a_host_is_known_with_and_without_user_and_brackets(told: str) -> None:
    problem = Problem(where=f"host {told}", found="did not join within 30 s; there: a", remedy="Look.")
    assert missing([problem], ["me@a", "me@[fd00::2]"]) == (1,)
