"""Reads a run directory: the one place of the page that looks at files and at the clock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from orchestrator.errors import UserError
from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading
from orchestrator.monitor.store import decode, files_of
from orchestrator.planner.explain import reasons_of
from orchestrator.planner.plan import Plan, from_json
from orchestrator.report.page.files import last_lines, read_lines, spread_lines
from orchestrator.report.page.html import Markup
from orchestrator.report.page.picture import picture_of
from orchestrator.report.page.record import Record
from orchestrator.report.page.words import listed
from orchestrator.run_dir import leaves, read_json, saved_config
from topology.codec import from_json as machine_of
from topology.errors import TopologyError

_MOST_READINGS: Final = 20_000  # over all files
_LOG_LINES: Final = 40
_Reading = TypeVar("_Reading", RankReading, DeviceReading, HostReading)


def read_run(folder: Path, status: str, log: Path | None, command: str = "") -> Record:
    """Read all that is there.

    Args:
        folder: of the run.
        status: of the run.
        log: of its newest attempt.
        command: that starts it again.
    """
    notes: list[str] = []
    body = read_json(folder / "plan.json") or {}
    plan = _plan(body, notes)
    files = ("metrics.jsonl", "events.jsonl", "samples.jsonl")
    metrics, events, samples = (read_lines(folder / name) for name in files)
    for name, lines in zip(files, (metrics, events, samples), strict=True):
        if lines.num_broken:
            notes.append(f"{lines.num_broken} lines of {name} are cut or no JSON, and left out.")
    picture, told = _picture(folder, plan, notes)
    ranks, devices, hosts = _readings(folder)
    if not ranks and not hosts and metrics.records:
        notes.append("There are no readings (telemetry/): memory, waits and temperatures over steps are not known.")
    return Record(
        name=folder.name,
        folder=str(folder),
        status=status,
        made=time.time(),
        plan=body,
        labels=() if plan is None else tuple(choice.strategy.label for choice in plan.ranked),
        reasons=tuple(map(str, listed(body.get("reasons")))) if plan is None else reasons_of(plan),
        config=_config(folder),
        command=command,
        metrics=metrics.records,
        losses=tuple(record for record in metrics.records if "loss" in record),
        num_metrics=metrics.num_lines,
        events=events.records,
        samples=samples.records,
        summary=read_json(folder / "summary.json") or {},
        ranks=ranks,
        devices=devices,
        hosts=hosts,
        picture=picture,
        picture_told=told,
        log=() if log is None else last_lines(log, _LOG_LINES),
        log_file="" if log is None else str(log),
        notes=tuple(notes),
    )


def _plan(body: Mapping[str, Any], notes: list[str]) -> Plan | None:
    if not body:
        notes.append("plan.json cannot be read.")
        return None
    try:
        return from_json(body)
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        found = error.problems[0].found if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        notes.append(f"plan.json is not of this version ({found}); what of it is known is shown.")
        return None


def _config(folder: Path) -> dict[str, Any]:
    try:
        return dict(leaves(saved_config(folder)))
    except UserError:
        return {}


def _picture(folder: Path, plan: Plan | None, notes: list[str]) -> tuple[Markup, str]:
    try:
        machine = machine_of(json.loads((folder / "topology.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        notes.append("There is no topology.json, so the machine is not drawn.")
    except (OSError, ValueError, TopologyError) as error:
        notes.append(f"topology.json cannot be read: {str(error).splitlines()[0]}")
    else:
        return picture_of(machine, plan)
    return Markup(""), ""


def _readings(folder: Path) -> tuple[tuple[RankReading, ...], tuple[DeviceReading, ...], tuple[HostReading, ...]]:
    paths = files_of(folder, ("rank", "device", "host"))
    most = max(200, _MOST_READINGS // max(1, len(paths)))
    found = [decode(record) for path in paths for record in spread_lines(path, most).records]
    # A step that was done again after a fault is told by the last time it was done.
    ranks = {(one.rank, one.step): one for one in _of(RankReading, found)}
    newest = sorted(ranks.values(), key=lambda one: one.time)
    return tuple(newest), _of(DeviceReading, found), _of(HostReading, found)


def _of(kind: type[_Reading], found: Iterable[object]) -> tuple[_Reading, ...]:
    own = [reading for reading in found if isinstance(reading, kind)]
    return tuple(sorted(own, key=lambda reading: reading.time))
