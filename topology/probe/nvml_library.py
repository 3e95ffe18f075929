"""Where the NVIDIA driver's library seems to be, found without loading it: a damaged one ends who loads it."""

from __future__ import annotations

import os
import re
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LIBRARY: Final = "libnvidia-ml.so.1"
_CACHE: Final = "etc/ld.so.cache"
_CACHED: Final = re.compile(rb"/[^\0]{0,4000}/libnvidia-ml\.so\.1(?=\0)")
_MAX_CACHE_BYTES: Final = 16 * 2**20
_PRELOADED: Final = re.compile(r"nvidia-ml|nvml", re.IGNORECASE)
# Of distributions, containers (nvidia-container-toolkit, GKE), WSL and NixOS.
_FOLDERS: Final = (
    *("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64"),
    *("usr/lib/wsl/lib", "run/opengl-driver/lib", "usr/local/nvidia/lib", "usr/local/nvidia/lib64"),
)
_PATTERNS: Final = ("usr/lib/*-linux-gnu", "usr/lib/*-linux-gnu/nvidia", "usr/lib/*-linux-gnu/nvidia/current")


def find_library(environment: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return the path of what the loader would take, as far as that shows; None where there is nothing of the name.

    `environment` is that of the process which would load it; `root` is where the system's folders are.
    """
    if not sys.platform.startswith("linux"):
        return LIBRARY if sys.platform == "win32" else None
    return next(_candidates(environment, root), None)


def _candidates(environment: Mapping[str, str], root: Path) -> Iterator[str]:
    preloaded = re.split(r"[\s:]+", environment.get("LD_PRELOAD", ""))
    yield from (path for path in preloaded if _PRELOADED.search(os.path.basename(path)))  # noqa: PTH119
    asked = environment.get("LD_LIBRARY_PATH")
    # An empty entry is the working directory.
    yield from _named(entry or "." for entry in (re.split(r"[:;]", asked) if asked else ()))
    yield from (path for path in _cached(root / _CACHE) if os.path.lexists(path))
    globbed = (sorted(root.glob(pattern)) for pattern in _PATTERNS)
    yield from _named(str(folder) for folder in chain((root / name for name in _FOLDERS), *globbed))
    yield from _named([str(Path(sys.base_prefix) / "lib"), str(Path(sys.prefix) / "lib")])


def _named(folders: Iterable[str]) -> Iterator[str]:
    # A link to nothing counts: that is a driver half removed, and the loader says so.
    return (path for folder in folders if os.path.lexists(path := os.path.join(folder, LIBRARY)))  # noqa: PTH118


def _cached(path: Path) -> list[str]:
    try:
        with path.open("rb") as stream:
            return [os.fsdecode(found) for found in _CACHED.findall(stream.read(_MAX_CACHE_BYTES))]
    except OSError:
        return []
