"""Probing this host, and reading a saved topology: where the readings come from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topology.codec import from_json
from topology.errors import TopologyError
from topology.probe import nccl_xml, smi
from topology.probe.assemble import assemble
from topology.probe.nvml import read_nvml
from topology.probe.readings import READINGS_SCHEMA, MachineReadings, readings_from_json
from topology.probe.sysfs import read_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.model import Topology

_MAX_BYTES = 64 * 2**20  # the largest snapshot of a thousand hosts is below that


def read_machine(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> MachineReadings:
    """Take the raw readings of this host; `environment` is the process's own unless given."""
    nvml = read_nvml(os.environ if environment is None else environment)
    addresses = tuple(gpu.pci.value for gpu in nvml.gpus if gpu.pci.value is not None)
    return MachineReadings(host=read_host(root, addresses), nvml=nvml)


def probe_host() -> Topology:
    """Discover this host. What cannot be read is unknown in the result, and told in its warnings."""
    return assemble(read_machine())


def read_topology(path: Path | str) -> Topology:
    """Read a machine from a file, recognised by its content.

    Understood are saved topologies and recorded readings (JSON), `nvidia-smi topo -m` text and NCCL or RCCL
    topology XML.

    Raises:
        TopologyError: if the file cannot be read or is in another format.

    """
    path = Path(path)
    asked = f"a topology from {path}"
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TopologyError(asked=asked, found=str(error), remedy="give the path of a readable file") from error
    if len(content) > _MAX_BYTES:
        raise TopologyError(asked=asked, found=f"more than {_MAX_BYTES} bytes", remedy="give the description alone")
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem) or "host"
    try:
        return _read(content, host, path.name, asked)
    except TopologyError as error:
        raise TopologyError(asked=asked, problems=error.problems, remedy=error.remedy) from error


def _read(content: bytes, host: str, name: str, asked: str) -> Topology:
    if nccl_xml.recognises(content):
        return nccl_xml.parse_nccl_xml(content, host=host)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError(asked=asked, found=str(error), remedy="save the file as UTF-8 text") from error
    if not text.lstrip().startswith(("{", "[")) and smi.recognises(text):
        return smi.parse_smi(text, host=host)
    data = _parse(text, asked)
    if isinstance(data, dict) and data.get("schema") == READINGS_SCHEMA:
        return assemble(readings_from_json(data), source=f"readings {name}")
    return from_json(data)


def _parse(text: str, asked: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    import json  # a probe of this host does not need it, and it is slow to import

    try:
        return json.loads(text)
    except ValueError as error:
        remedy = (
            "give a file written by `trainmaster probe save=FILE`, the output of `nvidia-smi topo -m`, "
            "or an NCCL topology XML"
        )
        raise TopologyError(asked=asked, found=_guess(text, error), remedy=remedy) from error


def _guess(text: str, error: ValueError) -> str:
    if text.lstrip().startswith("<"):
        return "XML whose root is not <system version=...>"
    return f"neither a GPU matrix nor JSON ({error})"
