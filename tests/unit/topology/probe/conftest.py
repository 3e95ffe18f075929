"""Machines described to the stand-in for the driver's library, and the library itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from topology.probe.readings import MachineReadings, readings_from_json

A100: Final[dict[str, Any]] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "mib": 81920,
    "capability": "8.0",
    "links": 12,
    "power": 400_000,
    "ecc": 1,
    "max_gen": 4,
    "max_width": 16,
    "card_gen": 4,
    "gen": 1,
    "width": 16,
    "cpus": "0 5",
    "nodes": 2,
}
GEFORCE: Final[dict[str, Any]] = {
    "name": "NVIDIA GeForce RTX 4090",
    "mib": 24564,
    "capability": "8.9",
    "max_gen": 4,
    "max_width": 16,
}
CLUSTER: Final = "0123456789abcdef0123456789abcdef"
GB200: Final[dict[str, Any]] = {
    "name": "NVIDIA GB200",
    "mib": 189471,
    "capability": "10.0",
    "links": 18,
    "numa": 1,
    "max_gen": 6,
    "max_width": 16,
    "fabric": f"3 {CLUSTER} 32766 2",
}


class Described:
    """Lines of a description, and the names in them."""

    a100 = A100
    geforce = GEFORCE
    gb200 = GB200

    @staticmethod
    def uuid(at: int) -> str:
        return f"GPU-{at:08x}-0000-0000-0000-000000000000"

    @staticmethod
    def address(at: int) -> str:
        return f"00000000:{0x10 + at:02X}:00.0"

    @classmethod
    def cards(cls, count: int, values: dict[str, Any], **changes: Any) -> list[str]:
        lines = []
        for at in range(count):
            own = {"uuid": cls.uuid(at), "pci": cls.address(at), **values, **changes}
            lines += [f"gpu {at} {key} {value}" for key, value in own.items()]
        return lines

    @staticmethod
    def failing(code: int, *names: str, gpu: int = -1) -> list[str]:
        return [f"fail nvmlDeviceGet{name} {gpu} {code}" for name in names]

    @classmethod
    def sliced_a100(cls) -> list[str]:
        """Two A100 joined by a link, the first cut in two."""
        return [
            *cls.cards(2, A100, links=1),
            "gpu 0 mig 1",
            "gpu 0 mig_pending 1",
            "slice 0 1 MIG-aaaa0001-0000 40192 1 0 42 NVIDIA A100-SXM4-80GB MIG 3g.40gb",
            "slice 0 4 MIG-bbbb0004-0000 19968 5 2 28 NVIDIA A100-SXM4-80GB MIG 2g.20gb",
            f"link 0 0 1 4 0 {cls.address(1)}",
            f"link 1 0 1 4 0 {cls.address(0)}",
        ]


@pytest.fixture(scope="session")
def described() -> type[Described]:
    return Described


STAND_IN = Path(__file__).parent / "nvml_stand_in.c"
# One process reads many machines: the stand-in reads its description anew at each start of the library.
RECORD = """
import json, os, sys
from pathlib import Path
from topology.probe.nvml import read_nvml
from topology.probe.readings import MachineReadings, readings_to_json
from topology.probe.sysfs import read_host
for line in sys.stdin:
    job = json.loads(line)
    os.environ["STAND_IN_MACHINE"] = job["machine"]
    nvml = read_nvml(job["environment"])
    addresses = tuple(gpu.pci.value for gpu in nvml.gpus if gpu.pci.value is not None)
    print(json.dumps(readings_to_json(MachineReadings(host=read_host(Path(job["root"]), addresses), nvml=nvml))))
"""


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build the stand-in for the driver's library, once for each set of compiler flags; gives its directory."""
    built: dict[str, Path] = {}

    def build(flags: str) -> Path:
        if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
            pytest.skip("needs gcc to build the stand-in library")
        if flags not in built:
            target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
            command = ["gcc", *flags.split(), "-shared", "-fPIC", "-o", str(target), str(STAND_IN)]
            subprocess.run(command, check=True, timeout=30)
            built[flags] = target.parent
        return built[flags]

    return build


Record = Callable[..., list[MachineReadings]]

LEAST_PROC = {
    "sys/kernel/hostname": "box\n",
    "self/status": "Cpus_allowed_list:\t0\n",
    "meminfo": "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n",
}


@pytest.fixture(scope="session")
def record(nvml_library: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Read described machines with the unmodified `pynvml`, which finds the stand-in by its normal lookup."""

    def run(
        machines: Sequence[str],
        *,
        environments: Sequence[dict[str, str]] = (),
        root: Path | None = None,
        flags: str = "",
    ) -> list[MachineReadings]:
        folder = tmp_path_factory.mktemp("machines")
        for name, text in LEAST_PROC.items():
            path = (root or folder) / "proc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        lines = []
        for at, text in enumerate(machines):
            (folder / f"{at}.txt").write_text(text)
            environment = environments[at] if environments else {}
            job = {"machine": f"{folder / str(at)}.txt", "root": str(root or folder), "environment": environment}
            lines.append(json.dumps(job))
        paths = {"LD_LIBRARY_PATH": str(nvml_library(flags)), "PYTHONPATH": str(STAND_IN.parents[4])}
        command, text = [sys.executable, "-c", RECORD], "\n".join(lines)
        environment = {**os.environ, **paths}
        done = subprocess.run(
            command, env=environment, input=text, capture_output=True, text=True, check=True, timeout=30
        )
        return [readings_from_json(json.loads(line)) for line in done.stdout.splitlines()]

    return run
