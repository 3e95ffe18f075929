"""How many layers to keep ready: adapted between steps, from what all ranks measured. Pure.

Every rank calls `adapt` with the reports of all ranks in the same order and the same state, so all of them come to the
same window without another word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import Problem, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one rank measured in the steps since the last boundary.

    Attributes:
        step_seconds: all of the time.
        exposed_seconds: of it, waiting for layers that were not there yet.
        free_bytes: device memory that nobody used at the peak.
    """

    step_seconds: float
    exposed_seconds: float
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRules:
    """When the window changes.

    Attributes:
        least, most: layers.
        layer_bytes: what one more layer takes.
        reserve_bytes: device memory that must stay free.
        grow_share: the share of exposed waiting in a step above which a larger window is tried.
        gain_share: a larger window stays if it takes at least this share of the waiting away.
        patience: boundaries in a row that must speak for a change; also how long a new window is watched.
    """

    least: int
    most: int
    layer_bytes: int
    reserve_bytes: int
    grow_share: float = 0.05
    gain_share: float = 0.1
    patience: int = 3

    def __post_init__(self) -> None:
        """Reject ranges without a window.

        Raises:
            UserError: all that is wrong.
        """
        found = [
            (
                self.least < 1 or self.most < self.least,
                f"from {self.least} to {self.most} layers",
                "1 <= least <= most",
            ),
            (self.layer_bytes < 0 or self.reserve_bytes < 0, "bytes below 0", "0 or more bytes"),
            (self.patience < 1, f"patience {self.patience}", "1 or more"),
            (not (0 <= self.grow_share <= 1 and 0 <= self.gain_share <= 1), "a share beyond 0 to 1", "0 to 1"),
        ]
        problems = [Problem(where="window of layers", found=a, remedy=f"Use {b}.") for is_bad, a, b in found if is_bad]
        if problems:
            raise UserError(*problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window now, and what it takes to change it.

    Attributes:
        layers: its size.
        calls: boundaries in a row that asked for more.
        trial: boundaries left to watch a larger window; 0 when none is on trial.
        before: the share of exposed waiting before the trial.
        ceiling: no trial above this again, since it brought nothing or took too much memory; 0 for none.
    """

    layers: int
    calls: int = 0
    trial: int = 0
    before: float = 0.0
    ceiling: int = 0


def adapt(rules: WindowRules, window: Window, reports: Sequence[Report]) -> Window:
    """Window from here on.

    The slowest rank decides, since all wait for it, and the fullest one: a rank short of memory shrinks the window at
    once, and it does not grow that far again. A larger window is on trial for `patience` boundaries; one that does not
    shorten the waiting is taken back for good, so that windows do not swing to and fro.

    Args:
        rules: when the window changes.
        window: the present one.
        reports: of all ranks, in the order of the ranks.
    """
    share = max(_share(report) for report in reports)
    free_bytes = min(report.free_bytes for report in reports)
    if free_bytes < rules.reserve_bytes and window.layers > rules.least:
        lower = window.layers - 1
        return Window(layers=lower, ceiling=lower)
    if window.trial > 1:
        return replace(window, trial=window.trial - 1)
    if window.trial == 1:
        if share > window.before * (1 - rules.gain_share):
            lower = max(window.layers - 1, rules.least)
            return Window(layers=lower, ceiling=lower)
        window = replace(window, trial=0)
    most = min(rules.most, window.ceiling or rules.most)
    has_room = free_bytes >= rules.reserve_bytes + rules.layer_bytes
    if share <= rules.grow_share or window.layers >= most or not has_room:
        return replace(window, calls=0)
    if window.calls + 1 < rules.patience:
        return replace(window, calls=window.calls + 1)
    larger = window.layers + 1
    return Window(layers=larger, trial=rules.patience, before=share, ceiling=window.ceiling)


def _share(report: Report) -> float:
    return report.exposed_seconds / report.step_seconds if report.step_seconds > 0 else 0.0
