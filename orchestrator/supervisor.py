"""The life of a run: plan, run, observe, decide, plan again, run again. Each step stands in `events.jsonl`.

What to do is decided by `recovery.decide`, and a new plan is made by `planner.replan`; both are pure. Each attempt is a
fresh launch with a rendezvous of its own and its own `plan.ATTEMPT.json`; no launcher restarts anything in place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from launch.execute import caught_signals
from orchestrator import quarantine
from orchestrator.attempt_files import STOP_FILE, sole_use, take_back_request
from orchestrator.attempts import Observed, run_attempt, tell
from orchestrator.config import RunConfig
from orchestrator.errors import Problem, RunFailed, RunStopped, UserError
from orchestrator.inputs import Inputs
from orchestrator.leftovers import end_leftovers
from orchestrator.observing import Standing, observer_of, with_lost_hosts
from orchestrator.planner.plan import Plan
from orchestrator.recovery.decide import Limits, decide
from orchestrator.recovery.event import Action, Decision, Ended, History, Kind
from orchestrator.replanning import replanned
from orchestrator.run_dir import RunDir
from orchestrator.supervise import Attempt, make_attempt
from orchestrator.train.run_files import append_json_line
from topology.model import Topology

_OPTIONAL: Final = frozenset({Kind.slow_rank, Kind.slow_link, Kind.host_back})  # the run could have gone on as it was
_NO_FAULTS: Final = frozenset({Kind.done, Kind.stopped, Kind.user_error, Kind.host_back})
_WAIT_SECONDS: Final = 0.5  # between two looks for a stop during a back-off


class Make(Protocol):
    """Builds the requests of an attempt, as `make_attempt`."""

    def __call__(self, plan: Plan, topology: Topology, run: RunDir, *, have_met: bool = False) -> Attempt:
        """Build them."""
        ...


def supervise(
    config: RunConfig,
    plan: Plan,
    inputs: Inputs,
    run: RunDir,
    say: Callable[[str], None],
    *,
    topology: Topology | None = None,
    make: Make = make_attempt,
) -> tuple[Plan, dict[str, Any]]:
    """Run to the end, through whatever can be survived; returns the plan that ended it, and its summary.

    Args:
        config: that was asked for.
        plan: to begin with.
        inputs: it was made of.
        run: where.
        say: where lines for the user go.
        topology: what is left of the machine; None for all of it.
        make: builds the requests of an attempt.

    Raises:
        UserError: what the ranks found wrong with the user's input.
        RunStopped: the run was asked to stop.
        RunFailed: it cannot go on; with the reason, and all that was tried.
    """
    left = topology or inputs.topology
    state = Standing(first=plan, plan=plan, topology=left, inputs=inputs, history=History(), why="first start")
    limits = Limits(restarts=config.recovery.restarts, backoff_seconds=config.recovery.backoff_seconds)
    # Between attempts, too, a signal asks for a stop; during one, `execute` answers it.
    with sole_use(run), caught_signals() as caught:
        end_leftovers(run.path, say)
        while True:
            if caught:
                raise _stopped(run)
            observed = _attempt(state, run, say, make)
            decision = decide(observed.ended, limits, state.history)
            if decision.action is Action.replan:
                decision = _replan(config, state, run, observed.ended, decision, say)
            _tell(
                run,
                "decided",
                attempt=observed.ended.attempt,
                decision=decision.action.value,
                why=decision.why,
                backoff_seconds=decision.backoff_seconds,
            )
            state.history = state.history.with_next(observed.ended, decision)
            if observed.summary is not None and decision.action is Action.finish:
                return state.plan, observed.summary
            if decision.action is Action.stop:
                raise _ending(observed, decision, state.history)
            state.why = decision.why
            say(f"starting again: {decision.why}")
            _back_off(decision.backoff_seconds, run, say, caught)


def _attempt(state: Standing, run: RunDir, say: Callable[[str], None], make: Make) -> Observed:
    is_first = not state.history.ended
    attempt = make(state.plan, state.topology, run, have_met=not is_first)
    number = attempt.number
    if is_first:
        tell(attempt, say)
    strategy = state.plan.chosen.strategy
    _tell(
        run,
        "attempt_started",
        attempt=number,
        world_size=strategy.world_size,
        engine=strategy.engine.value,
        strategy=strategy.label,
        why=state.why,
    )
    observer = observer_of(state, run, attempt, say, partial(_tell, run))
    try:
        observed = run_attempt(attempt, run, say, observer, is_first=is_first)
    finally:
        observer.close()
    if observer.asked_softly:
        take_back_request(run)  # ranks that died before they could obey have left it
    if not is_first:
        observed = with_lost_hosts(observed, state)
    state.xids = observer.history()
    ended = observed.ended
    if ended.kind not in _NO_FAULTS:
        _tell(
            run,
            "fault_detected",
            at=observed.detected_at,
            kind=ended.kind.value,
            attempt=ended.attempt,
            step=ended.step,
            rank=ended.rank,
            evidence=ended.evidence,
        )
    _tell(
        run,
        "attempt_ended",
        attempt=ended.attempt,
        outcome=ended.kind.value,
        step=ended.step,
        checkpoint_step=ended.checkpoint_step,
        evidence=ended.evidence,
    )
    return observed


def _replan(
    config: RunConfig, state: Standing, run: RunDir, ended: Ended, decision: Decision, say: Callable[[str], None]
) -> Decision:
    """Make the next plan; a refusal becomes a stop that tells all that was tried."""
    try:
        found = replanned(config, state.plan, state.inputs, ended, os.environ)
    except UserError as error:
        if ended.kind in _OPTIONAL:
            return replace(decision, action=Action.restart, why=f"{decision.why}; the plan stays: {error}")
        return Decision(action=Action.stop, why=f"{ended.evidence}, and no other plan is left: {error}")
    if ended.kind is Kind.device_lost:
        quarantine.add(run.path, ended.devices, ended.evidence)
    for change in found.changes:
        say(f"new plan: {change}")
    if found.lossy:
        say("note: the longest rows are cut shorter than before (recovery.allow_lossy)")
    _tell(
        run,
        "replanned",
        attempt=ended.attempt,
        changes=list(found.changes),
        lossy=found.lossy,
        old=state.plan.chosen.strategy.label,
        new=found.plan.chosen.strategy.label,
    )
    state.plan, state.topology = found.plan, found.topology
    return replace(decision, why="; ".join((decision.why, *found.changes)))


def _ending(observed: Observed, decision: Decision, history: History) -> UserError:
    """Return the error that ends the run, with the attempts where there were several."""
    error = observed.error
    if error is None:
        return RunFailed(Problem(where="the run", found=decision.why, remedy="Go on with resume=true."))
    if isinstance(error, RunStopped) or observed.ended.kind in {Kind.user_error, Kind.disk}:
        return error
    tried = [f"attempt {ended.attempt}: {ended.evidence}" for ended in history.ended]
    remedy = "The attempts: " + "; ".join(tried)
    return RunFailed(*error.problems, Problem(where="not started again", found=decision.why, remedy=remedy))


def _stopped(run: RunDir) -> RunStopped:
    remedy = f"Continue with: trainmaster train resume={run.path}"
    return RunStopped(Problem(where="stopped", found="between two attempts", remedy=remedy))


def _back_off(seconds: float, run: RunDir, say: Callable[[str], None], caught: Sequence[object]) -> None:
    """Wait, perhaps not at all; a request to stop ends the wait, and the run.

    Raises:
        RunStopped: it was asked to stop.
    """
    if seconds > 0:
        say(f"waiting {seconds:.0f} s before the next start")
    until = time.monotonic() + seconds
    while True:
        if caught or (run.path / STOP_FILE).exists():
            raise _stopped(run)
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(_WAIT_SECONDS, left))


def _tell(run: RunDir, event: str, *, at: float | None = None, **details: object) -> None:
    append_json_line(run.path / "events.jsonl", {"time": at or time.time(), "event": event, **details})
