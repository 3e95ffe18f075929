"""What a detector says: frozen, with its evidence, its numbers and what to do about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Finding", "Kind", "Response", "Severity"]


class Severity(Enum):
    """How much it matters, in rising order: worth knowing, costs speed or will, ends or spoils the run."""

    note = "note"
    warning = "warning"
    error = "error"


class Kind(Enum):
    """What was found."""

    straggler = "straggler"
    thermal_throttle = "thermal_throttle"
    power_brake = "power_brake"
    hardware_slowdown = "hardware_slowdown"
    power_cap = "power_cap"
    pcie_downgrade_suspected = "pcie_downgrade_suspected"
    pcie_downgrade = "pcie_downgrade"
    slow_link = "slow_link"
    hang = "hang"
    device_memory_leak = "device_memory_leak"
    host_memory_leak = "host_memory_leak"
    host_memory_low = "host_memory_low"
    loss_not_finite = "loss_not_finite"
    gradient_not_finite = "gradient_not_finite"
    loss_spike = "loss_spike"
    dead_adapters = "dead_adapters"
    ecc_uncorrected = "ecc_uncorrected"
    nvlink_errors = "nvlink_errors"
    device_lost = "device_lost"
    xid = "xid"


class Response(Enum):
    """What a fault of the hardware asks of the run, in rising order. A GPU is never reset by us: a person does that."""

    ignore = "ignore"
    restart = "restart"
    drop_device = "drop_device"
    drop_host = "drop_host"
    stop = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a detector found.

    Attributes:
        kind: what it is.
        severity: how much it matters.
        time: of the reading that told it, as that reading has it.
        step: optimizer steps done then; None where readings have no step.
        rank, host, device: whose it is; None where it is of the whole group.
        evidence: one line for people, with the figures.
        numbers: the figures by name, with units in the names; only finite ones.
        advice: what to do about it.
        response: what policy asks of the run; None where there is no policy (the reader decides by `kind`).
        quarantine: the device, or with `drop_host` the host, is to be left out of later plans until a person clears it.
    """

    kind: Kind
    severity: Severity
    time: float
    evidence: str
    advice: str
    step: int | None = None
    rank: int | None = None
    host: int | None = None
    device: str | None = None
    numbers: tuple[tuple[str, float], ...] = ()
    response: Response | None = None
    quarantine: bool = False

    def __post_init__(self) -> None:
        """A finding without evidence or advice helps nobody, and no JSON holds a NaN."""
        if not (self.evidence and self.advice):
            msg = f"{self.kind.value}: a finding needs evidence and advice"
            raise ValueError(msg)
        if not all(math.isfinite(value) for _, value in self.numbers):
            msg = f"{self.kind.value}: numbers must be finite, not {dict(self.numbers)}"
            raise ValueError(msg)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that say something, as plain JSON values."""
        values: dict[str, Any] = {
            "kind": self.kind.value,
            "severity": self.severity.value,
            "step": self.step,
            "rank": self.rank,
            "host": self.host,
            "device": self.device,
            "evidence": self.evidence,
            "advice": self.advice,
            "numbers": dict(self.numbers) or None,
            "response": self.response.value if self.response else None,
            "quarantine": self.quarantine or None,
        }
        return {key: value for key, value in values.items() if value is not None}
