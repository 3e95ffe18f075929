"""Latency and bandwidth of links from measured transfers: seconds = alpha + bytes / beta for each class of link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np
import scipy

from orchestrator.errors import Problem, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured transfer.

    Attributes:
        link: class of the link, in the words of whoever measured.
        size_bytes: payload.
        seconds: from its start to its end.
    """

    link: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """What a class of links does.

    Attributes:
        alpha_seconds: of an empty message.
        bytes_per_second: of a long one.
        samples: how many measurements this rests on.
        worst_error: largest relative distance of a size's median from the line.
    """

    alpha_seconds: float
    bytes_per_second: float
    samples: int
    worst_error: float

    def seconds(self, size_bytes: float) -> float:
        """Predicted seconds of a transfer."""
        return self.alpha_seconds + size_bytes / self.bytes_per_second


def fit_links(samples: Iterable[Sample]) -> dict[str, LinkFit]:
    """Fit a line for each class of link.

    The medians per size are fitted by least squares of the relative error, with neither term below zero: an absolute
    error would let the longest transfers decide alone, and say nothing about latency.

    Raises:
        UserError: a class with fewer than two sizes, a transfer that took no time, or times that do not grow with size.
    """
    times: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        times[sample.link][sample.size_bytes].append(sample.seconds)
    problems = [problem for link, by_size in sorted(times.items()) for problem in _problems(link, by_size)]
    if problems:
        raise UserError(*problems)
    fits = {link: _fit(by_size) for link, by_size in sorted(times.items())}
    flat = [link for link, fit in fits.items() if fit.bytes_per_second == float("inf")]
    if flat:
        remedy = "measure larger transfers"
        raise UserError(*(Problem(where=link, found="times do not grow with the size", remedy=remedy) for link in flat))
    return fits


def _problems(link: str, by_size: dict[int, list[float]]) -> Iterable[Problem]:
    if len(by_size) < 2:  # noqa: PLR2004 - a line needs two points
        yield Problem(where=link, found="transfers of one size", remedy="measure two sizes or more")
    if min(by_size) < 0 or not all(0 < seconds < float("inf") for times in by_size.values() for seconds in times):
        yield Problem(where=link, found="a size or time that is none", remedy="measure again")


def _fit(by_size: dict[int, list[float]]) -> LinkFit:
    sizes = np.array(sorted(by_size), dtype=float)
    seconds = np.array([median(by_size[size]) for size in sorted(by_size)])
    scale = max(sizes.max(), 1.0)  # both columns of one size, else the solver's tolerance hides the latency
    columns = np.stack([np.full_like(sizes, seconds.min()), sizes / scale * seconds.max()], axis=1)
    (alpha, per_scale), _ = scipy.optimize.nnls(columns / seconds[:, None], np.ones_like(seconds))
    alpha_seconds, rate = float(alpha * seconds.min()), float(per_scale * seconds.max() / scale)
    predicted = alpha_seconds + sizes * rate
    return LinkFit(
        alpha_seconds=alpha_seconds,
        bytes_per_second=1 / rate if rate > 0 else float("inf"),
        samples=sum(map(len, by_size.values())),
        worst_error=float(np.max(np.abs(predicted / seconds - 1))),
    )
