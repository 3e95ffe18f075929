"""Looks at the readings of an attempt as they come, tells what was found, and says when the attempt must end for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from orchestrator.monitor.copy_request import ask
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Kind as FindingKind
from orchestrator.monitor.finding import Severity
from orchestrator.monitor.readings import RankReading, Xid
from orchestrator.monitor.robust import median
from orchestrator.monitor.store import Follower
from orchestrator.monitor.watch import Detectors
from orchestrator.recovery.event import Ended, Kind
from orchestrator.recovery.react import Moment, react, worth_it
from orchestrator.recovery.rejoin import HostCheck

_LOOK_SECONDS: Final = 1.0
_KEPT_STEPS: Final = 16


@dataclass(slots=True, kw_only=True)
class Observer:
    """Follows one attempt.

    Attributes:
        run_dir: where the readings are.
        facts: what was planned.
        moment: where the attempt stands; what is not known yet is filled in.
        say: where lines for people go.
        tell: appends an event to the run.
        stop: asks the ranks to stop at the next step with a checkpoint.
        may_restart: whether another start is allowed; without it nothing optional ends the attempt.
        devices: ids in the order of the ranks.
        checks: of the hosts that were lost, by name.
        asked: how the attempt ends, once something asks for its end.
        detected_at: wall clock of that.
        asked_softly: the ranks were asked to stop at the next step.
    """

    run_dir: Path
    facts: Facts
    moment: Moment
    say: Callable[[str], None]
    tell: Callable[..., None]
    stop: Callable[[], None]
    may_restart: bool = True
    xid_history: Mapping[str, Sequence[Xid]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    checks: Mapping[str, HostCheck] = field(default_factory=dict)
    asked: Ended | None = None
    detected_at: float | None = None
    asked_softly: bool = False
    _port: int = 0
    _detectors: Detectors = field(init=False)
    _follower: Follower = field(init=False)
    _next_seconds: float = 0.0
    _began: float = field(default_factory=time.time)
    _steps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Pass over what earlier attempts have left."""
        self._detectors = Detectors(self.facts, self.xid_history)
        self._follower = Follower(self.run_dir)
        self._follower.skip()

    def look(self) -> str | None:
        """Return why the attempt must be ended at once; None where it need not."""
        now = time.monotonic()
        if now < self._next_seconds or self.asked is not None:
            return None
        self._next_seconds = now + _LOOK_SECONDS
        for reading in self._follower.read():
            self._note(reading)
            for finding in self._detectors.update(reading):
                self.tell("finding", attempt=self.moment.attempt, **finding.as_dict())
                if finding.severity is not Severity.note:
                    self.say(f"{finding.severity.value}: {finding.evidence}. {finding.advice}")
                if finding.kind is FindingKind.pcie_downgrade_suspected and finding.device in self.devices:
                    ask(self.run_dir, self.devices.index(finding.device))
                reaction = react(finding, replace(self.moment, speeds=self._detectors.relative_speeds()))
                if reaction is None or (reaction.is_soft and not self.may_restart):
                    continue
                self.asked, self.detected_at = reaction.ended, time.time()
                if not reaction.is_soft:
                    return reaction.ended.evidence
                self.say(f"stopping at the next step to share the rows out anew: {reaction.ended.evidence}")
                self._stop()
                return None
        self._look_for_hosts()
        return None

    def _stop(self) -> None:
        self.asked_softly = True
        self.stop()

    def close(self) -> None:
        """Leave no question open."""
        for check in self.checks.values():
            check.end()

    def _look_for_hosts(self) -> None:
        """Ask whether lost hosts are back; where the steps that are left are worth it, the run takes them in."""
        if not self.checks or not self.may_restart or self.moment.step_seconds is None:
            return
        self._port = self._port or port_of(self.run_dir, self.moment.attempt)
        back = tuple(name for name, check in self.checks.items() if check.poll(self._port))
        if not back or not worth_it(self.moment, len(back)):
            return
        evidence = f"host {', '.join(self.checks[name].way[-1] for name in back)} is there again"
        self.asked = Ended(
            kind=Kind.host_back, attempt=self.moment.attempt, step=self.moment.step, hosts=back, evidence=evidence
        )
        self.say(f"{evidence}: stopping at the next step to take it in")
        self._stop()

    def history(self) -> dict[str, tuple[Xid, ...]]:
        """XIDs so far, for the next attempt."""
        return self._detectors.xid_history()

    def _note(self, reading: object) -> None:
        """Keep where the attempt stands."""
        if not isinstance(reading, RankReading):
            return
        if not self._steps:
            self.moment = replace(self.moment, start_seconds=max(1.0, reading.time - self._began))
        self._steps = [*self._steps[1 - _KEPT_STEPS :], reading.step_seconds]
        self.moment = replace(
            self.moment, step=max(self.moment.step, reading.step), step_seconds=median(sorted(self._steps))
        )


def port_of(run_dir: Path, attempt: int) -> int:
    """Port of the store of an attempt, which its first step tells; 0 before."""
    try:
        lines = (run_dir / "events.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "first_step" and event.get("attempt") == attempt:
            port = event.get("port")
            return port if isinstance(port, int) else 0
    return 0
