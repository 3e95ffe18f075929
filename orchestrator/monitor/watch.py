"""All detectors together: readings go in as they come, findings come out once each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.monitor.detectors import (
    device_errors,
    hang,
    host_memory,
    leak,
    loss,
    pcie,
    slow_link,
    straggler,
    throttle,
    xids,
)
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind
from orchestrator.monitor.readings import BeatReading, CopyReading, DeviceReading, HostReading, LinkReading, RankReading
from orchestrator.monitor.readings import Xid as XidReading
from orchestrator.monitor.steps import Steps

__all__ = ["Detectors", "Reading"]

Reading = RankReading | DeviceReading | HostReading | CopyReading | LinkReading

_OF_DEVICE = (throttle, pcie, device_errors, xids)


class Detectors:
    """Feeds every reading to the detectors that can judge it, and keeps their states.

    The memory is bounded by the ranks, devices, hosts and links of the plan. One of these is made for each attempt:
    states of another start say nothing about this one, except the XIDs of a device.
    """

    def __init__(self, facts: Facts, xid_history: Mapping[str, Sequence[XidReading]] | None = None) -> None:
        """Take what is planned, and earlier XIDs by device (of earlier attempts, or of the host's list)."""
        self._facts = facts
        self._past = {device: tuple(found) for device, found in (xid_history or {}).items()}
        self._states: dict[tuple[str, object], Any] = {}
        self._steps = Steps()
        self._straggler = straggler.State()
        self._slow_link = slow_link.State()
        self._loss = loss.State()
        self._hang = hang.State()
        self._left_bytes: dict[int, int] = {}
        self._hosts: dict[int, int] = {}

    def update(self, reading: Reading) -> list[Finding]:
        """Take a reading of any kind; return what it brought to light."""
        match reading:
            case RankReading():
                return self._of_rank(reading)
            case DeviceReading():
                return self._of_device(reading)
            case HostReading():
                if reading.memory_available_bytes is not None:
                    self._left_bytes[reading.host] = reading.memory_available_bytes
                return self._turn("host_memory", reading.host, host_memory.State(), host_memory.update, reading)
            case CopyReading():
                return self._turn("pcie", reading.device, pcie.State(), pcie.update_copy, reading)
            case LinkReading():
                return self._turn("link", reading.link, slow_link.LinkState(), slow_link.update_link, reading)

    def look(self, beats: Sequence[BeatReading], now_seconds: float) -> list[Finding]:
        """Take the beats of all ranks as they are now, on the reader's own clock; call it a few times a second."""
        self._hang, found = hang.update(self._hang, beats, now_seconds, self._facts)
        return list(found)

    def relative_speeds(self) -> tuple[float, ...]:
        """Return the work per second of each rank as measured, 1 for the middle one; empty where it is not known."""
        return straggler.relative_speeds(self._straggler)

    def xid_history(self) -> dict[str, tuple[XidReading, ...]]:
        """Return the newest XIDs by device, for the detectors of the next attempt."""
        seen = {str(key): state.history for (name, key), state in self._states.items() if name == "xids"}
        return {**self._past, **seen}

    def _turn(self, name: str, key: object, begin: Any, judge: Any, reading: Any) -> list[Finding]:  # noqa: ANN401
        state = self._states.get((name, key), begin)
        self._states[name, key], found = judge(state, reading, self._facts)
        return list(found)

    def _of_device(self, reading: DeviceReading) -> list[Finding]:
        found: list[Finding] = []
        for module in _OF_DEVICE:
            name = module.__name__.rpartition(".")[2]
            begin = module.State()
            if name == "xids":
                begin = xids.State(history=self._past.get(reading.device, ()))
            found += self._turn(name, reading.device, begin, module.update, reading)
        return found

    def _of_rank(self, reading: RankReading) -> list[Finding]:
        facts = self._facts
        self._hosts[reading.rank] = reading.host
        found = self._leak(reading, leak.device_use(reading, facts.device_limit_bytes), Kind.device_memory_leak)
        found += self._leak(reading, leak.host_use(reading, self._host_limit(reading)), Kind.host_memory_leak)
        self._loss, broken = loss.update(self._loss, reading, facts)
        found += broken
        self._steps, group = self._steps.take(reading, facts.world_size)
        if not group:
            return found
        self._loss, at_loss = loss.update_group(self._loss, group, facts)
        self._straggler, at_rank = straggler.update(self._straggler, group, facts)
        self._slow_link, at_link = slow_link.update(self._slow_link, group, facts)
        return [*found, *at_loss, *at_rank, *at_link]

    def _leak(self, reading: RankReading, use: leak.Use | None, kind: Kind) -> list[Finding]:
        key = (kind.value, reading.rank)
        state, found = leak.update(
            self._states.get(key, leak.State()),
            reading,
            use,
            kind,
            warmup_steps=self._facts.warmup_steps,
            num_steps=self._facts.num_steps,
        )
        self._states[key] = state
        return list(found)

    def _host_limit(self, reading: RankReading) -> float | None:
        """Return what the process of a rank may reach: its limit, else its share of what its host still has."""
        if self._facts.host_limit_bytes is not None or reading.host_bytes is None:
            return self._facts.host_limit_bytes
        left = self._left_bytes.get(reading.host)
        if left is None:
            return None
        return reading.host_bytes + left / Counter(self._hosts.values())[reading.host]
