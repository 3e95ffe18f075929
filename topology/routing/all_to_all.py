"""All-to-all schedules by fixed patterns: every pair by itself, or round a ring.

Each claims what its busiest wire needs when all steps overlap; the Schedule proves the claim when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from topology.collectives import Chunk, check_size
from topology.errors import TopologyError
from topology.graph import Graph
from topology.routing.exchanges import PairPaths, all_to_all_schedule, is_power_of_two, partner
from topology.routing.flow_routes import flow_based, flow_direct
from topology.routing.two_level import two_level
from topology.schedule import Phase, Schedule, Send


def direct(graph: Graph) -> Schedule:
    """Every pair by its widest path, or equal ones side by side; each device has one partner a step.

    Raises:
        TopologyError: fewer than two devices, or a pair that only a relay could join.
    """
    size = graph.size
    check_size(size)
    path_of = PairPaths(graph)
    chunks: list[Chunk] = []
    sends: list[Send] = []
    for step in range(size - 1):
        for source in range(size):
            target = partner(source, step + 1, size)
            routes = path_of.routes(source, target)
            for path in routes:
                sends.append(Send(step=step, source=source, target=target, chunk=len(chunks), path=path))
                chunks.append(Chunk(origin=source, target=target, share=Fraction(1, size * len(routes))))
    how = "exclusive or" if is_power_of_two(size) else "shift"
    phases = (Phase(name=f"each device with one other a step, by {how}", first=0, last=size - 2),)
    return all_to_all_schedule("direct", graph, chunks, sends, phases)


def ring(graph: Graph, order: Sequence[int] = ()) -> Schedule:
    """Pass every part from neighbour to neighbour, the shorter way round; halves go both ways where it is equal.

    Args:
        graph: where.
        order: the devices as they stand in the ring; empty: by rank.

    Raises:
        TopologyError: fewer than two devices, an order that is none of them, or neighbours that nothing joins.
    """
    size = graph.size
    check_size(size)
    places = tuple(order) or tuple(range(size))
    if sorted(places) != list(range(size)):
        raise TopologyError(
            asked=f"a ring of {size} devices", found=f"the order {list(places)}", remedy="name each rank once"
        )
    path_of = PairPaths(graph)
    paths = {(at, way): path_of(places[at], places[(at + way) % size]) for at in range(size) for way in (1, -1)}
    chunks: list[Chunk] = []
    sends: list[Send] = []
    for start in range(size):
        for distance, way, share in _trips(size):
            goal = (start + way * distance) % size
            chunks.append(Chunk(origin=places[start], target=places[goal], share=share))
            for step in range(distance):
                at = (start + way * step) % size
                to = places[(at + way) % size]
                path = paths[at, way]
                sends.append(Send(step=step, source=places[at], target=to, chunk=len(chunks) - 1, path=path))
    sends.sort(key=lambda send: send.step)
    phases = (Phase(name="parts move to the next device, both ways round", first=0, last=size // 2 - 1),)
    return all_to_all_schedule("ring", graph, chunks, sends, phases)


ALL_TO_ALL: Final[Mapping[str, Callable[[Graph], Schedule]]] = MappingProxyType(
    {"direct": direct, "ring": ring, "two_level": two_level, "flow_direct": flow_direct, "flow_based": flow_based}
)
MOST_IN_RING: Final = 16


def all_to_all_schedules(graph: Graph) -> Iterator[Schedule]:
    """Yield the schedules that this graph allows; a pattern that does not fit it is left out.

    So is a ring of many: it passes every part on size / 4 times on average.

    Raises:
        TopologyError: fewer than two devices.
    """
    check_size(graph.size)
    for name, build in ALL_TO_ALL.items():
        if name == "ring" and graph.size > MOST_IN_RING:
            continue
        try:
            yield build(graph)
        except TopologyError:
            continue


def _trips(size: int) -> Iterator[tuple[int, int, Fraction]]:
    """Distance, way round and share of each part that one device sends."""
    whole = Fraction(1, size)
    for distance in range(1, size // 2 + 1):
        is_half = 2 * distance == size
        for way in (1, -1):
            yield distance, way, whole / 2 if is_half else whole
