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


class Runner(Enum):
    """Who can carry out a route today."""

    library = "library"  # torch's own collective: NCCL or gloo
    executor = "executor"  # orchestrator.collectives, by sends and receives
    paper = "paper"  # proved, but no code path


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The communication library of a group.

    Attributes:
        name: `nccl` or `gloo`.
        launch_seconds: of one collective.
        step_seconds: of one send and receive that others wait for.
        one_way_share: of a link's rate that one large message in each direction reaches (gloo alternates between
            reading and writing); pieces of `piece_bytes` reach all of it.
        piece_bytes: of a message that keeps both directions busy.
        most_pieces: that a chunk is cut into.
        source: of these values.
    """

    name: str
    launch_seconds: float
    step_seconds: float
    one_way_share: float = 1.0
    piece_bytes: int = 1
    most_pieces: int = 64
    source: str


NCCL: Final = Software(
    name="nccl", launch_seconds=NCCL_LAUNCH_SECONDS, step_seconds=NCCL_STEP_SECONDS, source="priors for NCCL 2.30"
)
GLOO: Final = Software(
    name="gloo",
    launch_seconds=GLOO_LAUNCH_SECONDS,
    step_seconds=GLOO_STEP_SECONDS,
    one_way_share=0.74,
    piece_bytes=2 * 2**20,
    source="priors for gloo of torch 2.13 on Linux; one 64 MiB message each way took 1.33 times as long as its pieces",
)


def software_of(graph: Graph) -> Software:
    """NCCL for GPUs, gloo for CPU slots."""
    return GLOO if any(edge.link is LinkClass.memory for edge in graph.edges) else NCCL
