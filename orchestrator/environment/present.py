"""Levers and warnings for people and for scripts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.environment.harm import Harm
from orchestrator.environment.lever import Kind, Lever
from topology.model import Topology

_WIDTH: Final = 116
_INDENT: Final = " " * 11
_MOST_VALUES: Final = 16
_MOST_NAMED: Final = 8
_MOST_VALUE: Final = 80


def places_of(topology: Topology) -> dict[str, str]:
    """Short names of devices: the host and the place there, `host/3`."""
    return {device.id: f"{host.name}/{at}" for host in topology.hosts for at, device in enumerate(host.devices)}


def levers_text(levers: Sequence[Lever], harms: Sequence[Harm] = (), *, places: Mapping[str, str] | None = None) -> str:
    """One entry a lever: set, left alone or the user's; then what of the user's settings is known to hurt.

    Args:
        levers: of a launch.
        harms: warnings about the user's settings.
        places: short names of the devices, as `places_of` gives them.
    """
    names = {} if places is None else places
    lines = ["levers of a launch"]
    for lever in levers:
        lines.append(f"  {_state(lever):<8} {_name(lever, names)}")
        lines += _wrapped(f"{lever.evidence} [{lever.source}]")
        if lever.overridden_by:
            lines += _wrapped(f"yours stands: {lever.overridden_by}")
        lines += _by_value(lever, names)
    if harms:
        lines.append("your settings that are known to hurt")
        for harm in harms:
            lines += _wrapped(str(harm), indent="  ")
    return "\n".join(lines) + "\n"


def _state(lever: Lever) -> str:
    if lever.overridden_by:
        return "yours"
    if lever.kind is Kind.variable:
        return "set" if lever.applies else "not set"
    return "done" if lever.applies else "told"


def _name(lever: Lever, names: Mapping[str, str]) -> str:
    if not lever.value:
        return lever.name
    if lever.kind is Kind.variable:
        return f"{lever.name}={_cut(lever.value)}"
    return f"{lever.name}: {_cut(','.join(names.get(part, part) for part in lever.value.split(',')))}"


def _cut(value: str) -> str:
    return value if len(value) <= _MOST_VALUE else f"{value[: _MOST_VALUE - 4]} ..."


def _by_value(lever: Lever, names: Mapping[str, str]) -> list[str]:
    """Devices by their value; ids that are their own value say nothing."""
    found: dict[str, list[str]] = {}
    for device, value in lever.by_device:
        if device != value:
            found.setdefault(value, []).append(names.get(device, device))
    lines = []
    for value, devices in [*found.items()][:_MOST_VALUES]:
        more = len(devices) - _MOST_NAMED
        lines += _wrapped(f"{value}: {', '.join(devices[:_MOST_NAMED])}" + (f" and {more} more" if more > 0 else ""))
    left = len(found) - _MOST_VALUES
    return lines + ([f"{_INDENT}and {left} values more"] if left > 0 else [])


def _wrapped(text: str, indent: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def levers_json(levers: Sequence[Lever], harms: Sequence[Harm] = ()) -> dict[str, Any]:
    """Every lever with all its fields, and the warnings."""
    return {
        "levers": [
            {
                "name": lever.name,
                "kind": lever.kind.value,
                "value": lever.value,
                "applies": lever.applies,
                "evidence": lever.evidence,
                "source": lever.source,
                "overridden_by": lever.overridden_by,
                "by_device": dict(lever.by_device),
            }
            for lever in levers
        ],
        "warnings": [
            {
                "name": harm.setting.name,
                "value": harm.setting.value,
                "source": harm.setting.source,
                "reason": harm.reason,
            }
            for harm in harms
        ],
    }
