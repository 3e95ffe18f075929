"""The results of an estimate: named terms that add up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One addend in bytes, and why it is there."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerm:
    """One addend of a step in seconds, and why it is there.

    `total_seconds` is its work whether or not something hides it; `seconds` is what it adds to the step.
    """

    name: str
    seconds: float
    why: str
    total_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """Peak bytes of one rank in one phase.

    Attributes:
        allocated_bytes: live tensors on the device; the sum of `terms`.
        reserved_bytes: what the allocator holds for them.
        device_bytes: what nvidia-smi shows (on a CPU: the process's resident memory).
        host_bytes: resident and pinned host memory of the rank's process.
        terms: the addends of `allocated_bytes`.
        host_terms: the addends of `host_bytes`.
        pinned_bytes: of `host_bytes`, what is pinned for the device to read.
    """

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    host_bytes: int
    terms: tuple[Term, ...]
    host_terms: tuple[Term, ...] = ()
    pinned_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks by phase: loading the base, training, saving a checkpoint."""

    load: PhaseMemory
    train: PhaseMemory
    save: PhaseMemory

    @property
    def device_bytes(self) -> int:
        """Largest device peak of the three phases."""
        return max(self.load.device_bytes, self.train.device_bytes, self.save.device_bytes)

    @property
    def host_bytes(self) -> int:
        """Largest host peak of the three phases."""
        return max(self.load.host_bytes, self.train.host_bytes, self.save.host_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step.

    `step_seconds` adds all terms. `lower_seconds` is the work of the busiest stream, at its best;
    `upper_seconds` hides nothing and takes everything slower than expected. `reduce_seconds` are all sums of
    gradients, hidden or not. `terms` are empty where they were not asked for.
    """

    step_seconds: float
    lower_seconds: float
    upper_seconds: float
    tokens_per_second: float
    reduce_seconds: float
    terms: tuple[TimeTerm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory of the tightest rank and time of the slowest one. Tokens are real ones, without padding."""

    memory: Memory
    step_seconds: float
    tokens_per_second: float
    lower_seconds: float
    upper_seconds: float
    time_terms: tuple[TimeTerm, ...]
