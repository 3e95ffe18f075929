"""What the text beside a matrix says of the GPUs: the list, the table or the CSV that nvidia-smi prints of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from topology.checks import normal_pci
from topology.probe.smi_clean import plain_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_MIB: Final = 1 << 20
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LISTED: Final = re.compile(r"\bGPU (\d{1,4}): ([^():]{2,80}?)\s{0,4}\(UUID: ([^()\s]{1,64})\)")
_SLICE: Final = re.compile(r"\bMIG [\w.+]{1,24}\s{1,16}Device\s{1,16}\d{1,3}: \(UUID: MIG-")
# | 0  NVIDIA A100-SXM4-80GB  On | 00000000:07:00.0 Off | ...; below it: | N/A 31C P0 62W / 400W | 0MiB / 81920MiB |
_ROW: Final = re.compile(
    r"\|\s{1,8}(\d{1,4})\s{1,8}(\S[^|]{1,60}?)\s{1,40}(?:On|Off|N/A|WDDM|TCC|MCDM)\s{0,16}\|\s{0,8}([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)",
)
_MEMORY: Final = re.compile(r"\|\s{0,16}\d{1,8}MiB\s{0,4}/\s{0,8}(\d{1,8})MiB\s{0,8}\|")
_FIELDS: Final = frozenset(
    {"index", "name", "gpu_name", "uuid", "gpu_uuid", "memory.total", "pci.bus_id", "gpu_bus_id"}
)
_MAX_LINE: Final = 2_000
_MAX_GPUS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """What is told of one GPU; None where nothing is. `pci` is written as sysfs does."""

    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    pci: str | None = None
    mig: bool | None = None


def gpu_facts(text: str, indices: Collection[int]) -> tuple[dict[int, GpuFact], tuple[str, ...]]:
    """Find what the text says of the GPUs of these indices; the second value warns of what cannot be used.

    Nothing is taken if the text lists other GPUs than these, or two of one index.
    """
    facts: dict[int, GpuFact] = {}
    for index, fact in _told(text):
        known = facts.get(index, GpuFact())
        merged = _merged(known, fact)
        if merged is None or len(facts) > _MAX_GPUS:
            return {}, (f"the text tells two different things of GPU {index}: names and memory stay unknown",)
        facts[index] = merged
    if facts and set(facts) != set(indices):
        listed = ", ".join(map(str, sorted(facts)[:8]))
        return {}, (f"the text lists the GPUs {listed}, which are not those of the matrix: names stay unknown",)
    uuids = [fact.uuid for fact in facts.values() if fact.uuid is not None]
    if len(set(uuids)) < len(uuids):
        return {}, ("two GPUs of the text have one UUID: names and memory stay unknown",)
    return facts, ()


def _merged(one: GpuFact, other: GpuFact) -> GpuFact | None:
    changes = {}
    for field in fields(GpuFact):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if theirs is None:
            continue
        if mine is not None and mine != theirs and field.name != "mig":
            return None
        changes[field.name] = theirs
    return replace(one, **changes)


def _told(text: str) -> Iterator[tuple[int, GpuFact]]:
    lines = [line for line in plain_lines(text) if len(line) <= _MAX_LINE]
    yield from _of_list(lines)
    yield from _of_table(lines)
    yield from _of_csv(lines)


def _of_list(lines: Iterable[str]) -> Iterator[tuple[int, GpuFact]]:
    last: int | None = None
    for line in lines:
        found = _LISTED.search(line) if "UUID" in line else None
        if found is not None:
            last = int(found[1])
            yield last, GpuFact(name=_name(found[2]), uuid=_uuid(found[3]))
        elif last is not None and "MIG" in line and _SLICE.search(line):
            yield last, GpuFact(mig=True)


def _of_table(lines: Iterable[str]) -> Iterator[tuple[int, GpuFact]]:
    row: int | None = None
    for line in lines:
        found = _ROW.search(line) if "|" in line else None
        if found is not None:
            row = int(found[1])
            yield row, GpuFact(name=_name(found[2]), pci=normal_pci(found[3]))
        elif row is not None and "MiB" in line:
            memory = _MEMORY.search(line)
            if memory is not None:
                yield row, GpuFact(memory_bytes=int(memory[1]) * _MIB)
                row = None


def _of_csv(lines: Iterable[str]) -> Iterator[tuple[int, GpuFact]]:
    columns: list[str] | None = None
    for line in lines:
        cells = [cell.strip() for cell in line.strip(" >#`").split(",")] if "," in line else []
        heads = [cell.split(" ", maxsplit=1)[0] for cell in cells]
        if "index" in heads and set(heads) & (_FIELDS - {"index"}):
            columns = heads
        elif columns is not None and len(cells) == len(columns):
            yield from _csv(dict(zip(columns, cells, strict=True)))
        elif line.strip():
            columns = None


def _csv(values: dict[str, str]) -> Iterator[tuple[int, GpuFact]]:
    index = values["index"]
    if not (index.isascii() and index.isdecimal() and len(index) <= len("9999")):
        return
    memory = re.fullmatch(r"(\d{1,8})(?: MiB)?", values.get("memory.total", ""))
    yield (
        int(index),
        GpuFact(
            name=_name(values.get("name", values.get("gpu_name", ""))),
            uuid=_uuid(values.get("uuid", values.get("gpu_uuid", ""))),
            memory_bytes=int(memory[1]) * _MIB if memory is not None else None,
            pci=normal_pci(values.get("pci.bus_id", values.get("gpu_bus_id", ""))),
        ),
    )


def _name(text: str) -> str | None:
    # Old tables cut long names and end them in dots.
    text = " ".join(text.split())
    return text if text and not text.endswith("..") and any(char.isalpha() for char in text) else None


def _uuid(text: str) -> str | None:
    uuid = text.lower().replace("gpu-", "GPU-")
    return uuid if _UUID.fullmatch(uuid) else None
