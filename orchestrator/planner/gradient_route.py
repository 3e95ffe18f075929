"""Who sums the gradients of the adapters over the ranks: the value that a plan holds, exact in JSON."""

from __future__ import annotations

from dataclasses import dataclass

from topology.routing.software import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """Bytes per second that a bench measured of the link between `a` and `b`."""

    a: str
    b: str
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRoute:
    """Who sums the gradients, and all that a rank needs to build the same schedule as the others.

    Attributes:
        runner: the library (torch's own all-reduce, or DeepSpeed), or the executor of schedules.
        why: in one sentence.
        algorithm: that the executor runs; of the library's offers the one reckoned with, empty where none was.
        pieces: that the largest chunk of a bucket is cut into.
        piece_bytes: of such a piece, as the executor aims at it.
        buckets: that DistributedDataParallel sends the gradients of a step in, as the estimate counts them.
        nbytes: of the gradients of a step.
        seconds: predicted for a step's gradients by this route; None where nothing was reckoned.
        builtin_seconds: the same for torch's own all-reduce.
        links: measured rates that the schedule was built with, sorted by both ends.
        host_copy_bytes_per_second: measured, what a CPU rank moves through its host's memory; None: a prior.
        fingerprint: of the schedule, in hex; empty for the library.
    """

    runner: Runner
    why: str
    algorithm: str = ""
    pieces: int = 1
    piece_bytes: int = 0
    buckets: int = 0
    nbytes: int = 0
    seconds: float | None = None
    builtin_seconds: float | None = None
    links: tuple[LinkRate, ...] = ()
    host_copy_bytes_per_second: float | None = None
    fingerprint: str = ""

    def __post_init__(self) -> None:
        """Refuse a route that no rank could build."""
        if self.runner is Runner.paper:
            raise ValueError("gradients cannot be summed on paper")
        if self.runner is Runner.executor and not (self.algorithm and self.fingerprint and self.piece_bytes > 0):
            raise ValueError("the executor needs an algorithm, its fingerprint and a size of pieces")
