"""What is looked at while an attempt runs, and what its end says of the hosts that took part."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from orchestrator.attempt_files import newest_checkpoint, request_stop
from orchestrator.attempts import Observed
from orchestrator.config import Padding
from orchestrator.inputs import Inputs
from orchestrator.launch_inputs import named_hosts
from orchestrator.monitor.facts import facts_of
from orchestrator.monitor.readings import Xid
from orchestrator.planner.plan import Plan
from orchestrator.recovery.event import History, Kind
from orchestrator.recovery.missing import missing
from orchestrator.recovery.observer import Observer
from orchestrator.recovery.react import Moment
from orchestrator.recovery.rejoin import HostCheck
from orchestrator.run_dir import RunDir
from orchestrator.supervise import Attempt
from topology.model import Topology

_GROWTH: Final = 1.5  # of a step's time with the tokens of a row
_LEAST_SECONDS: Final = 9.0  # of silence; with two looks a second a hang is told within ten


@dataclass(slots=True)
class Standing:
    """What changes from attempt to attempt.

    Attributes:
        first, plan: the plan that the run began with, and the newest.
        topology: of what is left of the machine.
        inputs: of the first plan.
        history: attempts and decisions so far.
        why: the next attempt is made.
        xids: errors of the driver so far, by device.
    """

    first: Plan
    plan: Plan
    topology: Topology
    inputs: Inputs
    history: History
    why: str
    xids: dict[str, tuple[Xid, ...]] = field(default_factory=dict)


def with_lost_hosts(observed: Observed, state: Standing) -> Observed:
    """Tell an error of hosts that do not come back from an error of the user: they took part before."""
    if observed.ended.kind is not Kind.user_error or observed.error is None:
        return observed
    names = [host.name for host in named_hosts(state.plan.run_config.launch)]
    hosts = _hosts(state)
    lost = missing(observed.error.problems, names) if len(names) == len(hosts) > 1 else ()
    if not lost:
        return observed
    ended = replace(
        observed.ended,
        kind=Kind.host_lost,
        checkpoint_step=max((ended.checkpoint_step for ended in state.history.ended), default=-1),
        hosts=tuple(hosts[at] for at in lost),
        evidence=f"host {', '.join(names[at] for at in lost)} does not come back",
    )
    return replace(observed, ended=ended)


def _hosts(state: Standing) -> tuple[str, ...]:
    return hosts_of(state.plan, state.topology)


def hosts_of(plan: Plan, topology: Topology) -> tuple[str, ...]:
    """Names of the plan's hosts in the order of their ranks."""
    home = {device.id: device.host for device in topology.devices}
    return tuple(dict.fromkeys(home[name] for name in plan.chosen.strategy.device_ids if name in home))


def observer_of(
    state: Standing, run: RunDir, attempt: Attempt, say: Callable[[str], None], tell: Callable[..., None]
) -> Observer:
    """Return the observer of an attempt."""
    plan = state.plan
    config, strategy = plan.run_config, plan.chosen.strategy
    rows = plan.workload.rows_per_epoch * config.batch.epochs
    num_steps = config.batch.max_steps or math.ceil(rows / max(1, strategy.global_batch))
    facts = facts_of(plan, num_steps)
    patience = replace(
        facts.patience, least=_LEAST_SECONDS, steps=config.recovery.hang_factor, longest=longest_over_mean(plan)
    )
    before = [ended.kind for ended in state.history.ended]
    return Observer(
        run_dir=run.path,
        facts=replace(facts, patience=patience),
        moment=Moment(
            attempt=attempt.number,
            checkpoint_step=newest_checkpoint(run.path),
            num_steps=num_steps,
            shares=tuple(strategy.shares),
            hosts=_hosts(state),
            reweighted=before.count(Kind.slow_rank),
            rerouted=before.count(Kind.slow_link),
        ),
        say=say,
        tell=tell,
        stop=partial(request_stop, run),
        may_restart=config.recovery.restarts > 0,
        xid_history=state.xids,
        devices=tuple(strategy.device_ids),
        checks=_checks(state, attempt),
    )


def longest_over_mean(plan: Plan) -> float:
    """How many times as long as a typical step one of the longest rows may take; 1 where all rows have one length.

    Time grows with the tokens of a row, and where they are many with their square.
    """
    config, workload = plan.run_config, plan.workload
    if config.data.packing or config.data.padding is Padding.static or workload.mean_tokens <= 0:
        return 1.0
    longest = min(workload.max_tokens, plan.chosen.strategy.seq_len)
    return float(max(1.0, longest / workload.mean_tokens) ** _GROWTH)


def _checks(state: Standing, attempt: Attempt) -> dict[str, HostCheck]:
    """Ask the lost hosts of a launch over ssh whether they are back."""
    names = [host.name for host in named_hosts(state.first.run_config.launch)]
    whole = hosts_of(state.first, state.inputs.topology)
    address = dict(zip(whole, names, strict=False))
    taking_part = _hosts(state)
    lost = [name for name in address if name not in taking_part]
    if not lost or not taking_part or taking_part[0] not in address:
        return {}
    failures = sum(ended.kind is Kind.host_back for ended in state.history.ended)
    return {
        name: HostCheck(
            way=(*attempt.ssh, address[name]),
            python=sys.executable,
            first=address[taking_part[0]].rpartition("@")[2].strip("[]"),
            failures=failures,
        )
        for name in lost
    }
