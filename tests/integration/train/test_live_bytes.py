"""Live storages of real ranks against the estimate, term by term."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
LIMIT = 0.05
RUN = re.compile(r"^\[\d+/\d+, \d+ s\] (.+)$")
TERM = re.compile(r"^  (\w+) +([\d,]+) +([\d,]+) +[+-][\d.]+%$")
STATES = {"absmax", "adapters", "gradients", "optimizer"}
EXPECTED = {
    "engine=ddp": STATES | {"base_packed", "base_unquantised", "ddp_buckets", "activations", "peak"},
    "engine.offload_param=cpu": STATES | {"base_partition", "activations", "peak"},
}

Terms = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def runs() -> dict[str, Terms]:
    """Measured and estimated bytes of each term, of a run on two ranks for each engine."""
    command = [sys.executable, "bench/own_engines.py", "--quick", "--only", *EXPECTED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[str, Terms] = {}
    run = ""
    for line in done.stdout.splitlines():
        if head := RUN.match(line):
            run = head[1]
            found[run] = {}
        elif term := TERM.match(line):
            found[run][term[1]] = (_number(term[2]), _number(term[3]))
    assert len(found) == len(EXPECTED), done.stdout + done.stderr
    return found


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("words", EXPECTED)
def test_every_term_is_within_5_percent(runs: dict[str, Terms], words: str) -> None:
    (terms,) = (terms for run, terms in runs.items() if words in run)
    assert set(terms) == EXPECTED[words]
    for name, (held, estimated) in terms.items():
        assert held > 0, name
        assert estimated == pytest.approx(held, rel=LIMIT), name
