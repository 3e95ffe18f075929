"""Errors that ranks and hosts tell in a line of their output."""

from __future__ import annotations

import json

import pytest

from orchestrator.errors import ExitCode, RunFailed
from orchestrator.launch_inputs import ERROR_PREFIX, told_error

PROBLEM = {"where": "data.path", "found": "no rows", "remedy": "Give rows."}
BODY = json.dumps({"exit_code": 2, "problems": [PROBLEM]})


def test_an_error_of_the_user() -> None:
    told = told_error(ERROR_PREFIX + BODY)
    assert told is not None
    assert (str(told), told.exit_code) == ("data.path: no rows. Give rows.", ExitCode.BAD_INPUT)
    assert told_error("step 7") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        BODY[:30],
        BODY + "step 7",
        BODY.replace("rows", "rows\n"),
        "[]",
        "null",
        "{}",
        '{"exit_code": 2, "problems": 5}',
        '{"exit_code": 2, "problems": []}',
        '{"exit_code": 2, "problems": ["x"]}',
        '{"exit_code": 2, "problems": [{"where": "x"}]}',
        '{"exit_code": 2, "problems": [{"where": "x", "found": "y", "remedy": null}]}',
        BODY.replace("2", "77", 1),
        BODY.replace("2", "null", 1),
        json.dumps({"problems": [PROBLEM]}),
    ],
)
def test_a_line_that_was_cut_or_mixed_up_is_a_failed_run(text: str) -> None:
    told = told_error(ERROR_PREFIX + text)
    assert isinstance(told, RunFailed)
    assert text.strip() in str(told)
