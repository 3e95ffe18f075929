"""Simulate one training step: `python -m orchestrator.simulate.memory CASE.json` prints its peak as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.simulate.case import read_case
from orchestrator.simulate.step import simulate

_SHOWN = 12


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 done, 2 bad input."""
    if len(arguments) != 1:
        print("usage: python -m orchestrator.simulate.memory CASE.json", file=sys.stderr)
        return 2
    try:
        result = asdict(simulate(read_case(Path(arguments[0]))))
    except UserError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    result["at_peak"] = result["at_peak"][:_SHOWN]
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
