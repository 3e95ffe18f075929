"""A run as it stands now, in a few lines: how far, how long still, what holds it back. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading
from topology.units import format_bytes

_STEADY_STEPS: Final = 16
_SLOWER: Final = 1.2  # times the median, from which a rank is named
_TOLD: Final = ("fault_detected", "finding", "decided", "replanned", "resumed", "checkpoint_failed", "fault_injected")
_BAR: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What is known of a run at one moment; None where it is not.

    Attributes:
        status: as `trainmaster status` says it.
        step, num_steps: done, and of the whole run.
        phase: of the rank that is furthest behind.
        left_seconds: until the last step, at the pace of the newest ones.
        loss, eval_loss: the newest.
        tokens_per_second: of all ranks, in the newest step.
        headroom: free memory of the tightest place, in words.
        bottleneck: what the time of a step goes to, in words.
        told: newest events, oldest first, in words.
    """

    status: str
    attempt: int
    step: int
    num_steps: int | None = None
    phase: str = ""
    left_seconds: float | None = None
    loss: float | None = None
    eval_loss: float | None = None
    tokens_per_second: float | None = None
    headroom: str = ""
    bottleneck: str = ""
    told: tuple[str, ...] = ()


def pace(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of a typical step among the newest ones."""
    seconds = [float(record["step_seconds"]) for record in metrics if record.get("step_seconds") is not None]
    return statistics.median(seconds[-_STEADY_STEPS:]) if seconds else None


def bottleneck(newest: Sequence[RankReading]) -> str:
    """Say what the newest step of all ranks went to, and which rank the others wait for.

    Args:
        newest: one reading of each rank, of the same step as far as there is one.
    """
    known = [one for one in newest if one.busy_seconds is not None and one.step_seconds > 0]
    if not known:
        return ""
    whole = sum(one.step_seconds for one in known)
    shares = {
        "computing": sum(one.busy_seconds or 0.0 for one in known) / whole,
        "waiting for gradients": sum(one.communication_seconds or 0.0 for one in known) / whole,
        "waiting for layers": sum(one.prefetch_seconds or 0.0 for one in known) / whole,
    }
    words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)  # noqa: PLR2004 - 0%
    slowest = max(known, key=lambda one: one.busy_seconds or 0.0)
    usual = statistics.median(one.busy_seconds or 0.0 for one in known if one is not slowest) if len(known) > 1 else 0.0
    if usual > 0 and (slowest.busy_seconds or 0.0) > _SLOWER * usual:
        words += (
            f"; the others wait for rank {slowest.rank} ({(slowest.busy_seconds or 0.0) / usual:.1f} times as long)"
        )
    return words


def headroom(
    ranks: Sequence[RankReading],
    devices: Sequence[DeviceReading],
    hosts: Sequence[HostReading],
    device_bytes: int | None,
) -> str:
    """Say how much memory is free where it is least.

    Args:
        ranks: newest reading of each rank.
        devices: newest reading of each device.
        hosts: newest reading of each host.
        device_bytes: memory of a device; None where ranks compute on CPUs.
    """
    found: list[tuple[int, str]] = []
    if device_bytes is not None:
        used = [(one.memory_used_bytes, one.device) for one in devices if one.memory_used_bytes is not None]
        used += (
            [(one.reserved_bytes, f"rank {one.rank}'s device") for one in ranks if one.reserved_bytes]
            if not used
            else []
        )
        found += [(device_bytes - nbytes, place) for nbytes, place in used]
    else:
        found += [
            (one.memory_available_bytes, f"host {one.host}") for one in hosts if one.memory_available_bytes is not None
        ]
    return "" if not found else "{} free on {}".format(*_named(min(found)))


def _named(found: tuple[int, str]) -> tuple[str, str]:
    return format_bytes(max(0, found[0])), found[1]


def event_words(event: Mapping[str, Any]) -> str:
    """Say an event in a line; nothing for one that is of no interest here."""
    name = str(event.get("event", ""))
    if name not in _TOLD or (name == "decided" and event.get("decision") == "finish"):
        return ""
    what = event.get("evidence") or event.get("why") or event.get("reason")
    if name == "replanned":
        what = "; ".join(map(str, event.get("changes", ())))
    if name == "resumed":
        what = f"at step {event.get('step')}"
    if name == "fault_injected":
        what = f"{event.get('fault')} at step {event.get('step')}"
    return f"{name.replace('_', ' ')}: {what}" if what else ""


def lines_of(live: Live, *, colour: bool = False) -> list[str]:
    """Return a screenful."""
    found = [f"{live.status}, attempt {live.attempt}" + (f", {live.phase}" if live.phase else "")]
    if live.num_steps:
        done = min(_BAR, round(_BAR * live.step / live.num_steps))
        bar = f"[{'#' * done}{'.' * (_BAR - done)}]"
        left = "" if live.left_seconds is None else f"  {duration(live.left_seconds)} left"
        found.append(f"step {live.step}/{live.num_steps} {bar}{left}")
    elif live.step:
        found.append(f"step {live.step}")
    numbers = [
        "" if live.loss is None else f"loss {live.loss:.4f}",
        "" if live.eval_loss is None else f"held-out {live.eval_loss:.4f}",
        "" if live.tokens_per_second is None else f"{live.tokens_per_second:,.0f} tokens/s",
    ]
    found += [text for text in ("  ".join(filter(None, numbers)),) if text]
    found += [f"time     {live.bottleneck}"] if live.bottleneck else []
    found += [f"memory   {live.headroom}"] if live.headroom else []
    mark = ("\x1b[33m", "\x1b[0m") if colour else ("", "")
    return [*found, *(f"{mark[0]}{text}{mark[1]}" for text in live.told)]


def plain_line(live: Live) -> str:
    """Return one line for a log."""
    whole = f"/{live.num_steps}" if live.num_steps else ""
    parts = [
        f"{live.status}, step {live.step}{whole}",
        "" if live.loss is None else f"loss {live.loss:.4f}",
        "" if live.tokens_per_second is None else f"{live.tokens_per_second:,.0f} tokens/s",
        "" if live.left_seconds is None else f"{duration(live.left_seconds)} left",
    ]
    return "  ".join(filter(None, parts))


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
