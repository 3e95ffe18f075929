"""A schedule of sends for a collective: a value that proves what it delivers when it is made.

A send moves the sender's state of a chunk along a path of the graph. All sends of a step read the state before the
step. A rank's state of a chunk is the set of ranks whose contributions it holds: `add` joins two sets that must have
nothing in common (a sum), otherwise the incoming set replaces one that it must contain (a copy).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import groupby, pairwise
from math import lcm

from topology.collectives import Chunk, Collective, check_size, problems_of
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph, NodeKind

_MOST_TOLD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One rank sends its state of a chunk to another at a step, along edges of the graph.

    Attributes:
        step: from 0 on.
        source: sending rank.
        target: receiving rank.
        chunk: index of the chunk.
        path: edge indices from source to target; devices between them pass the bytes on.
        add: whether the receiver sums, or copies.
    """

    step: int
    source: int
    target: int
    chunk: int
    path: tuple[int, ...]
    add: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a schedule in words, over steps `first` to `last`."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Sends that carry out a collective on a graph. Making one proves it, or fails.

    Attributes:
        algorithm: its name.
        collective: what it carries out.
        graph: where.
        chunks: the data.
        sends: by step.
        phases: what the steps are, in words.
        claimed_seconds_per_unit: seconds per byte of M, times UNIT_BYTES_PER_SECOND, that a builder promises when the
            steps overlap; proved against the capacities. None: no promise.
    """

    algorithm: str
    collective: Collective
    graph: Graph
    chunks: tuple[Chunk, ...]
    sends: tuple[Send, ...]
    phases: tuple[Phase, ...] = ()
    claimed_seconds_per_unit: Fraction | None = None

    def __post_init__(self) -> None:
        """Prove the postcondition, the paths and the capacities.

        Raises:
            TopologyError: what is not delivered, which send is impossible, or which edge carries too much.
        """
        check_size(self.graph.size)
        problems = list(problems_of(self.collective, self.chunks, self.graph.size))
        problems += _path_problems(self.graph, self.sends, len(self.chunks))
        if not problems:
            problems += self._undelivered()
        claim = self.claimed_seconds_per_unit
        if not problems and claim is not None:
            problems += [
                f"edge {self._named(edge)} needs {float(need):.6g} s/MB, promised {float(claim):.6g}"
                for edge, need in self.edge_seconds_per_unit.items()
                if need > claim
            ]
        if problems:
            more = len(problems) - _MOST_TOLD
            told = (*problems[:_MOST_TOLD], *([f"and {more} more"] if more > 0 else []))
            asked = f"a {self.algorithm} schedule for {self.collective.value} over {self.graph.size} devices"
            raise TopologyError(asked=asked, problems=told, remedy="correct the builder of the schedule")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.graph.size

    @cached_property
    def num_steps(self) -> int:
        """Number of steps."""
        return max((send.step for send in self.sends), default=-1) + 1

    @cached_property
    def relays(self) -> bool:
        """Whether some path leads through a device that is neither end of its send."""
        nodes, edges = self.graph.nodes, self.graph.edges
        return any(nodes[edges[at].head].kind is NodeKind.device for send in self.sends for at in send.path[:-1])

    def steps(self) -> Iterator[tuple[Send, ...]]:
        """Yield the sends of each step that has some."""
        for _, sends in groupby(self.sends, key=lambda send: send.step):
            yield tuple(sends)

    @cached_property
    def edge_seconds_per_unit(self) -> dict[int, Fraction]:
        """Seconds that each limited edge is busy for a byte of M, times UNIT_BYTES_PER_SECOND."""
        return self.loads(self.sends)

    def loads(self, sends: Sequence[Send]) -> dict[int, Fraction]:
        """The same for some of the sends only."""
        # Counted in whole parts of M: sums of fractions would take most of the time of a proof.
        whole, parts = self._parts
        amounts: dict[int, int] = {}
        for send in sends:
            part = parts[send.chunk]
            for at in send.path:
                amounts[at] = amounts.get(at, 0) + part
        edges = self.graph.edges
        return {
            at: Fraction(amount, whole * units)
            for at, amount in amounts.items()
            if (units := edges[at].units) is not None
        }

    @cached_property
    def _parts(self) -> tuple[int, tuple[int, ...]]:
        """A number of equal parts of M of which every chunk has a whole number, and these numbers."""
        whole = lcm(*(chunk.share.denominator for chunk in self.chunks))
        return whole, tuple(int(chunk.share * whole) for chunk in self.chunks)

    @cached_property
    def overlapped_seconds_per_byte(self) -> float:
        """Seconds per byte of M when all steps overlap on pieces of the data: the busiest edge."""
        return float(max(self.edge_seconds_per_unit.values(), default=Fraction(0))) / UNIT_BYTES_PER_SECOND

    @cached_property
    def stepwise_seconds_per_byte(self) -> float:
        """Seconds per byte of M when each step waits for the one before: the busiest edge of each, summed."""
        steps = (max(self.loads(sends).values(), default=Fraction(0)) for sends in self.steps())
        return float(sum(steps, Fraction(0))) / UNIT_BYTES_PER_SECOND

    def _named(self, edge: int) -> str:
        found = self.graph.edges[edge]
        return f"{self.graph.nodes[found.tail].id} -> {self.graph.nodes[found.head].id}"

    def _undelivered(self) -> list[str]:
        """Run the schedule on sets of contributions (bits); report what goes wrong."""
        size, full = self.size, (1 << self.size) - 1
        state: list[list[int]] = [
            [1 << rank if chunk.origin in (None, rank) else 0 for rank in range(size)] for chunk in self.chunks
        ]
        problems: list[str] = []
        for sends in self.steps():
            moved = [(send, state[send.chunk][send.source]) for send in sends]
            for send, value in moved:
                fault = _receive(state[send.chunk], send, value)
                if fault:
                    what = f"chunk {send.chunk} from {send.source} to {send.target}"
                    problems.append(f"step {send.step}: {what}: {fault}")
        for at, chunk in enumerate(self.chunks):
            want = full if chunk.origin is None else 1 << chunk.origin
            needs = range(size) if chunk.target is None else (chunk.target,)
            late = [str(rank) for rank in needs if state[at][rank] != want]
            if late:
                problems.append(f"chunk {at} does not reach rank {', '.join(late[:_MOST_TOLD])} whole")
        return problems


def _receive(state: list[int], send: Send, value: int) -> str:
    """Change the receiver's state of a chunk; say what makes no sense about a send, if anything."""
    if not value:
        return "the sender has nothing of it"
    held = state[send.target]
    if send.add:
        if held & value:
            return "a contribution is added twice"
        state[send.target] = held | value
        return ""
    if held & ~value:
        return "a copy would lose contributions"
    state[send.target] = value
    return ""


def _path_problems(graph: Graph, sends: Sequence[Send], num_chunks: int) -> list[str]:
    problems = [
        f"step {after.step} is listed after step {before.step}"
        for before, after in pairwise(sends)
        if after.step < before.step
    ]
    for send in sends:
        fault = _path_fault(graph, send, num_chunks)
        if fault:
            problems.append(f"step {send.step}: {send.source} to {send.target}: {fault}")
    return problems


def _path_fault(graph: Graph, send: Send, num_chunks: int) -> str:
    edges, path = graph.edges, send.path
    if not (0 <= send.source < graph.size and 0 <= send.target < graph.size and 0 <= send.chunk < num_chunks):
        return f"no such rank, or no chunk {send.chunk}"
    if not path or min(path) < 0 or max(path) >= len(edges):
        return "no path"
    broken = any(edges[a].head != edges[b].tail for a, b in pairwise(path))
    if broken or edges[path[0]].tail != send.source or edges[path[-1]].head != send.target:
        return "the path does not lead there"
    return ""
