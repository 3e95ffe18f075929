"""`trainmaster bench`: which processes measure what here, and the calibration that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator import calibration_file as files
from orchestrator.calibration_file import Calibration, Measured, Section
from orchestrator.calibration_store import cache_path, read_calibration
from orchestrator.config import RunConfig
from orchestrator.errors import Problem, RunFailed, UserError
from orchestrator.machine import machine_of
from orchestrator.measure.compare import table_value
from orchestrator.measure.parts import PARTS, Part, Where, chosen_parts
from orchestrator.measure.run import Crew, Outcome, run_crew
from orchestrator.planner.explain_tables import rate_text, table
from orchestrator.planner.rates import cores_of
from topology.fingerprint import fingerprint
from topology.model import Device, DeviceKind, Host, Topology

_USUAL_RANKS: Final = 2  # of a run on CPU cores
_WIDE_SPREAD: Final = 0.25
_MOST_SPREAD: Final = 1.0

_LINES: Final = (
    f"  {part.name:<12}{part.text}{'' if len(part.devices) > 1 else f' ({part.devices[0]} only)'}" for part in PARTS
)
HELP: Final = "\n".join(
    (
        "trainmaster bench [bench.only=gemm,memory] [save=calibration.json] [format=json]",
        "Measures this machine, on its GPUs or CPU ranks, and stores what it found for later plans.",
        "Parts",
        *_LINES,
        "",
    )
)

Say = Callable[[str], None]
Write = Callable[[Path, str, str], None]
Runner = Callable[[Crew, Say], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What was measured, the machine, and the parts that failed with their reasons."""

    calibration: Calibration
    topology: Topology
    failed: tuple[tuple[str, str], ...]


def measure(config: RunConfig, today: str, say: Say, runner: Runner = run_crew) -> Bench:
    """Measure the parts that the configuration names on this machine.

    Args:
        config: `bench.only`, and `devices` for another number of CPU ranks than usual.
        today: the day, as `2026-11-30`.
        say: takes lines of progress.
        runner: starts the processes.

    Raises:
        UserError: parts that are none, or a machine that is not this one.
        RunFailed: nothing could be measured.
    """
    if config.topology.path or config.topology.preset:
        found = "bench measures the machine it runs on, and topology= describes another"
        raise UserError(Problem(where="topology", found=found, remedy="Take it away, and run bench on that machine"))
    topology = machine_of(config)
    host = topology.hosts[0]
    gpus = [device for device in host.devices if device.kind is DeviceKind.gpu]
    parts = chosen_parts(config.bench.only, "cuda" if gpus else "cpu")
    ranks = 0 if gpus else (config.devices or max(1, min(cores_of(host), _USUAL_RANKS)))
    crews = tuple(_crews(parts, host, gpus, ranks))
    outcomes = [runner(crew, say) for crew in crews]
    failed = {name: reason for outcome in outcomes for name, reason in outcome.failed.items()}
    sections = tuple(_sections(parts, outcomes, today, failed))
    for name, reason in failed.items():
        say(f"{name} failed: {reason}")
    if not sections:
        problems = (Problem(where=name, found=reason, remedy="`trainmaster doctor`") for name, reason in failed.items())
        raise RunFailed(*problems)
    versions = {name: text for outcome in outcomes for name, text in outcome.versions.items()}
    calibration = Calibration(
        made=today,
        fingerprint=fingerprint(topology),
        hosts=tuple(each.name for each in topology.hosts),
        devices=tuple(dict.fromkeys(device.name for device in gpus or host.devices)),
        versions=tuple(sorted(versions.items())),
        ranks=ranks,
        threads=_threads(host, ranks) if ranks else 0,
        sections=sections,
    )
    return Bench(calibration=calibration, topology=topology, failed=tuple(failed.items()))


