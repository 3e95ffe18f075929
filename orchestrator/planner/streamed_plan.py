"""How the layers' frozen bytes are held and fetched under engine `streamed`: all that a rank needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planner.gradient_route import GradientRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBytes:
    """Bytes of the layers that a rank keeps, by where they wait between uses."""

    device: int
    host: int = 0
    nvme: int = 0

    def __post_init__(self) -> None:
        """Reject bytes below 0."""
        if min(self.device, self.host, self.nvme) < 0:
            msg = f"{self} has bytes below 0"
            raise ValueError(msg)

    @property
    def total(self) -> int:
        """Bytes of all tiers."""
        return self.device + self.host + self.nvme


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedPlan:
    """Who holds which part of the frozen layers, and how many of them are whole at a time.

    Attributes:
        shares: of each rank, in rank order. Each island's sum to the layers' bytes as planned; they are scaled to the
            bytes found on load.
        island_size: consecutive ranks that hold one copy between them.
        resident_bytes: on every rank, for layers that are held whole.
        window: layers whole on the device at once, the one at work included.
        most_window: what the window may grow to while training.
        chunk_bytes: of one transfer.
        gather_window_bytes: that all ranks gather while one layer computes; None for as much as the window holds.
        window_bytes: of each rank: all transfers while one layer computes; None as above.
        nvme_path: folder on the fast disk; empty where no share has bytes there.
        told: the cut in words, line by line.
        gather_route: who brings the shards of a layer together; of the chosen strategy only.
    """

    shares: tuple[TierBytes, ...]
    island_size: int
    resident_bytes: int
    window: int
    most_window: int
    chunk_bytes: int
    gather_window_bytes: int | None = None
    window_bytes: tuple[int | None, ...] = ()
    nvme_path: str = ""
    told: tuple[str, ...] = ()
    gather_route: GradientRoute | None = None

    def __post_init__(self) -> None:
        """Reject plans that no world could run."""
        rules = (
            (not self.shares, "no ranks"),
            (self.island_size < 1 or len(self.shares) % self.island_size != 0, "islands of another size than the rest"),
            (not 1 <= self.window <= self.most_window, f"a window of {self.window} of at most {self.most_window}"),
            (self.resident_bytes < 0 or self.chunk_bytes < 1, "bytes below 0"),
            (len(self.window_bytes) not in (0, len(self.shares)), "window_bytes of other ranks than the shares"),
            (any(share.nvme for share in self.shares) and not self.nvme_path, "bytes on a drive without a folder"),
        )
        problems = [found for broken, found in rules if broken]
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def islands(self) -> int:
        """Copies of the layers over all ranks."""
        return len(self.shares) // self.island_size

    def island_of(self, rank: int) -> range:
        """Ranks that hold one copy with this one."""
        first = rank - rank % self.island_size
        return range(first, first + self.island_size)
