"""When ranks change: at steps that the user names, or where the loss stands still, or by gradients now and then.

All of it is a function of what every rank knows alike: the step, the mean loss, the summed gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from orchestrator.config import ResizeConfig, ResizeWhen
from orchestrator.resize.ranks import Layer, Limits, Ranks, all_to, moved, shrunk

AT_STEP: Final = "step"
WINDOWS: Final = 2  # of losses that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A change that was decided and is not done yet.

    Attributes:
        why: in a few words.
        ranks: by name of the module.
    """

    why: str
    ranks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a checkpoint keeps of it.

    Attributes:
        resized: steps after which ranks changed.
        losses: of the steps since, the last ones.
        squares: sums of squared norms of gradients by name, since.
        counted: steps in `squares`.
        pending: decided, not done.
    """

    resized: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    squares: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    counted: int = 0
    pending: Pending | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        pending = self.pending
        return {
            "resized": list(self.resized),
            "losses": list(self.losses),
            "squares": dict(self.squares),
            "counted": self.counted,
            "pending": None if pending is None else {"why": pending.why, "ranks": dict(pending.ranks)},
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> History:
        """Read back what `to_json` gave; an empty mapping is a run that knows of nothing."""
        pending = raw.get("pending")
        return cls(
            resized=tuple(int(step) for step in raw.get("resized", ())),
            losses=tuple(float(loss) for loss in raw.get("losses", ())),
            squares=dict(raw.get("squares", {})),
            counted=int(raw.get("counted", 0)),
            pending=None if not pending else Pending(why=str(pending["why"]), ranks=dict(pending["ranks"])),
        )

    def done(self, step: int) -> History:
        """After a change at this step: losses and gradients of other ranks do not count any more."""
        return History(resized=(*self.resized, step))


def observed(history: History, config: ResizeConfig, loss: float, squares: Mapping[str, float]) -> History:
    """Add a step: its mean loss, and the squared norms of its gradients by module (empty where nobody asks)."""
    if config.when is ResizeWhen.none:
        return history
    summed = {name: history.squares.get(name, 0.0) + value for name, value in squares.items()}
    losses = (*history.losses, loss)[-WINDOWS * config.every :]
    return replace(history, losses=losses, squares=summed, counted=history.counted + 1)


def is_due(history: History, config: ResizeConfig, step: int) -> str:
    """Say why ranks are to be looked at after this step; empty where they are not."""
    if step in config.steps:
        return AT_STEP
    if config.when is ResizeWhen.plateau and stands_still(history.losses, config):
        return "the loss stands still"
    if config.when is ResizeWhen.gradient_norm and history.counted >= config.every:
        return "gradient norms"
    return ""


def stands_still(losses: Sequence[float], config: ResizeConfig) -> bool:
    """Whether the mean loss of the last `every` steps is less than `gain` below that of as many before."""
    if len(losses) < WINDOWS * config.every:
        return False
    before, now = losses[-2 * config.every : -config.every], losses[-config.every :]
    return sum(now) > (1 - config.gain) * sum(before)


def decided(history: History, config: ResizeConfig, step: int, layers: Sequence[Layer], most: int) -> History:
    """Return the history with what is to be done after this step, if that changes anything.

    Args:
        history: with this step.
        config: of the user.
        step: that has ended.
        layers: of the model.
        most: rank that memory allows; 0 for any.
    """
    why = is_due(history, config, step)
    ranks: Ranks
    if why == AT_STEP:
        ranks, why = all_to(layers, config.steps[step]), f"step {step}"
    else:
        largest = config.max_rank or 2 * max(layer.rank for layer in layers)
        limits = Limits(least=config.min_rank, most=largest, energy=config.energy)
        ranks = (moved if config.when is ResizeWhen.gradient_norm else shrunk)(layers, limits)
    if most:
        ranks = {name: min(rank, most) for name, rank in ranks.items()}
    if ranks == {layer.name: layer.rank for layer in layers}:
        # Look again after as many steps.
        return replace(history, losses=(), squares={}, counted=0)
    return replace(history, pending=Pending(why=why, ranks=ranks))


def warm_up(history: History, steps: int, at: int) -> float:
    """Share of the learning rate for the step after `at` steps: it climbs again after each change."""
    shares = [(at - begun + 1) / (steps + 1) for begun in history.resized if begun <= at]
    return min([1.0, *shares])
