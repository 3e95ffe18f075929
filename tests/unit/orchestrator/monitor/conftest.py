"""The stand-in for the driver's library with meters, and readings drawn at random."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

METERS = Path(__file__).parent / "nvml_meters.c"


@pytest.fixture(scope="session")
def meter_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build the stand-in, once for each set of compiler flags; gives its directory."""
    built: dict[str, Path] = {}

    def build(flags: str = "") -> Path:
        if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
            pytest.skip("needs gcc to build the stand-in library")
        if flags not in built:
            target = tmp_path_factory.mktemp("meters") / "libnvidia-ml.so.1"
            subprocess.run(
                ["gcc", *flags.split(), "-shared", "-fPIC", "-o", str(target), str(METERS)], check=True, timeout=30
            )
            built[flags] = target.parent
        return built[flags]

    return build
