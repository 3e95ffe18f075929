"""What ended an attempt, from all that was seen of it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orchestrator.monitor.finding import Finding
from orchestrator.recovery.event import Ended, Kind

# Faults that a rank may tell of, the one that explains the others first.
_TOLD: Final = (Kind.out_of_memory, Kind.not_finite, Kind.disk, Kind.device_lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen.

    Attributes:
        returncode: of the launcher.
        hang: that was seen.
        gone: a rank whose process vanished while others ran.
        culprit: rank and exit code of the one that failed first, by the launcher's report.
        faults: what ranks told.
        killed_for_memory: the kernel has killed a process of this control group meanwhile.
        step, phase: of the rank that was furthest behind.
        checkpoint_step: of the newest checkpoint, -1 without one.
        said: last line of the output.
        asked: an observer's reason to end the attempt, with its kind; None without.
    """

    attempt: int
    returncode: int
    hang: Finding | None = None
    gone: int | None = None
    culprit: tuple[int, int] | None = None
    faults: tuple[Mapping[str, Any], ...] = ()
    killed_for_memory: bool = False
    step: int = -1
    phase: str = ""
    checkpoint_step: int = -1
    said: str = ""
    asked: Ended | None = None


def classify(facts: Facts) -> Ended:
    """Return how the attempt ended; the most telling evidence counts.

    A rank's own words come first, then the kernel's, then what observers saw, then exit codes: a hang that is ended
    leaves ranks killed by signals, and a rank that dies leaves others with broken connections.
    """
    return _told(facts) or _killed_for_memory(facts) or facts.asked or _hung(facts) or _by_codes(facts)


def _killed_for_memory(facts: Facts) -> Ended | None:
    rank, code = facts.culprit or (facts.gone, 0 if facts.gone is None else -signal.SIGKILL)
    if not facts.killed_for_memory or code != -signal.SIGKILL or facts.hang is not None or facts.asked is not None:
        return None
    evidence = f"{_rank(rank)} was killed by the kernel: its control group has no memory left"
    return _ended(facts, Kind.out_of_memory, evidence, rank=rank, killed=int(signal.SIGKILL), where="host")


def _hung(facts: Facts) -> Ended | None:
    return None if facts.hang is None else _ended(facts, Kind.hang, facts.hang.evidence, rank=facts.hang.rank)


def _by_codes(facts: Facts) -> Ended:
    if facts.culprit is not None:
        rank, code = facts.culprit
        if code < 0:
            return _ended(facts, Kind.died, f"{_rank(rank)} was ended by {_name(-code)}", rank=rank, killed=-code)
        return _ended(facts, Kind.raised, f"{_rank(rank)} failed with code {code}", rank=rank)
    if facts.gone is not None:
        return _ended(facts, Kind.died, f"the process of {_rank(facts.gone)} is gone", rank=facts.gone)
    if facts.returncode < 0:
        evidence = f"the launcher was ended by {_name(-facts.returncode)}"
        return _ended(facts, Kind.launcher_lost, evidence, killed=-facts.returncode)
    return _ended(facts, Kind.unknown, f"it ended with code {facts.returncode}")


def _told(facts: Facts) -> Ended | None:
    for kind in _TOLD:
        for fault in facts.faults:
            if fault.get("kind") == kind.value:
                found = _ended(
                    facts, kind, str(fault.get("words") or _words(kind, fault)), rank=_whole(fault.get("rank"))
                )
                step = _whole(fault.get("step"))
                return replace(
                    found,
                    phase=str(fault.get("phase", facts.phase)),
                    step=facts.step if step is None else step,
                    where=str(fault.get("where", "")),
                    peak_bytes=_whole(fault.get("allocated_bytes")) or 0,
                    asked_bytes=_whole(fault.get("asked_bytes")) or 0,
                    free_bytes=_whole(fault.get("free_bytes")) or 0,
                )
    return None


def _words(kind: Kind, fault: Mapping[str, Any]) -> str:
    rank = _rank(_whole(fault.get("rank")))
    if kind is Kind.out_of_memory:
        where = "device" if fault.get("where") == "device" else "host"
        return f"{rank} ran out of {where} memory while {fault.get('phase', 'running')}"
    if kind is Kind.not_finite:
        return f"the loss or its gradient is no number at step {fault.get('step')}"
    return f"{rank}: {kind.value.replace('_', ' ')}"


def _ended(
    facts: Facts, kind: Kind, evidence: str, *, rank: int | None = None, killed: int = 0, where: str = ""
) -> Ended:
    return Ended(
        kind=kind,
        attempt=facts.attempt,
        step=facts.step,
        checkpoint_step=facts.checkpoint_step,
        rank=rank,
        phase=facts.phase,
        signal=killed,
        where=where,
        evidence=evidence,
        said=facts.said if kind is Kind.raised else "",
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rank(rank: int | None) -> str:
    return "a rank" if rank is None else f"rank {rank}"


def _name(number: int) -> str:
    return signal.Signals(number).name if number in {item.value for item in signal.Signals} else f"signal {number}"
