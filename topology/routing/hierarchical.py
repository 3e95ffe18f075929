"""Two-level schedules: inside islands over the fast links, across them by few or all devices of each.

`hierarchical` lets as many devices of every island take part across as the smallest island has, each position with its
own part of the data; `leaders` lets one, so that a host with one slow NIC sends each byte over it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Final

from topology.collectives import Collective, check_size
from topology.errors import TopologyError
from topology.graph import Graph
from topology.paths import width
from topology.routing.islands import Hops, hosts_of, islands_of, near_order
from topology.routing.trees import Hop, Tree, busiest, refusal, schedule_of_trees
from topology.schedule import Phase, Schedule

_MOST_TRIED: Final = 64  # up to so many devices both patterns inside and across are counted out; above, chains

_MOST_CHUNKS: Final = 1024

Pattern = Callable[[Sequence[int], int], list[tuple[int, int, int]]]  # step, from, to


def hierarchical(
    graph: Graph, collective: Collective, islands: Sequence[Sequence[int]] = (), *, num_across: int | None = None
) -> Schedule:
    """The schedule in which devices at the same position of every island exchange across.

    Args:
        graph: where.
        collective: all_gather (across, then inside), reduce_scatter (the reverse) or all_reduce (both).
        islands: ranks of each; without them those of the graph, or its hosts, whichever takes less time.
        num_across: positions that take part across; None: as many as the smallest island has devices.

    Raises:
        TopologyError: one island only, ranks that are in none or in two, or an all-to-all.
    """
    return _schedule("hierarchical", graph, collective, islands, num_across)


def leaders(graph: Graph, collective: Collective, islands: Sequence[Sequence[int]] = ()) -> Schedule:
    """The schedule in which one device of each island exchanges across, for the whole island.

    Raises:
        TopologyError: as `hierarchical`.
    """
    return _schedule("leaders", graph, collective, islands, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Islands in the order they exchange, positions across, and what is sent how."""

    islands: tuple[tuple[int, ...], ...]
    num_across: int
    inside: Pattern
    across: Pattern
    collective: Collective
    num_lanes: int

    def member(self, island: int, position: int) -> int:
        return self.islands[island][position]

    @property
    def steps(self) -> tuple[int, int, int]:
        """Steps to the exchanging device, across, and inside."""
        # Of an all-reduce nobody owns a part, so that nothing needs handing over.
        owned = self.collective is not Collective.all_reduce
        to_leader = int(owned and any(len(island) > self.num_across for island in self.islands))
        across = max((step for step, _, _ in self.across(range(len(self.islands)), 0)), default=-1) + 1
        widest = max(self.islands, key=len)
        return to_leader, across, max((step for step, _, _ in self.inside(widest, 0)), default=-1) + 1


