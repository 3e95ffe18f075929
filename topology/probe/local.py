"""Probing this host, and reading a saved topology: where the readings come from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topology.codec import from_json
from topology.errors import TopologyError
from topology.probe.assemble import assemble
from topology.probe.nvml import read_nvml
from topology.probe.readings import READINGS_SCHEMA, MachineReadings, readings_from_json
from topology.probe.sysfs import read_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.model import Topology


def read_machine(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> MachineReadings:
    """Take the raw readings of this host; `environment` is the process's own unless given."""
    nvml = read_nvml(os.environ if environment is None else environment)
    addresses = tuple(gpu.pci.value for gpu in nvml.gpus if gpu.pci.value is not None)
    return MachineReadings(host=read_host(root, addresses), nvml=nvml)


def probe_host() -> Topology:
    """Discover this host. What cannot be read is unknown in the result, and told in its warnings."""
    return assemble(read_machine())


def read_topology(path: Path | str) -> Topology:
    """Read a saved topology, or recorded readings, from a JSON file.

    Raises:
        TopologyError: if the file cannot be read or is in another format.

    """
    path = Path(path)
    asked = f"a topology from {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(asked=asked, found=str(error), remedy="give the path of a readable JSON file") from error
    data = _parse(text, asked)
    try:
        if isinstance(data, dict) and data.get("schema") == READINGS_SCHEMA:
            return assemble(readings_from_json(data), source=f"readings {path.name}")
        return from_json(data)
    except TopologyError as error:
        raise TopologyError(asked=asked, problems=error.problems, remedy=error.remedy) from error


def _parse(text: str, asked: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    import json  # a probe of this host does not need it, and it is slow to import

    try:
        return json.loads(text)
    except ValueError as error:
        remedy = "give a file written by `trainmaster probe save=FILE` (JSON); no other format is understood yet"
        raise TopologyError(asked=asked, found=_guess(text, error), remedy=remedy) from error


def _guess(text: str, error: ValueError) -> str:
    if text.lstrip().startswith("<"):
        return "XML (an NCCL topology?)"
    if "GPU0" in text:
        return "text like that of `nvidia-smi topo -m`"
    return f"no JSON ({error})"
