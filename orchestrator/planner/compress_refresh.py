"""Steps in which all elements travel, so that none waits longer than a part of the run so far.

With 1% of the elements in a step, an element waits a hundred steps, and then brings gradients of a model that is no
longer there. Early in a run that is the whole run. So now and then all elements travel, in few bits: each time the run
has grown by the fraction `compress.refresh`. Their number grows with the logarithm of the steps, so long runs hardly
pay for them. Decision note 14 has what was tried.
"""

from __future__ import annotations

from collections.abc import Iterator


def is_refresh(step: int, fraction: float) -> bool:
    """Whether all elements travel in a step.

    A function of the step alone: all ranks agree on it, and so does a run that was resumed. Only products of the same
    two doubles are rounded, to whole numbers, which every processor does alike.

    Args:
        step: counted from 0 at the beginning of the run.
        fraction: of the steps so far, after which the next refresh comes; at least after one step. 0 for never.
    """
    if fraction <= 0:
        return False
    for at in _refreshes(fraction, step):
        if at >= step:
            return at == step
    raise AssertionError("the refreshes have no end")


def count_refreshes(fraction: float, begin: int, end: int) -> int:
    """Refresh steps of those from `begin` on, before `end`."""
    if fraction <= 0 or begin >= end:
        return 0
    # Each step is one until the fraction is two steps.
    early = min(end, max(begin, _settled(fraction)))
    found = early - begin
    for at in _refreshes(fraction, early):
        if at >= end:
            break
        found += at >= early
    return found


def _settled(fraction: float) -> int:
    """A step up to which each is a refresh."""
    return int(1 / fraction)


def _refreshes(fraction: float, step: int) -> Iterator[int]:
    """Yield all refreshes without end, from `step` or an earlier one on."""
    at = min(step, _settled(fraction))
    while True:
        yield at
        at += max(1, int(fraction * at))