def _schedule(
    algorithm: str, graph: Graph, collective: Collective, islands: Sequence[Sequence[int]], num_across: int | None
) -> Schedule:
    check_size(graph.size)
    if collective is Collective.all_to_all:
        raise refusal(algorithm, collective)
    hops = Hops(graph)
    # Islands may be many and small, each far from the NIC: hosts are tried as well.
    groupings = [tuple(map(tuple, islands))] if islands else list(dict.fromkeys((islands_of(graph), hosts_of(graph))))
    tried = [
        made
        for groups in (one for one in groupings if len(one) > 1 or len(groupings) == 1)
        for made in _tried(algorithm, hops, collective, groups, num_across)
    ]
    at = min(range(len(tried)), key=lambda number: (tried[number].seconds, sum(tried[number].plan.steps), number))
    plan, out, into = tried[at].plan, tried[at].out, tried[at].into
    return schedule_of_trees(
        algorithm, graph, collective, out=out, into=into, words={"out": _phases(plan), "into": _phases_back(plan)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """One way to do it, and what its busiest edge takes."""

    seconds: Fraction
    plan: _Plan
    out: list[Tree]
    into: list[Tree]


def _tried(
    algorithm: str, hops: Hops, collective: Collective, islands: Sequence[tuple[int, ...]], num_across: int | None
) -> list[_Tried]:
    """Every pattern inside and across, with and without lanes."""
    graph = hops.graph
    _check(algorithm, graph, islands)
    groups = tuple(near_order(hops, island) for island in islands)
    if num_across is not None or len({len(island) for island in groups}) > 1:
        groups = tuple(near_order(hops, _nearest_first(hops, groups, number)) for number in range(len(groups)))
    smallest = min(map(len, groups))
    count = smallest if num_across is None else max(1, min(num_across, smallest))
    patterns = [chain, star] if graph.size <= _MOST_TRIED else [chain]
    lanes = sorted({1, _num_lanes(hops, groups, count, collective)})
    found = []
    for inside, across, num_lanes in product(patterns, patterns, lanes):
        plan = _Plan(
            islands=groups,
            num_across=count,
            inside=inside,
            across=across,
            collective=collective,
            num_lanes=num_lanes,
        )
        out = _trees(plan, hops, out=True) if collective is not Collective.reduce_scatter else []
        into = _trees(plan, hops, out=False) if collective is not Collective.all_gather else []
        found.append(_Tried(seconds=busiest(graph, [*out, *into]), plan=plan, out=out, into=into))
    return found


def _nearest_first(hops: Hops, groups: Sequence[tuple[int, ...]], number: int) -> tuple[int, ...]:
    """Ranks of an island, first the one with the widest and then shortest way to the next island (to its NIC)."""
    other = groups[(number + 1) % len(groups)][0]

    def way(rank: int) -> tuple[bool, int, int]:
        path = hops.path(rank, other)
        units = width(hops.graph, path)
        return units is not None, -(units or 0), len(path)

    own = groups[number]
    first = min(own, key=way) if other not in own else own[0]
    return (first, *(rank for rank in own if rank != first))


def _check(algorithm: str, graph: Graph, groups: Sequence[tuple[int, ...]]) -> None:
    listed = sorted(rank for island in groups for rank in island)
    problems = []
    if len(groups) < 2:  # noqa: PLR2004 - one island has nothing across
        problems.append("one island only")
    if listed != list(range(graph.size)):
        problems.append(f"islands of {len(listed)} ranks, which are not each of the {graph.size} once")
    if problems:
        raise TopologyError(
            asked=f"a {algorithm} schedule over {graph.size} devices",
            problems=tuple(problems),
            remedy="use a ring or packed trees, or name islands that share out the ranks",
        )


def chain(ranks: Sequence[int], root: int) -> list[tuple[int, int, int]]:
    """From the root round to the one before it."""
    size = len(ranks)
    return [(step, ranks[(root + step) % size], ranks[(root + step + 1) % size]) for step in range(size - 1)]


def star(ranks: Sequence[int], root: int) -> list[tuple[int, int, int]]:
    """From the root to each of the others at once."""
    return [(0, ranks[root], rank) for at, rank in enumerate(ranks) if at != root]


def _trees(plan: _Plan, hops: Hops, *, out: bool) -> list[Tree]:
    """Out-trees, or in-trees with the same shape and steps in reverse."""
    size = sum(map(len, plan.islands))
    if plan.collective is Collective.all_reduce:
        # Nobody owns a part: one tree for each exchanging device.
        share = Fraction(1, len(plan.islands) * plan.num_across)
        roots = [(island, at) for island in range(len(plan.islands)) for at in range(plan.num_across)]
    else:
        share = Fraction(1, size)
        roots = [(number, at) for number, island in enumerate(plan.islands) for at in range(len(island))]
    last = sum(plan.steps) - 1
    trees = []
    for (island, at), lane in product(roots, range(plan.num_lanes)):
        made = []
        for step, a, b in _shape(plan, island, at):
            source, target = (a, b) if out else (b, a)
            lanes = hops.lanes(source, target) if plan.num_lanes > 1 else (hops.path(source, target),)
            when = step if out else last - step
            made.append(Hop(step=when, source=source, target=target, path=lanes[lane % len(lanes)]))
        trees.append(Tree(root=plan.member(island, at), share=share / plan.num_lanes, hops=tuple(made)))
    return trees


def _num_lanes(hops: Hops, groups: Sequence[Sequence[int]], num_across: int, collective: Collective) -> int:
    """How many parts every tree is cut into, so that each of a device's NICs carries one across."""
    num_trees = len(groups) * num_across if collective is Collective.all_reduce else sum(map(len, groups))
    lanes = max(len(hops.lanes(groups[0][at], groups[1][at])) for at in range(num_across))
    return max(1, min(lanes, _MOST_CHUNKS // num_trees))


def _shape(plan: _Plan, home: int, at: int) -> list[tuple[int, int, int]]:
    """Steps and ends of the out-tree of a device: to its exchanging device, across, then inside every island."""
    begin, num_across_steps, _ = plan.steps
    position = at % plan.num_across
    found = []
    if at != position:
        found.append((0, plan.member(home, at), plan.member(home, position)))
    for step, a, b in plan.across(range(len(plan.islands)), home):
        found.append((begin + step, plan.member(a, position), plan.member(b, position)))
    inside = begin + num_across_steps
    for number, island in enumerate(plan.islands):
        ranks = island
        root = position
        if number == home and at != position:
            # Its exchanging device has it already.
            ranks = tuple(rank for rank in island if rank != plan.member(home, position))
            root = ranks.index(plan.member(home, at))
        found += [(inside + step, a, b) for step, a, b in plan.inside(ranks, root)]
    return found


def _phases(plan: _Plan) -> tuple[Phase, ...]:
    to_leader, across, inside = plan.steps
    who = "the device that exchanges" if plan.num_across == 1 else f"one of {plan.num_across} devices that exchange"
    return _told(
        (f"hand every part to {who} across", to_leader),
        (f"exchange across {len(plan.islands)} islands ({_named(plan.across)})", across),
        (f"broadcast inside every island ({_named(plan.inside)})", inside),
    )


def _phases_back(plan: _Plan) -> tuple[Phase, ...]:
    to_leader, across, inside = plan.steps
    return _told(
        (f"sum inside every island ({_named(plan.inside)})", inside),
        (f"sum across {len(plan.islands)} islands ({_named(plan.across)})", across),
        ("hand every sum to the rank it belongs to", to_leader),
    )


def _told(*parts: tuple[str, int]) -> tuple[Phase, ...]:
    """Phases one after the other, by their steps; none for what takes no step."""
    phases, begin = [], 0
    for name, steps in parts:
        if steps:
            phases.append(Phase(name=name, first=begin, last=begin + steps - 1))
        begin += steps
    return tuple(phases)


def _named(pattern: Pattern) -> str:
    return "round a ring" if pattern is chain else "directly"
