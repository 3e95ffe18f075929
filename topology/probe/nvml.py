"""Raw readings through NVML (`pynvml`): every call is caught by itself, and nothing is raised.

Calls fail one by one on GeForce cards, under WSL, on virtual GPUs and in containers: a card that will not tell
its NVLink state still tells its memory.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

from topology.checks import normal_pci
from topology.probe.readings import AncestorReadings, GpuReadings, NvlinkReadings, NvmlReadings
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

V = TypeVar("V")

_LIBRARY: Final = "libnvidia-ml.so.1"
_CPU_WORDS: Final = 16  # 64 CPUs a word: masks of up to 1024 CPUs
_LINK_ENDS: Final = frozenset({"INVALID_ARGUMENT", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND"})


def read_nvml(environment: Mapping[str, str], library: Any = None) -> NvmlReadings:  # noqa: ANN401 - a module
    """Read all GPUs the driver shows; without a driver, an empty result with one line saying so.

    `library` stands in for the `pynvml` module; without it the real one is imported, and only when the driver's
    library is there, since the import alone takes tens of milliseconds.
    """
    if library is None:
        library, reason = _load()
        if library is None:
            return _nothing(environment, reason)
    # nvmlInit returns nothing, so its success is made a value.
    initialised = _Caller(library).read("nvmlInit", then=lambda _: True)
    if initialised.error is not None:
        return _nothing(environment, f"NVML does not start ({initialised.error})")
    try:
        return _read_all(library, environment)
    finally:
        _Caller(library).read("nvmlShutdown", then=lambda _: True)


def _load() -> tuple[Any, str]:
    if sys.platform.startswith("linux"):
        import ctypes  # with it, the cheap question comes before the slow import

        try:
            ctypes.CDLL(_LIBRARY)
        except OSError:
            return None, f"{_LIBRARY} not found"
    try:
        import pynvml  # slow, and useless without a driver
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    return pynvml, ""


def _nothing(environment: Mapping[str, str], reason: str) -> NvmlReadings:
    return NvmlReadings(
        driver_version=Reading(source="nvmlSystemGetDriverVersion", error="NO_DRIVER"),
        unavailable=f"no NVIDIA driver: {reason}",
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        device_order=environment.get("CUDA_DEVICE_ORDER"),
    )


def _read_all(library: Any, environment: Mapping[str, str]) -> NvmlReadings:  # noqa: ANN401 - a module
    call = _Caller(library)
    driver = call.read("nvmlSystemGetDriverVersion", then=_string)
    count = call.read("nvmlDeviceGetCount")
    handles = [call.read("nvmlDeviceGetHandleByIndex", index) for index in range(count.value or 0)]
    ancestors = tuple(
        AncestorReadings(a_index=a, b_index=b, level=call.read("nvmlDeviceGetTopologyCommonAncestor", one, other))
        for b, other in enumerate(handles)
        for a, one in enumerate(handles[:b])
    )
    return NvmlReadings(
        driver_version=driver,
        gpus=tuple(_gpu(call, index, handle) for index, handle in enumerate(handles)),
        ancestors=ancestors,
        unavailable=None if count.error is None else f"the NVIDIA driver does not count its GPUs ({count.error})",
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        device_order=environment.get("CUDA_DEVICE_ORDER"),
    )


def _gpu(call: _Caller, index: int, handle: Reading[Any]) -> GpuReadings:
    return GpuReadings(
        index=index,
        uuid=call.read("nvmlDeviceGetUUID", handle, then=_string),
        name=call.read("nvmlDeviceGetName", handle, then=_string),
        pci=call.read("nvmlDeviceGetPciInfo", handle, then=_pci),
        memory_total_bytes=call.read("nvmlDeviceGetMemoryInfo", handle, then=lambda memory: int(memory.total)),
        memory_free_bytes=call.read("nvmlDeviceGetMemoryInfo", handle, then=lambda memory: int(memory.free)),
        compute_capability=call.read("nvmlDeviceGetCudaComputeCapability", handle, then=lambda pair: (*pair,)),
        numa=call.read("nvmlDeviceGetNumaNodeId", handle),
        cpus=call.read("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS, then=_cpus),
        nvlinks=tuple(_nvlinks(call, handle)),
    )


def _nvlinks(call: _Caller, handle: Reading[Any]) -> Iterator[NvlinkReadings]:
    for link in range(getattr(call.library, "NVML_NVLINK_MAX_LINKS", 18)):
        state = call.read("nvmlDeviceGetNvLinkState", handle, link)
        if state.error in _LINK_ENDS or handle.error is not None:
            # Past the last port, or a card without any: the answer to all further ports is the same.
            return
        yield NvlinkReadings(
            link=link,
            state=state,
            version=call.read("nvmlDeviceGetNvLinkVersion", handle, link),
            remote_pci=call.read("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, then=_pci),
            remote_type=call.read("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        )


class _Caller:
    """Calls NVML functions by name, so that one missing from an old library is an error code like any other."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a module
        self.library = library

    def read(self, function: str, *arguments: Any, then: Callable[[Any], Any] = lambda value: value) -> Reading[Any]:  # noqa: ANN401
        """Call `function`; handles are readings, and one that failed fails the call."""
        for argument in arguments:
            if isinstance(argument, Reading) and argument.error is not None:
                return Reading(source=function, error=argument.error)
        plain = [argument.value if isinstance(argument, Reading) else argument for argument in arguments]
        try:
            value = then(getattr(self.library, function)(*plain))
        except Exception as error:  # noqa: BLE001 - a broken driver must not end the probe
            return Reading(source=function, error=self._code(error))
        return Reading(source=function, value=value, error="NONE" if value is None else None)

    def _code(self, error: Exception) -> str:
        number = getattr(error, "value", None)
        if number is None:
            return type(error).__name__
        names = (name for name in dir(self.library) if name.startswith("NVML_ERROR_"))
        found = next((name for name in names if getattr(self.library, name) == number), f"NVML_ERROR_{number}")
        return found.removeprefix("NVML_ERROR_")


def _string(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _pci(info: Any) -> str:  # noqa: ANN401 - a ctypes structure of pynvml
    address = normal_pci(_string(info.busId))
    # Some drivers leave the text of a remote end empty and fill the numbers only.
    return address or f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _cpus(words: Any) -> tuple[int, ...]:  # noqa: ANN401 - a ctypes array of pynvml
    return tuple(word * 64 + bit for word, mask in enumerate(words) for bit in range(64) if mask >> bit & 1)
