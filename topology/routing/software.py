"""Fixed times and habits of the software that carries out a collective; measured values replace the priors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from topology.graph import Graph, LinkClass
from topology.routing.latency import (
    GLOO_LAUNCH_SECONDS,
    GLOO_STEP_SECONDS,
    NCCL_LAUNCH_SECONDS,
    NCCL_STEP_SECONDS,
)
from topology.routing.tried import Tried


class Runner(Enum):
    """Who can carry out a route today."""

    builtin = "library"  # torch's own collective: NCCL or gloo
    executor = "executor"  # orchestrator.collectives, by sends and receives
    paper = "paper"  # proved, but no code path


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The communication library of a group.

    Attributes:
        name: `nccl` or `gloo`.
        launch_seconds: of one collective of the library.
        step_seconds: of one send and receive of the library that others wait for.
        one_way_share: of a link's rate that two ranks reach which each send the other one large message at once (of
            gloo's two, the second often starts when the first has ended); pieces of `piece_bytes` reach all of it.
        many_ways_share: the same for many such pairs at once, which fill each other's gaps; None: as one pair. Of
            messages that wait for those before; an all-to-all starts all of its own together.
        piece_bytes: of a message that keeps both directions busy.
        most_pieces: that a chunk is cut into.
        executor_launch_seconds, executor_step_seconds: of schedules that are carried out by sends and receives; None:
            as the library.
        executor_message_seconds: of the work of a rank for one message that it sends or receives so; while it works on
            some, others are on their way.
        executor_share: of the links' rates that schedules carried out so reach: cores that copy and add take their
            time too.
        burst_seconds: of sending that a network lets pass at once after a pause (the bucket of a shaper).
        sum_bytes_per_second: what a rank adds up while its messages wait; None: adding takes no time.
        result_copy_bytes_per_second: what a rank copies of a large all-gather's result where the library gathers into
            new memory (torch does over gloo); None: it does not, or it takes no time.
        tried: ways that were carried out, beside what the model says of them.
        source: of these values.
    """

    name: str
    launch_seconds: float
    step_seconds: float
    one_way_share: float = 1.0
    many_ways_share: float | None = None
    piece_bytes: int = 1
    most_pieces: int = 64
    executor_launch_seconds: float | None = None
    executor_step_seconds: float | None = None
    executor_message_seconds: float = 0.0
    executor_share: float = 1.0
    burst_seconds: float = 0.0
    sum_bytes_per_second: float | None = None
    result_copy_bytes_per_second: float | None = None
    tried: tuple[Tried, ...] = ()
    source: str

    def exchange_share(self, pairs: int) -> float:
        """Share of a link's rate that so many pairs of ranks reach which send each other large messages at once."""
        if not pairs:
            return 1.0
        return self.one_way_share if pairs == 1 or self.many_ways_share is None else self.many_ways_share

    @property
    def turn_share(self) -> float:
        """Part of a message's time by which two ranks that send each other one take longer than one way.

        1 where one of them sends after the other, 0 where both send at once.
        """
        return min(1.0, max(0.0, 1 / self.one_way_share - 1))

    def launch_of(self, runner: Runner) -> float:
        """Seconds of one collective."""
        measured = None if runner is Runner.builtin else self.executor_launch_seconds
        return self.launch_seconds if measured is None else measured

    def step_of(self, runner: Runner) -> float:
        """Seconds of one send and receive that others wait for."""
        measured = None if runner is Runner.builtin else self.executor_step_seconds
        return self.step_seconds if measured is None else measured


NCCL: Final = Software(
    name="nccl", launch_seconds=NCCL_LAUNCH_SECONDS, step_seconds=NCCL_STEP_SECONDS, source="priors for NCCL 2.30"
)
GLOO: Final = Software(
    name="gloo",
    launch_seconds=GLOO_LAUNCH_SECONDS,
    step_seconds=GLOO_STEP_SECONDS,
    one_way_share=0.74,
    piece_bytes=512 * 2**10,
    most_pieces=512,
    source="priors for gloo of torch 2.13 on Linux; one 64 MiB message each way took 1.33 times as long as its pieces",
)


def software_of(graph: Graph) -> Software:
    """NCCL for GPUs, gloo for CPU slots."""
    return GLOO if any(edge.link is LinkClass.memory for edge in graph.edges) else NCCL