def _threads(host: Host, ranks: int) -> int:
    return max(1, cores_of(host) // ranks)


def _crews(parts: tuple[Part, ...], host: Host, gpus: list[Device], ranks: int) -> Iterator[Crew]:
    """Parts of one module share their processes: libraries are loaded once."""
    for module, where in dict.fromkeys((part.module, part.where) for part in parts):
        mine = tuple(part for part in parts if (part.module, part.where) == (module, where))
        if where is Where.host:
            yield Crew(module=module, parts=mine, device="cuda" if gpus else "cpu", device_name="")
        elif gpus:
            for device in {gpu.name: gpu for gpu in reversed(gpus)}.values():  # the first of each kind
                yield Crew(module=module, parts=mine, device="cuda", device_name=device.name, visible=device.id)
        else:
            name, threads = host.devices[0].name, _threads(host, ranks)
            yield Crew(module=module, parts=mine, device="cpu", device_name=name, ranks=ranks, threads=threads)


def _sections(
    parts: tuple[Part, ...], outcomes: list[Outcome], today: str, failed: dict[str, str]
) -> Iterator[Section]:
    """What each part found; numbers that say nothing go to `failed`."""
    for part in parts:
        measured = [item for outcome in outcomes for item in outcome.measured.get(part.name, ())]
        for item in measured:
            if item.spread > _MOST_SPREAD:
                reason = (
                    f"repeats of {rate_text(item.value, item.unit)} lie {item.spread:.0%} apart: too far to be kept"
                )
                failed[f"{part.name}, {item.name}"] = reason
        kept = tuple(item for item in measured if item.spread <= _MOST_SPREAD)
        if kept:
            yield Section(name=part.name, made=today, measured=kept)


def store(calibration: Calibration, environ: Mapping[str, str], say: Say, write: Write) -> str:
    """Put the calibration where later plans find it; returns the file, empty where there is no place for it.

    What the same machine has of other parts is kept.
    """
    path = cache_path(calibration.fingerprint, environ)
    if path is None:
        say("not stored: there is no home folder; keep it with save=FILE")
        return ""
    try:
        if path.is_file():
            calibration = files.merged(read_calibration(path, str(path)), calibration)
    except UserError as error:
        say(f"the stored calibration is replaced: {error}")
    try:
        write(path, files.dumps(calibration), "cache")
    except UserError as error:
        say(f"not stored: {error}")
        return ""
    return str(path)


def to_json(bench: Bench, stored: str) -> dict[str, Any]:
    """Return the calibration's document, with what failed and where it was stored."""
    return {**files.to_json(bench.calibration), "failed": dict(bench.failed), "stored": stored}


def to_text(bench: Bench, stored: str) -> str:
    """Return what was measured beside what the tables say, for people."""
    calibration = bench.calibration
    rows: list[tuple[str, ...]] = [("part", "number", "measured", "spread", "table", "how")]
    for section in calibration.sections:
        rows += [(section.name, item.name, *_numbers(bench, section.name, item), item.how) for item in section.measured]
    blocks = ["\n".join([f"Measured on {', '.join(calibration.devices)}, {calibration.made}", *table(rows, (0, 1, 5))])]
    noisy = [item for section in calibration.sections for item in section.measured if item.spread > _WIDE_SPREAD]
    if noisy:
        names = ", ".join(item.name for item in noisy)
        blocks.append(
            f"Repeats lie far apart for {names}: other work may be running. Measure again on an idle machine."
        )
    if bench.failed:
        blocks.append("\n".join(["Failed", *(f"  {name}: {reason}" for name, reason in bench.failed)]))
    if stored:
        blocks.append(
            f"Stored in {stored}; estimate, plan and train use it on this machine (calibration=none: do not)."
        )
    return "\n\n".join(blocks) + "\n"


def _numbers(bench: Bench, section: str, item: Measured) -> tuple[str, str, str]:
    expected = table_value(section, item, bench.topology, bench.calibration.threads)
    known = "" if expected is None else rate_text(expected, item.unit)
    return rate_text(item.value, item.unit), f"{item.spread:.0%}" if item.repeats > 1 else "", known
