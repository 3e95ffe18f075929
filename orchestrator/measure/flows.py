"""Which copies are timed at the same time: pairs alone, all pairs of a host across its link, everything at once.

A pair by itself cannot show an uplink that several share; all pairs across one cut can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

Flow = tuple[int, int]  # source and target rank


class Kind(Enum):
    """What a test tells."""

    inside = "a pair of ranks of one host"
    all_inside = "pairs of ranks in every host at once"
    pair = "a pair of ranks of two hosts"
    out = "all ranks of a host to other hosts"
    into = "all ranks of a host from other hosts"
    everywhere = "every host to the next at once"
    exchange = "two ranks to each other"
    all_exchange = "all ranks to those of other hosts and back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Copies of equal size that start at the same time."""

    kind: Kind
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A test at one size: seconds of each run, until the last copy had ended on the slowest rank."""

    test: Trial
    size_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What each copy of a test reaches.

    Attributes:
        test: what was copied at the same time.
        bytes_per_second: of each copy, by what a longer message takes more than a shorter one.
        alpha_seconds: of the smallest message.
        burst_bytes: of each copy that passed at once before that rate set in (a shaped network's bucket).
        runs: of each size.
        spread: half the distance between the slowest and the fastest run of the largest size, as a share.
    """

    test: Trial
    bytes_per_second: float
    alpha_seconds: float
    burst_bytes: float
    runs: int
    spread: float


def trials_of(hosts: Sequence[Sequence[int]]) -> tuple[Trial, ...]:
    """The one-way tests for ranks by host; a test whose copies another one has too is left out.

    Their number grows with the number of hosts, and their time with it.
    """
    tests: list[Trial] = []
    pairs = tuple((host[at], host[at + 1]) for host in hosts for at in range(0, len(host) - 1, 2))
    if pairs:
        tests += [Trial(kind=Kind.inside, flows=pairs[:1]), Trial(kind=Kind.all_inside, flows=pairs)]
    if len(hosts) > 1:
        tests.append(Trial(kind=Kind.pair, flows=((hosts[0][0], hosts[1][0]),)))
        for at, host in enumerate(hosts):
            others = [*hosts[at + 1 :], *hosts[:at]]
            ends = [(rank, _of(others[place % len(others)], place)) for place, rank in enumerate(host)]
            tests.append(Trial(kind=Kind.out, flows=tuple(ends)))
            tests.append(Trial(kind=Kind.into, flows=tuple((target, source) for source, target in ends)))
        nexts = zip(hosts, [*hosts[1:], hosts[0]], strict=True)
        flows = tuple((rank, _of(after, place)) for host, after in nexts for place, rank in enumerate(host))
        tests.append(Trial(kind=Kind.everywhere, flows=flows))
    seen: set[frozenset[Flow]] = set()
    kept = []
    for test in tests:
        if frozenset(test.flows) not in seen:
            seen.add(frozenset(test.flows))
            kept.append(test)
    return tuple(kept)


def exchanges_of(hosts: Sequence[Sequence[int]]) -> tuple[Trial, ...]:
    """Tests in which ranks send each other at once; within the host where there is one only."""
    if len(hosts) > 1:
        one = (hosts[0][0], hosts[1][0])
        many = [(a, b) for host in hosts for other in hosts if other is not host for a in host for b in other]
    else:
        one = (hosts[0][0], hosts[0][1])
        many = [(a, b) for a in hosts[0] for b in hosts[0] if a != b]
    pair = Trial(kind=Kind.exchange, flows=(one, one[::-1]))
    return (pair,) if len(many) <= len(pair.flows) else (pair, Trial(kind=Kind.all_exchange, flows=tuple(many)))


def _of(ranks: Sequence[int], place: int) -> int:
    return ranks[place % len(ranks)]


def speed_of(timed: Sequence[Timed], burst_bytes: float | None = None) -> Speed:
    """Fit one test that was timed at three sizes or more: latency by the smallest, the rate by the two largest.

    A shaped network lets some bytes pass at once after a pause. Where what the longest message gained by that is more
    than its runs differ, the rate is told by what it took more than the shorter one; otherwise by all it took.

    Args:
        timed: the same test.
        burst_bytes: of each copy, where another test has told it: a difference of two times is the noisier the more
            processes share the cores. None: to be told by this test.

    Raises:
        ArithmeticError: a longer message took no longer.
    """
    by_size = sorted(timed, key=lambda one: one.size_bytes)
    small, shorter, longer = by_size[0], by_size[-2], by_size[-1]
    first, second = median(shorter.seconds), median(longer.seconds)
    if second <= first:
        raise ArithmeticError("a longer message took no longer: the machine was too busy to tell")
    rate = (longer.size_bytes - shorter.size_bytes) / (second - first)
    burst = longer.size_bytes - rate * second if burst_bytes is None else 0.0
    apart = max(max(x.seconds) - min(x.seconds) for x in (shorter, longer))
    if burst / rate <= 2 * apart:
        burst = min(burst_bytes or 0.0, longer.size_bytes / 2)
        rate = (longer.size_bytes - burst) / second
    return Speed(
        test=longer.test,
        bytes_per_second=rate,
        alpha_seconds=median(small.seconds),
        burst_bytes=burst,
        runs=len(longer.seconds),
        spread=(max(longer.seconds) - min(longer.seconds)) / 2 / second,
    )
