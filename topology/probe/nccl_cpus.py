"""The `cpu` elements of a topology file: NUMA nodes, the hosts they belong to, and their logical CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.nccl_tree import Element

_MASK_WORD_BITS: Final = 32  # of a word between commas, as the kernel writes masks


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One `cpu` element, a NUMA node. `cpus` are its logical CPUs as the kernel lists them; None if not told."""

    id: str
    host: str
    numa: int | None
    cpus: str | None
    num_threads: int | None
    name: str | None


def cpus_of(system: Element, host: str) -> tuple[list[Cpu], list[str]]:
    """Read the `cpu` elements; the second part are the contradictions, with their lines.

    NCCL joins the files of all hosts of a NVLink domain into one: elements of different `host_hash` are of different
    hosts, which are then named HOST-0, HOST-1 and so on in the order of the file.
    """
    elements = system.inside("cpu")
    told = [element.get("host_hash") for element in elements]
    hashes: list[int | None] = [None if text is None else int(text, 16) for text in told]
    known: dict[int | None, int] = {
        found: at for at, found in enumerate(dict.fromkeys(found for found in hashes if found is not None))
    }
    problems = []
    if len(known) > 1 and None in hashes:
        line = elements[hashes.index(None)].line
        problems.append(f"line {line}: <cpu> without host_hash beside those of {len(known)} hosts")
    cpus = []
    seen: dict[tuple[str, int], int] = {}
    for element, found in zip(elements, hashes, strict=True):
        name = f"{host}-{known.get(found, 0)}" if len(known) > 1 else host
        node = _number(element.attributes["numaid"])
        if (name, node) in seen:
            problems.append(f"line {element.line}: the NUMA node {node} again, first on line {seen[name, node]}")
        seen.setdefault((name, node), element.line)
        cpus.append(_cpu(element, name, node))
    return cpus, problems


def _cpu(element: Element, host: str, node: int) -> Cpu:
    vendor, family, model = (element.get(key) for key in ("vendor", "familyid", "modelid"))
    mask = element.get("affinity")
    numbers = None if mask is None else cpus_of_mask(mask)
    return Cpu(
        id=f"{host}/node{'?' if node < 0 else node}",
        host=host,
        numa=None if node < 0 else node,
        cpus=kernel_list(numbers) or None if numbers is not None else None,
        num_threads=None if numbers is None else len(numbers),
        name=f"{vendor} {family}/{model}" if vendor and family and model else vendor or element.get("arch"),
    )


def cpus_of_mask(mask: str) -> list[int]:
    """Return the numbers of the bits of a kernel mask, such as `ff,00000000`: hexadecimal words, the lowest last."""
    bits = 0
    for word in mask.split(","):
        bits = bits << _MASK_WORD_BITS | int(word, 16)
    return [at for at, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]


def kernel_list(numbers: Sequence[int]) -> str:
    """Write ascending numbers as the kernel lists CPUs: `0-15,32-47`."""
    runs = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return ",".join(runs)


def _number(text: str) -> int:
    # As C reads it: hexadecimal where it says so.
    return int(text, 16) if text.strip().lower().startswith("0x") else int(text)
