"""What stands after `trainmaster faults`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, UserError

HELP: Final = """\
trainmaster faults does real harm to a training, and shows what came of it.

Usage
  trainmaster faults list                       each fault in a line
  trainmaster faults run [KEY=VALUE ...]        one run without a fault, then one with each, and a table
  trainmaster train ... faults=NAME             one training that has a fault

Examples
  trainmaster faults run experiment=demo batch.max_steps=12 checkpoint.every=3
  trainmaster faults run experiment=demo faults.only=[kill_rank,hang] faults.step=5 faults.rank=1
  trainmaster train experiment=demo faults=kill_rank faults.step=5 faults.every=10

Keys       faults.step, faults.rank, faults.every, faults.phase and others: trainmaster train --cfg job
Output     RUN_DIR/faults.json and faults.md; format=json prints the document
Exit code  0 each run recovered, or stopped where it must, with a message; 4 one did not
"""
_VERBS: Final = ("run", "list")


def split(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return `run`, `list` or `help`, and what follows it.

    Raises:
        UserError: it is none of them.
    """
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        return "help", []
    if arguments[0] not in _VERBS:
        found = "faults is followed by run or list"
        raise UserError(Problem(where=f"faults {arguments[0]}", found=found, remedy=nearest(arguments[0], _VERBS)))
    rest = list(arguments[1:])
    return ("help", []) if {"-h", "--help"}.intersection(rest) else (arguments[0], rest)


def without_sweep(arguments: Sequence[str]) -> list[str]:
    """Return what Hydra is to answer (`--cfg job` and the like).

    Raises:
        UserError: for a sweep: each of its trials would be a whole table.
    """
    if {"-m", "--multirun"}.intersection(arguments):
        remedy = "Run `trainmaster faults run` once for each value."
        raise UserError(Problem(where="-m", found="faults run is no sweep", remedy=remedy))
    return list(arguments)
