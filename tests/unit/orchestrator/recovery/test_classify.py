"""What ended an attempt."""

import signal

import pytest

from orchestrator.monitor.finding import Finding, Severity
from orchestrator.monitor.finding import Kind as FindingKind
from orchestrator.recovery.classify import Facts, classify
from orchestrator.recovery.event import Kind

HANG = Finding(
    kind=FindingKind.hang,
    severity=Severity.error,
    time=5.0,
    step=6,
    rank=1,
    evidence="rank 1 hangs after step 6: its process is stopped (10 s allowed)",
    advice="Go on from the checkpoint.",
)
OOM = {"kind": "out_of_memory", "where": "device", "rank": 2, "phase": "eval", "step": 4, "allocated_bytes": 77}


def facts(**values: object) -> Facts:
    return Facts(attempt=3, **{"returncode": 1, "step": 6, "checkpoint_step": 4, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "kind", "rank", "words"),
    [
        (facts(culprit=(1, -9)), Kind.died, 1, "rank 1 was ended by SIGKILL"),
        (facts(culprit=(0, -11)), Kind.died, 0, "SIGSEGV"),
        (facts(culprit=(0, 1)), Kind.raised, 0, "code 1"),
        (facts(returncode=-9), Kind.launcher_lost, None, "launcher"),
        (facts(returncode=7), Kind.unknown, None, "code 7"),
        (facts(gone=1), Kind.died, 1, "gone"),
        (facts(hang=HANG, culprit=(0, -9)), Kind.hang, 1, "is stopped"),
        (facts(faults=(OOM,), culprit=(0, -9), hang=HANG), Kind.out_of_memory, 2, "device memory"),
        (facts(faults=({"kind": "not_finite", "step": 5},)), Kind.not_finite, None, "step 5"),
        (facts(faults=({"kind": "else"},), culprit=(0, 1)), Kind.raised, 0, "code 1"),
        (facts(killed_for_memory=True, culprit=(1, -9)), Kind.out_of_memory, 1, "kernel"),
        (facts(killed_for_memory=True, culprit=(1, 1)), Kind.raised, 1, "code 1"),
        (facts(killed_for_memory=True, gone=0), Kind.out_of_memory, 0, "kernel"),
        (facts(killed_for_memory=True, hang=HANG), Kind.hang, 1, "is stopped"),
        (facts(killed_for_memory=True, returncode=7), Kind.unknown, None, "code 7"),
    ],
)
def test_kinds(seen: Facts, kind: Kind, rank: int | None, words: str) -> None:
    found = classify(seen)
    assert (found.kind, found.rank) == (kind, rank)
    assert words in found.evidence
    assert (found.attempt, found.checkpoint_step) == (3, 4)


def test_what_a_rank_tells_is_kept() -> None:
    found = classify(facts(faults=(OOM,)))
    assert (found.where, found.phase, found.step, found.peak_bytes) == ("device", "eval", 4, 77)


def test_senseless_words_of_a_rank_do_no_harm() -> None:
    told = {"kind": "out_of_memory", "rank": "x", "step": None, "phase": 7, "allocated_bytes": "many"}
    found = classify(facts(faults=(told,)))
    assert (found.kind, found.rank, found.step, found.peak_bytes) == (Kind.out_of_memory, None, 6, 0)


def test_the_signal_is_kept() -> None:
    assert classify(facts(culprit=(1, -9))).signal == signal.SIGKILL
    assert classify(facts(killed_for_memory=True, culprit=(1, -9))).signal == signal.SIGKILL
