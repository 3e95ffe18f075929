"""Where calibrations lie, and which of them a plan uses: the one of the machine's fingerprint, or the one named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.calibration_file import Calibration, Chosen, loads
from orchestrator.errors import Problem, UserError
from topology.fingerprint import fingerprint

if TYPE_CHECKING:
    from topology.model import Topology

AUTO: Final = "auto"
NONE: Final = "none"
_MOST_BYTES: Final = 16 * 2**20  # a larger file is none of ours


def cache_path(of_machine: str, environ: Mapping[str, str]) -> Path | None:
    """File of the machine with that fingerprint in the user's cache; None for a user without a home."""
    root = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):  # noqa: PTH117 - the XDG specification: relative ones are ignored
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.home raises where there is none
        if not os.path.isabs(home):  # noqa: PTH117
            return None
        root = os.path.join(home, ".cache")  # noqa: PTH118 - a text, as the variable is
    return Path(root) / "trainmaster" / "calibration" / f"{of_machine}.json"


def read_calibration(path: Path, where: str) -> Calibration:
    """Read a file.

    Raises:
        UserError: it is missing, damaged or of a later version.
    """
    try:
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            found = f"{path.stat().st_size:,} bytes, more than any calibration has"
            raise UserError(Problem(where=where, found=found, remedy="Give a file that `trainmaster bench` wrote"))
        return loads(path.read_text(encoding="utf-8"), where)
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror or str(error) if isinstance(error, OSError) else f"no text ({error.reason})"
        raise UserError(
            Problem(where=where, found=found, remedy="Give a file that `trainmaster bench save=FILE` wrote")
        ) from error


def choose_calibration(asked: str, topology: Topology, environ: Mapping[str, str]) -> Chosen:
    """Return the calibration that the key `calibration` means for this machine.

    `auto` takes the file of the same fingerprint, and tables where there is none; one that cannot be read is told and
    passed over, since nobody asked for it by name. A named file must have been measured on a kind of device that this
    machine has: what another card reaches is no measurement of this one. Another number of the same cards is fine.

    Raises:
        UserError: a named file is missing, damaged, of a later version, or of other devices.
    """
    if asked == NONE:
        return Chosen()
    if asked in {AUTO, ""}:
        return _of_machine(topology, environ)
    calibration = read_calibration(Path(asked), f"calibration={asked}")
    names = list(dict.fromkeys(device.name for device in topology.devices))
    measured = calibration.measured_devices
    if measured and not measured & set(names):
        found = f"measured on {', '.join(sorted(measured))}, and this machine has {', '.join(names)}"
        remedy = "Run `trainmaster bench` on this machine, or use calibration=none"
        raise UserError(Problem(where=f"calibration={asked}", found=found, remedy=remedy))
    warnings: tuple[str, ...] = ()
    if calibration.fingerprint != fingerprint(topology):
        of = ", ".join(calibration.hosts) or "another machine"
        warnings = (f"calibration={asked} was made on another machine ({of}) with the same kind of device",)
    return Chosen(calibration=calibration, path=asked, warnings=warnings)


def _of_machine(topology: Topology, environ: Mapping[str, str]) -> Chosen:
    folder = cache_path("", environ)
    try:
        if folder is None or not folder.parent.is_dir():
            return Chosen()  # nothing was ever stored: the fingerprint of a large cluster takes its time
        here = fingerprint(topology)
        path = folder.with_name(f"{here}.json")
        if not path.is_file():
            return Chosen()
        found = read_calibration(path, str(path))
    except UserError as error:
        told = "; ".join(f"{problem.where}: {problem.found}" for problem in error.problems)
        return Chosen(warnings=(f"the stored calibration is not used: {told}. `trainmaster bench` makes a new one",))
    except OSError:
        return Chosen()  # a cache that may not even be looked into is as good as none
    if found.fingerprint != here:
        return Chosen(warnings=(f"the stored calibration {path} is of another machine, so it is not used",))
    return Chosen(calibration=found, path=str(path))
