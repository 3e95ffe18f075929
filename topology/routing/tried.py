"""Ways that were carried out on the very group: how their time compares with what the model says of them.

The model knows wires, messages and fixed times. What it does not know (cores that many ranks share, how a library
orders its work) shows in these ratios, which vary slowly with size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topology.collectives import Collective

LIBRARY: Final = "builtin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A way that was timed.

    Attributes:
        collective: that was carried out.
        way: the algorithm, or LIBRARY where the communication library chose its own.
        nbytes: of M, as `collectives` defines it.
        ratio: of the measured seconds to the model's; above 0.
    """

    collective: Collective
    way: str
    nbytes: int
    ratio: float


def ratio_of(tried: Sequence[Tried], collective: Collective, way: str, nbytes: float) -> float:
    """Return what the model's seconds of a way are to be multiplied by; 1 where nothing of the kind was tried.

    Between two sizes the ratio goes straight in the logarithms of both, outside it stays. A way of the executor that
    was not tried is taken to be as far from the model as those that were.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in tried:
        if one.collective is collective:
            points[one.way].append((math.log(one.nbytes), math.log(one.ratio)))
    at = math.log(max(1.0, nbytes))
    if way in points:
        return math.exp(_between(points[way], at))
    like = [_between(found, at) for name, found in points.items() if LIBRARY not in (name, way)]
    return math.exp(sum(like) / len(like)) if like else 1.0


def _between(points: list[tuple[float, float]], at: float) -> float:
    ordered = sorted(points)
    below = max((point for point in ordered if point[0] <= at), default=ordered[0])
    above = min((point for point in ordered if point[0] >= at), default=ordered[-1])
    if above[0] <= below[0]:
        return below[1] if at >= below[0] else above[1]
    return below[1] + (above[1] - below[1]) * (at - below[0]) / (above[0] - below[0])
