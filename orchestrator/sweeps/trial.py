"""One trial: the command it is, and what it left when it ended."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ExitCode
from orchestrator.overrides import quote
from orchestrator.report.trained import INTERRUPTED, TrainTrial
from orchestrator.run_dir import read_json

_PACKAGES = Path(__file__).resolve().parents[2]
# Keys of the sweep: its trials have a folder each, and their results are read from there.
OF_THE_SWEEP = frozenset({"run_dir", "save", "format", "sweep.parallel"})
_ERROR = "error: "
_READ_BYTES = 64 * 1024  # of the end of a log, where the reason stands


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """A trial to start: its number, what it is asked, the folder of the sweep, and the keys that the sweep varies."""

    number: int
    overrides: tuple[str, ...]
    folder: Path
    swept: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What tells it from the others, as it would be typed."""
        return " ".join(item for item in self.asked if item.lstrip("+").partition("=")[0] in self.swept)

    @property
    def run_dir(self) -> Path:
        """Folder of the run."""
        return self.folder / str(self.number)

    @property
    def log(self) -> Path:
        """Everything the trial prints."""
        return self.folder / f"{self.number}.log"

    @property
    def asked(self) -> tuple[str, ...]:
        """The overrides without those of the sweep."""
        return tuple(item for item in self.overrides if item.lstrip("+").partition("=")[0] not in OF_THE_SWEEP)

    def argv(self, python: str = sys.executable) -> tuple[str, ...]:
        """The command of the trial; a run that has begun there goes on."""
        if (self.run_dir / "plan.json").is_file():
            return (python, "-m", "orchestrator.cli", "train", f"resume={quote(str(self.run_dir))}")
        words = (python, "-m", "orchestrator.cli", "train", *self.asked)
        return (*words, f"run_dir={quote(str(self.run_dir))}")


def trial_environment(environ: Mapping[str, str], devices: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a trial that shall see these devices alone (UUIDs; none: all of ours)."""
    packages = os.pathsep.join(filter(None, (str(_PACKAGES), environ.get("PYTHONPATH"))))
    # The working directory may hold folders with the names of our packages.
    found = {**environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": packages, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    found.pop("HYDRA_FULL_ERROR", None)  # set while Hydra runs the sweep
    if devices:
        found |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}
    return found


def ended(job: TrialJob, code: int | None, place: str, reason: str = "") -> TrainTrial:
    """Read what a trial left."""
    summary = read_json(job.run_dir / "summary.json") or {}
    if code is not None and (code < 0 or code == INTERRUPTED) and summary.get("status") == "done":
        code, reason = int(ExitCode.DONE), ""  # the signal met what comes after a run: its page, its last words
    if code not in {None, int(ExitCode.DONE)}:
        told = "stopped before it began" if code == INTERRUPTED else f"see {job.log}"
        # A job that was killed may have let its trial say a last word, or not: both are told.
        reason = "; ".join(filter(None, (reason, _told_reason(job.log)))) or str(summary.get("reason") or told)
    return TrainTrial(
        number=job.number,
        overrides=job.asked,
        code=code,
        reason=reason,
        run_dir=str(job.run_dir),
        place=place,
        summary=summary,
    )


def _told_reason(log: Path) -> str:
    """The first of the errors that the trial ended with."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return re.split(r"\. Last lines", told[0])[0] if told else ""
