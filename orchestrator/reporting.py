"""Makes the page about a run, two runs or a sweep: finds what is asked for, reads it and has it drawn."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from orchestrator import runs
from orchestrator.errors import Problem, UserError
from orchestrator.report.command import command_of
from orchestrator.report.page.document import load_assets
from orchestrator.report.page.read import read_run
from orchestrator.report.page.read_sweep import is_sweep, read_sweep
from orchestrator.report.page.record import Record
from orchestrator.run_dir import OF_THE_COMMAND, folder_of, leaves, read_json, saved_config

FILE: Final = "report.html"
_DIGITS: Final = 8  # of a folder's checksum in a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page that was made.

    Attributes:
        kind: `run`, `comparison` or `sweep`.
        status: of the run; of a sweep `done` once it has ended.
        path: where it belongs.
        text: the whole file.
    """

    kind: str
    status: str
    path: Path
    text: str


def page_of(run_dir: str, against: str = "") -> Page:
    """Make the page.

    Args:
        run_dir: of a run or a sweep.
        against: a run to compare the run with; empty for none.

    Raises:
        UserError: there is no run.
    """
    folder = folder_of(run_dir) if run_dir else Path()
    if run_dir and is_sweep(folder):
        return _sweep(folder, against)
    record = _record(runs.run_folder(run_dir, "report"))
    assets = load_assets()
    if not against:
        from orchestrator.report.page.run_page import run_page

        text = run_page(record, version=_version(), assets=assets)
        return Page(kind="run", status=record.status, path=folder / FILE, text=text)
    from orchestrator.report.page.compare_page import compare_page

    other = _record(runs.run_folder(against, "report.against="))
    name = against_name(folder, folder_of(against))
    text = compare_page(record, other, version=_version(), assets=assets)
    return Page(kind="comparison", status=record.status, path=folder / name, text=text)


def against_name(folder: Path, other: Path) -> str:
    """File name of a comparison, another one for every folder: trials of two sweeps have the same names.

    Args:
        folder: of the run that is compared, absolute.
        other: of the run that it is compared with; one beside it has its name alone.
    """
    place = Path(os.path.normpath(other))
    if place.parent == Path(os.path.normpath(folder)).parent:
        return f"report-against-{place.name}.html"
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:_DIGITS]
    return f"report-against-{'-'.join(filter(None, (place.parent.name, place.name)))}-{digest}.html"


def _version() -> str:
    """Of the package that makes the page."""
    try:
        return metadata.version("trainmaster")
    except metadata.PackageNotFoundError:  # a checkout on the path
        return "(not installed)"


def _sweep(folder: Path, against: str) -> Page:
    if against:
        found = f"{folder} is a sweep"
        remedy = f"Compare two of its trials: trainmaster report {folder}/0 report.against={folder}/1."
        raise UserError(Problem(where="report.against", found=found, remedy=remedy))
    from orchestrator.report.page.sweep_page import sweep_page

    sweep = read_sweep(folder)
    status = "done" if sweep.is_over else "running"
    text = sweep_page(sweep, version=_version(), assets=load_assets())
    return Page(kind="sweep", status=status, path=folder / FILE, text=text)


def _record(folder: Path) -> Record:
    """Read a run; a batch system that does not answer leaves its status open."""
    try:
        state = runs.state_of_run(folder)
    except UserError:
        return read_run(folder, "not known", runs.newest_log(folder, None), _command(folder))
    return read_run(folder, state.status, state.log, _command(folder))


def _command(folder: Path) -> str:
    """The command that starts it again; empty where this version cannot read its configuration."""
    from orchestrator.compose import compose
    from orchestrator.config_codec import dump_config

    try:
        saved = dict(leaves(saved_config(folder)))
        config, _ = compose(["model.path=m", "data.path=d"])
    except UserError:
        return ""
    return command_of(saved, dict(leaves(dump_config(config))), OF_THE_COMMAND)


def leave_page(folder: Path) -> Path | None:
    """Leave `report.html` at the end of a run or a sweep; whatever goes wrong is no fault of theirs.

    Returns:
        The file; None where there was nothing to tell, or it could not be made.
    """
    with contextlib.suppress(Exception):
        page = _sweep(folder, "") if is_sweep(folder) else _ended(folder)
        if page is None:
            return None
        temporary = page.path.with_name(f".{FILE}.{os.getpid()}")
        try:
            temporary.write_text(page.text, encoding="utf-8")
            temporary.replace(page.path)
        finally:
            temporary.unlink(missing_ok=True)
        return page.path
    return None


def _ended(folder: Path) -> Page | None:
    """The page of a run that this process has watched, and which therefore still counts as running."""
    from orchestrator.report.page.run_page import run_page

    summary = read_json(folder / "summary.json") or {}
    if not summary:
        return None  # it never began, or was refused
    status = str(summary.get("status") or "ended")
    record = read_run(folder, status, runs.newest_log(folder, None), _command(folder))
    text = run_page(record, version=_version(), assets=load_assets())
    return Page(kind="run", status=status, path=folder / FILE, text=text)
