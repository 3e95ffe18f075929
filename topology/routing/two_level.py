"""All-to-all in two levels: first inside the host, then between equal positions of the hosts.

What goes to a position of another host is gathered at a device of the own host, which then sends it on in one piece:
fewer and larger messages on the network, each on its own rail. Hosts may have different numbers of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from topology.collectives import Chunk, check_size
from topology.errors import TopologyError
from topology.graph import Graph
from topology.routing.exchanges import PairPaths, all_to_all_schedule, partner
from topology.schedule import Phase, Schedule, Send


def two_level(graph: Graph, groups: Sequence[Sequence[int]] = ()) -> Schedule:
    """Inside each group first, then across.

    Args:
        graph: where.
        groups: ranks of each group; empty: those of each host.

    Raises:
        TopologyError: fewer than two devices or groups, groups that do not name each rank once, or a pair that only a
            relay could join.
    """
    check_size(graph.size)
    teams = [list(group) for group in groups] or by_host(graph)
    _check(graph, teams)
    build = _Build(graph, teams)
    inner = max(len(team) for team in teams) - 1
    sends = [*build.inside(), *build.across(inner)]
    phases = [Phase(name="between the groups, from position to position", first=inner, last=inner + len(teams) - 2)]
    if inner:
        phases.insert(0, Phase(name="inside each group, to whom sends it on", first=0, last=inner - 1))
    sends.sort(key=lambda send: send.step)
    return all_to_all_schedule("two_level", graph, build.chunks, sends, tuple(phases))


def by_host(graph: Graph) -> list[list[int]]:
    """Ranks of each host, in the order in which the hosts come first."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(graph.hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())


def _check(graph: Graph, teams: Sequence[Sequence[int]]) -> None:
    asked = f"a two-level all-to-all of {graph.size} devices"
    if sorted(rank for team in teams for rank in team) != list(range(graph.size)) or not all(teams):
        raise TopologyError(asked=asked, found=f"groups {list(teams)}", remedy="name each rank in one group")
    if len(teams) < 2:  # noqa: PLR2004 - there is nothing to cross
        raise TopologyError(asked=asked, found="one group", remedy="use a direct all-to-all")


class _Build:
    """Every pair is a chunk, or one for each route between the hosts; `via` of the sender's group sends it on."""

    def __init__(self, graph: Graph, teams: list[list[int]]) -> None:
        self._path = PairPaths(graph)
        self._teams = teams
        self.chunks: list[Chunk] = []
        self._via: list[tuple[int, int, int, tuple[int, ...]]] = []  # source, sender, target, path of the sender
        for own in teams:
            for place, source in enumerate(own):
                for other in teams:
                    for goal, target in enumerate(other):
                        via = target if other is own else own[_sender(place, goal, len(own), len(other))]
                        if source != target:
                            self._add(source, via, target, graph.size)

    def _add(self, source: int, via: int, target: int, size: int) -> None:
        routes = self._path.routes(via, target) if via != target else ((),)
        for route in routes:
            self.chunks.append(Chunk(origin=source, target=target, share=Fraction(1, size * len(routes))))
            self._via.append((source, via, target, route))

    def inside(self) -> Iterator[Send]:
        """Sends to whoever sends on, and to targets in the same group."""
        step_of = {
            (rank, team[partner(place, step, len(team))]): step - 1
            for team in self._teams
            for place, rank in enumerate(team)
            for step in range(1, len(team))
        }
        for at, (source, via, _, _) in enumerate(self._via):
            if via != source:
                path = self._path(source, via)
                yield Send(step=step_of[source, via], source=source, target=via, chunk=at, path=path)

    def across(self, first: int) -> Iterator[Send]:
        """Sends from group to group, one other group a step."""
        team_of = {rank: at for at, team in enumerate(self._teams) for rank in team}
        count = len(self._teams)
        step_of = {(at, partner(at, step, count)): first + step - 1 for at in range(count) for step in range(1, count)}
        for at, (_, via, target, route) in enumerate(self._via):
            if via != target:
                step = step_of[team_of[via], team_of[target]]
                yield Send(step=step, source=via, target=target, chunk=at, path=route)


def _sender(place: int, goal: int, senders: int, goals: int) -> int:
    """Position that sends on what `place` has for `goal`: each sends equally many, in the order of the goals."""
    return (goal * senders + place) // goals
