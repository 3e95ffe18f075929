"""How an attempt ended, in frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

FAULT_PREFIX: Final = "trainmaster-fault: "  # a line in which a rank tells of a fault, as JSON


class Kind(Enum):
    """What ended an attempt."""

    done = "done"
    stopped = "stopped"
    user_error = "user_error"
    died = "died"
    raised = "raised"
    hang = "hang"
    out_of_memory = "out_of_memory"
    not_finite = "not_finite"
    disk = "disk"
    device_lost = "device_lost"
    host_lost = "host_lost"
    host_back = "host_back"
    slow_rank = "slow_rank"
    slow_link = "slow_link"
    launcher_lost = "launcher_lost"
    unknown = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of an attempt.

    Attributes:
        kind: what it was.
        attempt: its number.
        step: optimizer steps that were done, -1 before the first one could be.
        checkpoint_step: of the newest whole checkpoint, -1 where there is none.
        rank, host: whose fault it seems to be; None where it is not known.
        phase: of that rank.
        signal: that ended the rank; 0 for none.
        where: of an out of memory: `device` or `host`.
        peak_bytes, asked_bytes, free_bytes: used, asked for in vain, and left, of an out of memory; 0 if not known.
        devices: ids that are to be left out.
        hosts: by name, that are gone or back.
        speeds: measured relative speeds of the ranks.
        link_share: of what was planned that the network between the hosts carries.
        evidence: one line for people.
        said: the last line that the rank that failed wrote, to know a failure again.
        person_must: what only a person can do; empty where nothing.
    """

    kind: Kind
    attempt: int
    step: int = -1
    checkpoint_step: int = -1
    rank: int | None = None
    host: int | None = None
    phase: str = ""
    signal: int = 0
    where: str = ""
    peak_bytes: int = 0
    asked_bytes: int = 0
    free_bytes: int = 0
    devices: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    speeds: tuple[float, ...] = ()
    link_share: float = 1.0
    evidence: str = ""
    said: str = ""
    person_must: str = ""


class Action(Enum):
    """What is done next."""

    finish = "finish"
    restart = "restart"
    replan = "replan"
    stop = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done after an attempt.

    Attributes:
        action: `restart` with the same plan, `replan` with another one.
        why: one line for people.
        backoff_seconds: to wait before the next start.
        resumable: of a stop: whether the run can go on from its checkpoint.
    """

    action: Action
    why: str
    backoff_seconds: float = 0.0
    resumable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The attempts before, oldest first, and what was decided after each."""

    ended: tuple[Ended, ...] = ()
    decided: tuple[Decision, ...] = field(default=())

    def with_next(self, ended: Ended, decision: Decision) -> History:
        """One more attempt."""
        return History(ended=(*self.ended, ended), decided=(*self.decided, decision))
