"""What `trainmaster bench` measured on a machine: a frozen value, and the JSON file that holds it.

A file has one section for each part of the bench that was run, so that parts can be measured apart and added later.
A damaged file is told by its place; a file of a later version is refused by that version's number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from orchestrator.errors import Problem, UserError

SCHEMA: Final = 1
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
# What no machine reaches, or is no machine: least and most of each unit. The fastest memory, link and chip there are
# stand below the most by a factor of a hundred or more.
_PLAUSIBLE: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "bytes/s": (1.0, 1e16),
        "FLOP/s": (1.0, 1e19),
        "weights/s": (1.0, 1e16),
        "s": (1e-12, 1e6),
        "share": (1e-6, 1e2),
        "bytes": (1.0, 1e15),
        "bytes a piece": (1.0, 1e15),
    }
)
_ANY_UNIT: Final = (1e-15, 1e21)
_MOST_SPREAD: Final = 1e3  # a thousand times the value
_AGAIN: Final = "Measure again with `trainmaster bench`, or give another file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One number that was measured.

    Attributes:
        name: what it is, within its section.
        value: median of the repeats.
        unit: of the value.
        repeats: how often it was measured.
        spread: half the distance between the quartiles, as a share of the value.
        how: what was run.
        device: name of the kind of device it was measured on; empty where it belongs to no device.
    """

    name: str
    value: float
    unit: str
    repeats: int
    spread: float
    how: str
    device: str = ""

    def __post_init__(self) -> None:
        """Reject what no measurement can give."""
        if not self.name or not self.unit:
            raise ValueError("a measurement without name or unit")
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"{self.name} is {self.value}, not a number above 0")
        if self.repeats < 1 or not (math.isfinite(self.spread) and self.spread >= 0):
            raise ValueError(f"{self.name} has {self.repeats} repeats and a spread of {self.spread}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one part of the bench measured, and on which day (`2026-11-30`)."""

    name: str
    made: str
    measured: tuple[Measured, ...]

    def __post_init__(self) -> None:
        """Reject days that are none, and numbers told twice."""
        if not _DAY.fullmatch(self.made):
            raise ValueError(f"section {self.name} was made on {self.made!r}, not a day like 2026-11-30")
        keys = [(item.name, item.device) for item in self.measured]
        if len(set(keys)) < len(keys):
            raise ValueError(f"section {self.name} tells a number twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that was measured on one machine.

    Attributes:
        made: day of the latest measurement.
        fingerprint: of the machine's topology.
        hosts, devices: their names; devices once for each kind.
        versions: of the libraries that were measured.
        ranks, threads: CPU ranks that were at work at the same time, and the threads of each; 0 on GPUs.
        sections: what was measured.
    """

    made: str
    fingerprint: str
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    ranks: int
    threads: int
    sections: tuple[Section, ...]

    def __post_init__(self) -> None:
        """Reject days that are none, and sections told twice."""
        if not _DAY.fullmatch(self.made):
            raise ValueError(f"made on {self.made!r}, not a day like 2026-11-30")
        names = [section.name for section in self.sections]
        if len(set(names)) < len(names):
            raise ValueError("a section is told twice")
        if self.ranks < 0 or self.threads < 0:
            raise ValueError(f"{self.ranks} ranks of {self.threads} threads")

    def section(self, name: str) -> Section | None:
        """The section of that name, if it was measured."""
        return next((section for section in self.sections if section.name == name), None)

    def find(self, section: str, name: str, device: str = "") -> Measured | None:
        """One number, if it was measured on that kind of device."""
        return next((item for item in self.all_of(section, device) if item.name == name), None)

    def all_of(self, section: str, device: str = "") -> tuple[Measured, ...]:
        """What a section has of one kind of device."""
        found = self.section(section)
        return tuple(item for item in found.measured if item.device == device) if found else ()

    @property
    def measured_devices(self) -> frozenset[str]:
        """Kinds of devices that any number belongs to."""
        return frozenset(item.device for section in self.sections for item in section.measured if item.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The calibration of a plan (None: tables only), the file it came from, and what the user should know of it."""

    calibration: Calibration | None = None
    path: str = ""
    warnings: tuple[str, ...] = ()


def merged(old: Calibration, new: Calibration) -> Calibration:
    """Put what was just measured over what the same machine had; sections are replaced whole.

    With other libraries, ranks or another machine nothing of the old is kept.
    """
    same = (old.fingerprint, old.versions, old.ranks, old.threads) == (
        new.fingerprint,
        new.versions,
        new.ranks,
        new.threads,
    )
    if not same:
        return new
    names = {section.name for section in new.sections}
    kept = tuple(section for section in old.sections if section.name not in names)
    return replace(new, made=max(old.made, new.made), sections=(*kept, *new.sections))


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Return the document that `from_json` reads back to an equal value."""
    return {
        "schema": SCHEMA,
        "made": calibration.made,
        "fingerprint": calibration.fingerprint,
        "hosts": list(calibration.hosts),
        "devices": list(calibration.devices),
        "versions": dict(calibration.versions),
        "ranks": calibration.ranks,
        "threads": calibration.threads,
        "sections": {
            section.name: {"made": section.made, "measured": [_measured_json(item) for item in section.measured]}
            for section in calibration.sections
        },
    }


def _measured_json(item: Measured) -> dict[str, Any]:
    device = {"device": item.device} if item.device else {}
    body = {"name": item.name, **device, "value": item.value, "unit": item.unit, "repeats": item.repeats}
    return {**body, "spread": item.spread, "how": item.how}


def dumps(calibration: Calibration) -> str:
    """Return the text of the file."""
    return json.dumps(to_json(calibration), indent=2) + "\n"


def loads(text: str, where: str) -> Calibration:
    """Read the text of a file.

    Args:
        text: what it holds.
        where: its name, for messages.

    Raises:
        UserError: it is damaged, of a later version, or no calibration at all.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"no JSON ({error})") from error
    return from_json(body, where)


def from_json(body: object, where: str) -> Calibration:
    """Read what `to_json` wrote; keys that are not known are passed over.

    Raises:
        UserError: as `loads`.
    """
    if not isinstance(body, dict) or "sections" not in body:
        raise _damaged(where, "no calibration: it has no sections")
    schema = body.get("schema")
    if type(schema) is int and schema > SCHEMA:
        found = f"schema {schema}, and this version reads up to {SCHEMA}"
        remedy = "Update trainmaster, or measure again with `trainmaster bench`"
        raise UserError(Problem(where=where, found=found, remedy=remedy))
    if schema != SCHEMA or type(schema) is not int:
        raise _damaged(where, f"schema {schema!r}, not {SCHEMA}")
    try:
        return _calibration(body)
    except _OddError as error:
        raise _damaged(f"{where}: {error.path}", error.found) from error
    except ValueError as error:
        raise _damaged(where, str(error)) from error


def _damaged(where: str, found: str) -> UserError:
    return UserError(Problem(where=where, found=found, remedy=_AGAIN))


class _OddError(ValueError):
    """A value that is not of its type."""

    def __init__(self, path: str, found: str) -> None:
        self.path, self.found = path, found
        super().__init__(f"{path}: {found}")


def _calibration(body: Mapping[str, Any]) -> Calibration:
    return Calibration(
        made=_text(body, "made", ""),
        fingerprint=_text(body, "fingerprint", ""),
        hosts=_texts(body, "hosts"),
        devices=_texts(body, "devices"),
        versions=tuple(_pairs(body, "versions")),
        ranks=_count(body, "ranks", ""),
        threads=_count(body, "threads", ""),
        sections=tuple(_sections(body)),
    )


def _sections(body: Mapping[str, Any]) -> Iterator[Section]:
    sections = body["sections"]
    if not isinstance(sections, dict):
        raise _OddError("sections", f"found {_shown(sections)}, not an object")
    for name, section in sections.items():
        path = f"sections.{name}"
        if not isinstance(section, dict) or not isinstance(section.get("measured"), list):
            raise _OddError(path, "no list of what was measured")
        items = section["measured"]
        measured = tuple(_item(item, f"{path}.measured[{at}]") for at, item in enumerate(items))
        yield Section(name=name, made=_text(section, "made", f"{path}."), measured=measured)


def _item(item: object, path: str) -> Measured:
    if not isinstance(item, dict):
        raise _OddError(path, f"found {_shown(item)}, not an object")
    prefix = f"{path}."
    try:
        return _plausible(
            Measured(
                name=_text(item, "name", prefix),
                value=_number(item, "value", prefix),
                unit=_text(item, "unit", prefix),
                repeats=_count(item, "repeats", prefix),
                spread=_number(item, "spread", prefix),
                how=_text(item, "how", prefix),
                device=_text(item, "device", prefix) if "device" in item else "",
            )
        )
    except _OddError:
        raise
    except ValueError as error:
        raise _OddError(path, str(error)) from error


def _plausible(item: Measured) -> Measured:
    """Refuse what a damaged or invented file may say, since a plan would be built on it."""
    least, most = _PLAUSIBLE.get(item.unit, _ANY_UNIT)
    if not least <= item.value <= most:
        raise ValueError(f"{item.name} is {item.value:g} {item.unit}, which no machine reaches ({least:g} to {most:g})")
    if item.spread > _MOST_SPREAD:
        raise ValueError(f"{item.name} has a spread of {item.spread:g} times its value")
    return item


def _text(body: Mapping[str, Any], key: str, prefix: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise _OddError(f"{prefix}{key}", f"found {_shown(value)}, not a text")
    return value


def _number(body: Mapping[str, Any], key: str, prefix: str) -> float:
    value = body.get(key)
    if type(value) not in (int, float):
        raise _OddError(f"{prefix}{key}", f"found {_shown(value)}, not a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError as error:
        raise _OddError(f"{prefix}{key}", "found a number too large to be read") from error


def _count(body: Mapping[str, Any], key: str, prefix: str) -> int:
    value = body.get(key)
    if type(value) is not int:
        raise _OddError(f"{prefix}{key}", f"found {_shown(value)}, not a whole number")
    return value


def _texts(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = body.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _OddError(key, f"found {_shown(values)}, not a list of texts")
    return tuple(values)


def _pairs(body: Mapping[str, Any], key: str) -> Iterator[tuple[str, str]]:
    values = body.get(key)
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise _OddError(key, f"found {_shown(values)}, not an object of texts")
    yield from values.items()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - one line of a message
