"""Losses that are no numbers or jump, gradients that are no numbers, and adapters that get no gradient at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.monitor.detectors.latch import QUIET, Latch
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import RankReading
from orchestrator.monitor.robust import median, robust_z

__all__ = ["DEAD_IN_A_ROW", "SPIKES_IN_A_ROW", "State", "update", "update_group"]

SPIKES_IN_A_ROW: Final = 3
DEAD_IN_A_ROW: Final = 5
_WINDOW: Final = 64
_LEAST: Final = 16  # losses before a jump can be judged
_SPREADS: Final = 6.0
_OVER: Final = 3.0
# Losses of one batch differ; a spread below this share of the loss is chance in a quiet window.
_FLOOR: Final = 0.03
# A loss that stays up for so long is the new level.
_NEW_LEVEL: Final = 32
_WELL_IN_A_ROW: Final = 5
# A dynamic loss scaler halves its factor of 2^16 until gradients fit; after these it would be below one.
_SCALER_STEPS: Final = 20
_DENORMAL: Final = 1.1754944e-38  # below the least normal number of float32


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is remembered of the losses and gradients of a run.

    Attributes:
        losses: the newest that were no spikes.
        step, taken: the newest step of all ranks, and how many were seen.
    """

    losses: tuple[float, ...] = ()
    broken: Latch = QUIET
    gradient: Latch = QUIET
    spike: Latch = QUIET
    dead: Latch = QUIET
    step: int = -1
    taken: int = 0


def update(state: State, reading: RankReading, _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge the loss of one rank at once: the first NaN names the rank, those that follow are of the sum."""
    if reading.loss is None:
        return state, ()
    is_bad = not math.isfinite(reading.loss)
    latch = state.broken.turn(bad=is_bad, clear_after=_WELL_IN_A_ROW)
    after = replace(state, broken=latch)
    if not latch.says(state.broken):
        return after, ()
    evidence = f"the loss of rank {reading.rank} is {reading.loss} at step {reading.step}"
    advice = "Go back to the newest checkpoint before it; where it comes again, lower optimizer.lr or look at the rows."
    return after, (_finding(Kind.loss_not_finite, Severity.error, reading, evidence, advice, rank=reading.rank),)


def update_group(state: State, group: tuple[RankReading, ...], facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge a step of all ranks: spikes, gradients that are no numbers, dead adapters."""
    if group[0].step <= state.step:
        state = replace(State(), broken=state.broken, gradient=state.gradient)
    state = replace(state, step=group[0].step, taken=state.taken + 1)
    found: tuple[Finding, ...] = ()
    for judge in (_spike, _gradient, _dead):
        state, more = judge(state, group, facts)
        found += more
    return state, found


def _spike(state: State, group: tuple[RankReading, ...], _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    losses = [one.loss for one in group if one.loss is not None]
    if not losses or not all(math.isfinite(loss) for loss in losses):
        return state, ()
    loss = median(losses)
    if len(state.losses) < _LEAST:
        return replace(state, losses=(*state.losses, loss)), ()
    usual = median(state.losses)
    over = robust_z(loss, state.losses, _FLOOR * max(abs(usual), _FLOOR))
    latch = state.spike.turn(
        bad=over > _SPREADS, good=over < _OVER, raise_after=SPIKES_IN_A_ROW, clear_after=_WELL_IN_A_ROW
    )
    if latch.bad >= _NEW_LEVEL:
        return replace(state, losses=(loss,), spike=QUIET), ()
    # Spikes do not count among what is usual.
    after = replace(state, spike=latch)
    if over <= _SPREADS:
        after = replace(after, losses=(*state.losses, loss)[-_WINDOW:])
    if not latch.says(state.spike):
        return after, ()
    evidence = (
        f"the loss is {loss:.4g} at step {group[0].step}, {SPIKES_IN_A_ROW} steps in a row far above the usual "
        f"{usual:.4g} ({over:.0f} times the spread)"
    )
    numbers = (("loss", loss), ("usual_loss", usual), ("spreads", min(over, 1e9)))
    advice = "Look at the rows of these steps and at optimizer.lr; go back to a checkpoint if it does not come down."
    return after, (_finding(Kind.loss_spike, Severity.warning, group[0], evidence, advice, numbers=numbers),)


def _gradient(state: State, group: tuple[RankReading, ...], facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    norms = {one.rank: one.grad_norm for one in group if one.grad_norm is not None}
    if not norms:
        return state, ()
    bad = [rank for rank, norm in norms.items() if not math.isfinite(norm)]
    needed = _SCALER_STEPS if facts.has_loss_scaler else 1
    latch = state.gradient.turn(bad=bool(bad), raise_after=needed, clear_after=_WELL_IN_A_ROW)
    after = replace(state, gradient=latch)
    if not latch.says(state.gradient):
        return after, ()
    rank = bad[0] if len(bad) == 1 and len(group) > 1 else None
    evidence = f"the norm of the gradients is {norms[bad[0]]} at step {group[0].step}"
    evidence += f", {needed} steps in a row" if needed > 1 else ""
    advice = "Go back to the newest checkpoint before it; where it comes again, lower optimizer.lr or look at the rows."
    return after, (_finding(Kind.gradient_not_finite, Severity.error, group[0], evidence, advice, rank=rank),)


def _dead(state: State, group: tuple[RankReading, ...], facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    norms = [one.grad_norm for one in group if one.grad_norm is not None and math.isfinite(one.grad_norm)]
    if not norms or state.taken <= facts.warmup_steps:
        return state, ()
    largest = max(norms)
    latch = state.dead.turn(bad=largest < _DENORMAL, raise_after=DEAD_IN_A_ROW, clear_after=_WELL_IN_A_ROW)
    after = replace(state, dead=latch)
    if not latch.says(state.dead):
        return after, ()
    evidence = f"the adapters got no gradient in {DEAD_IN_A_ROW} steps up to step {group[0].step} (norm {largest:g})"
    advice = (
        "Nothing is trained: look whether the adapters are trainable, whether labels are all masked, and whether fp16 "
        "gradients vanish (precision=bf16)."
    )
    numbers = (("grad_norm", largest),)
    return after, (_finding(Kind.dead_adapters, Severity.error, group[0], evidence, advice, numbers=numbers),)


def _finding(
    kind: Kind,
    severity: Severity,
    reading: RankReading,
    evidence: str,
    advice: str,
    *,
    rank: int | None = None,
    numbers: tuple[tuple[str, float], ...] = (),
) -> Finding:
    return Finding(
        kind=kind,
        severity=severity,
        time=reading.time,
        step=reading.step,
        rank=rank,
        host=reading.host if rank is not None else None,
        evidence=evidence,
        numbers=numbers,
        advice=advice,
    )
