"""Probing this host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from topology.judge import judged
from topology.probe.assemble import assemble
from topology.probe.nvml_process import read_nvml_apart
from topology.probe.readings import MachineReadings
from topology.probe.sysfs import read_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.model import Topology


def read_machine(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> MachineReadings:
    """Take the raw readings of this host; `environment` is the process's own unless given.

    The driver is asked in another process, for 20 s at most unless TRAINMASTER_NVML_SECONDS says otherwise.
    """
    nvml = read_nvml_apart(os.environ if environment is None else environment)
    addresses = tuple(gpu.pci.value for gpu in nvml.gpus if gpu.pci.value is not None)
    return MachineReadings(host=read_host(root, addresses), nvml=nvml)


def probe_host() -> Topology:
    """Discover this host. What cannot be read is unknown in the result, and told in its warnings."""
    return judged(assemble(read_machine()))
