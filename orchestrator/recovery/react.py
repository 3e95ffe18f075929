"""What a finding asks of a running attempt: a pure function of the finding, the plan and what is left to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.monitor.finding import Finding, Response
from orchestrator.monitor.finding import Kind as FindingKind
from orchestrator.recovery.event import Ended, Kind

_OF_PROGRAMS: Final = frozenset({8.0, 11.0, 13.0, 25.0, 31.0, 32.0, 43.0, 45.0, 69.0})
_MOST_REWEIGHTED: Final = 3  # times in a run: a rank that changes its speed again and again gains nothing by it
_MOST_REROUTED: Final = 2
_LEAST_SHARE: Final = 0.01  # of a link's rate: a wait so long is no longer one for bytes
_WON_OF_WAIT: Final = 0.5  # at least hoped for: what other routes, or fewer bytes, take off the time that is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where the attempt stands.

    Attributes:
        attempt: its number.
        step, checkpoint_step: done, and saved.
        num_steps: of the whole run; None where it is not known.
        step_seconds: as measured; None before.
        start_seconds: from the start of the attempt to its first step: what a new start costs.
        speeds: measured work per second of each rank; empty where they are not known.
        shares: rows of each rank in a step.
        hosts: names of the hosts by number.
        reweighted, rerouted: times that a slow rank, or a slow link, was answered before.
    """

    attempt: int
    step: int = -1
    checkpoint_step: int = -1
    num_steps: int | None = None
    step_seconds: float | None = None
    start_seconds: float = 60.0
    speeds: tuple[float, ...] = ()
    shares: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    reweighted: int = 0
    rerouted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What is to be done with the attempt.

    Attributes:
        ended: how it then ended.
        is_soft: the ranks stop at the next step with a checkpoint; else they are ended at once.
    """

    ended: Ended
    is_soft: bool


def react(finding: Finding, now: Moment) -> Reaction | None:
    """Return what a finding asks for; None where the attempt goes on."""
    if finding.kind is FindingKind.straggler:
        return _of_slow_rank(finding, now)
    if finding.kind is FindingKind.slow_link:
        return _of_slow_link(finding, now)
    if finding.response in {None, Response.ignore, Response.restart} or _is_of_a_program(finding):
        return None  # a rank that is hit ends by itself; others use the GPU, too
    kind, person = Kind.died, ""
    devices: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    if finding.response is Response.stop:
        person = finding.advice
    elif finding.response is Response.drop_device and finding.device:
        kind, devices = Kind.device_lost, (finding.device,)
    elif finding.response is Response.drop_host and finding.host is not None and finding.host < len(now.hosts):
        kind, hosts = Kind.host_lost, (now.hosts[finding.host],)
    ended = Ended(
        kind=kind,
        attempt=now.attempt,
        step=now.step,
        checkpoint_step=now.checkpoint_step,
        devices=devices,
        hosts=hosts,
        host=finding.host,
        evidence=finding.evidence,
        person_must=person,
    )
    return Reaction(ended=ended, is_soft=False)


def _is_of_a_program(finding: Finding) -> bool:
    """Whether it is an error of some program on the GPU, which need not be one of our ranks."""
    numbers = dict(finding.numbers)
    return numbers.get("xid") in _OF_PROGRAMS and not numbers.get("recovery_action")


def _of_slow_rank(finding: Finding, now: Moment) -> Reaction | None:
    """Share the rows out anew where the steps that are left win more than a new start costs."""
    if now.reweighted >= _MOST_REWEIGHTED or len(now.speeds) != len(now.shares) or len(now.shares) < 2:  # noqa: PLR2004
        return None
    won = gain(now.shares, now.speeds)
    left = None if now.num_steps is None else now.num_steps - now.step
    if left is None or now.step_seconds is None or won * now.step_seconds * left <= now.start_seconds:
        return None
    evidence = f"{finding.evidence}; rows in proportion make a step {won:.0%} shorter, {left} steps are left"
    return Reaction(
        ended=Ended(
            kind=Kind.slow_rank,
            attempt=now.attempt,
            step=now.step,
            checkpoint_step=now.step,
            rank=finding.rank,
            speeds=now.speeds,
            evidence=evidence,
        ),
        is_soft=True,
    )


def _of_slow_link(finding: Finding, now: Moment) -> Reaction | None:
    """Plan for the network as it is now, where the waits that are left cost more than a new start.

    Between GPUs of one host there is no other way for the bytes that the library would not find by itself.
    """
    numbers = dict(finding.numbers)
    wait, expected = numbers.get("communication_seconds"), numbers.get("expected_seconds")
    if len(now.hosts) < 2 or now.rerouted >= _MOST_REROUTED or not wait or expected is None:  # noqa: PLR2004
        return None
    left = None if now.num_steps is None else now.num_steps - now.step
    lost = wait - expected
    if left is None or _WON_OF_WAIT * lost * left <= now.start_seconds:
        return None
    return Reaction(
        ended=Ended(
            kind=Kind.slow_link,
            attempt=now.attempt,
            step=now.step,
            checkpoint_step=now.step,
            link_share=max(_LEAST_SHARE, expected / wait),
            evidence=f"{finding.evidence}; {left} steps are left",
        ),
        is_soft=True,
    )


def gain(shares: tuple[int, ...], speeds: tuple[float, ...]) -> float:
    """Share of a step that is won when rows follow the speeds: all ranks wait for the last one."""
    now = max(rows / speed for rows, speed in zip(shares, speeds, strict=True))
    best = sum(shares) / sum(speeds)
    return 1 - best / now


def worth_it(now: Moment, num_back: int) -> bool:
    """Whether hosts that are back win more time than a new start costs, if steps become shorter in proportion."""
    if now.num_steps is None or now.step_seconds is None or not now.hosts:
        return False
    left_seconds = (now.num_steps - now.step) * now.step_seconds
    return left_seconds * num_back / (len(now.hosts) + num_back) > now.start_seconds
