"""Raw readings through NVML (`pynvml`): every call is caught by itself, and nothing is raised.

Calls fail one by one on GeForce cards, under WSL, on virtual GPUs and in containers: a card that will not tell
its NVLink state still tells its memory.
"""

from __future__ import annotations

import os
import sys
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from topology.probe.gpu_readings import AncestorReadings, NvmlReadings, P2pReadings
from topology.probe.nvml_calls import Caller, text_of
from topology.probe.nvml_gpu import read_gpu
from topology.probe.nvml_library import LIBRARY, find_library
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_GPUS: Final = 256
_MAX_TEXT: Final = 500
# NVML_P2P_CAPS_INDEX_*; by number, since the first of these names is bound to a tuple in pynvml 13.
_READ, _WRITE, _NVLINK, _ATOMICS = range(4)
_CUDA_VERSION: Final = ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")


def read_nvml(environment: Mapping[str, str], library: Any = None) -> NvmlReadings:  # noqa: ANN401 - a module
    """Read all GPUs the driver shows; without a driver, an empty result with one line saying so.

    A library that hangs or crashes does so here: `nvml_process` is for those who must go on.

    `library` stands in for the `pynvml` module; without it the real one is imported, and only when the driver's
    library is there, since the import alone takes tens of milliseconds.
    """
    if library is None:
        library, reason = _load()
        if library is None:
            return no_driver(environment, reason)
    call = Caller(library)
    # nvmlInit returns nothing, so its success is made a value.
    initialised = call.read("nvmlInit", then=lambda _: True)
    if initialised.error is not None:
        return no_driver(environment, f"NVML does not start ({initialised.error})")
    try:
        return _read_all(call, environment)
    finally:
        call.read("nvmlShutdown", then=lambda _: True)


def _load() -> tuple[Any, str]:
    if sys.platform.startswith("linux"):
        import ctypes  # with it, the cheap question comes before the slow import

        try:
            ctypes.CDLL(LIBRARY)
        except OSError as error:
            return None, _why_not(str(error))
    try:
        import pynvml  # slow, and useless without a driver
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    return pynvml, ""


def _why_not(words: str) -> str:
    path = find_library(os.environ)
    if path is None:
        return f"{LIBRARY} not found"
    if "No such file" in words:
        return f"the loader does not take {path}: it is for another processor, a link to nothing, or off the path"
    return f"{path} cannot be loaded: {words.removeprefix(f'{path}: ')}"[:_MAX_TEXT]


def no_driver(environment: Mapping[str, str], reason: str) -> NvmlReadings:
    """Return the readings of a host whose driver cannot be asked, for this reason."""
    return NvmlReadings(
        driver_version=Reading(source="nvmlSystemGetDriverVersion", error="NO_DRIVER"),
        unavailable=f"no NVIDIA driver: {reason}",
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        device_order=environment.get("CUDA_DEVICE_ORDER"),
    )


def _read_all(call: Caller, environment: Mapping[str, str]) -> NvmlReadings:
    count = call.read("nvmlDeviceGetCount")
    handles = [call.read("nvmlDeviceGetHandleByIndex", index) for index in range(min(count.value or 0, _MAX_GPUS))]
    # A GPU that cannot be opened answers nothing about its pairs either.
    opened = [(index, handle) for index, handle in enumerate(handles) if handle.error is None]
    pairs = list(combinations(opened, 2))
    return NvmlReadings(
        driver_version=call.read("nvmlSystemGetDriverVersion", then=text_of),
        cuda_version=call.first(_CUDA_VERSION),
        count=count,
        gpus=tuple(read_gpu(call, index, handle) for index, handle in enumerate(handles)),
        ancestors=tuple(
            AncestorReadings(a_index=a, b_index=b, level=call.read("nvmlDeviceGetTopologyCommonAncestor", one, other))
            for (a, one), (b, other) in pairs
        ),
        p2p=tuple(_p2p(call, a, b, one, other) for (a, one), (b, other) in pairs),
        unavailable=None if count.error is None else f"the NVIDIA driver does not count its GPUs ({count.error})",
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        device_order=environment.get("CUDA_DEVICE_ORDER"),
    )


def _p2p(call: Caller, a: int, b: int, one: Reading[Any], other: Reading[Any]) -> P2pReadings:
    def status(capability: int) -> Reading[int]:
        return call.read("nvmlDeviceGetP2PStatus", one, other, capability)

    return P2pReadings(
        a_index=a,
        b_index=b,
        read=status(_READ),
        write=status(_WRITE),
        nvlink=status(_NVLINK),
        atomics=status(_ATOMICS),
    )
