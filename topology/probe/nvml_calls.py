"""Calls into NVML by name, each a reading: whatever a driver does, nothing is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topology.checks import normal_pci
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable


class Caller:
    """Calls NVML functions by name, so that one missing from an old library is an error code like any other."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - the `pynvml` module
        """Keep the library; `library` is public for its constants and structures."""
        self.binding = library
        self._names: dict[int, str] | None = None

    def read(self, function: str, *arguments: Any, then: Callable[[Any], Any] = lambda value: value) -> Reading[Any]:  # noqa: ANN401
        """Call `function`; handles are readings, and one that failed fails the call."""
        for argument in arguments:
            if isinstance(argument, Reading) and argument.error is not None:
                return Reading(source=function, error=argument.error)
        plain = [argument.value if isinstance(argument, Reading) else argument for argument in arguments]
        try:
            value = then(getattr(self.binding, function)(*plain))
        except Exception as error:  # noqa: BLE001 - a broken driver must not end the probe
            return Reading(source=function, error=self._code(error))
        return Reading(source=function, value=value, error="NONE" if value is None else None)

    def first(self, functions: tuple[str, ...], *arguments: Any) -> Reading[Any]:  # noqa: ANN401
        """Call the first of the functions that the library has: newer names before older ones."""
        for function in functions[:-1]:
            reading = self.read(function, *arguments)
            if reading.error not in {"FUNCTION_NOT_FOUND", "AttributeError", "ARGUMENT_VERSION_MISMATCH"}:
                return reading
        return self.read(functions[-1], *arguments)

    def field(self, handle: Reading[Any], number: int, name: str) -> Reading[int]:
        """Read an integer field of a device by the field's number."""
        found = self.read("nvmlDeviceGetFieldValues", handle, [number], then=lambda values: values[0])
        source = f"nvmlDeviceGetFieldValues {name}"
        if found.value is None:
            return Reading(source=source, error=found.error)
        if found.value.nvmlReturn:
            return Reading(source=source, error=self.code(found.value.nvmlReturn))
        return Reading(source=source, value=int(found.value.value.uiVal))

    def code(self, number: int) -> str:
        """Name an NVML error number: 3 is `NOT_SUPPORTED`."""
        if self._names is None:
            prefix = "NVML_ERROR_"
            names = (name for name in dir(self.binding) if name.startswith(prefix))
            self._names = {getattr(self.binding, name): name.removeprefix(prefix) for name in names}
        return self._names.get(number, f"NVML_ERROR_{number}")

    def _code(self, error: Exception) -> str:
        number = getattr(error, "value", None)
        return type(error).__name__ if not isinstance(number, int) else self.code(number)


def part(reading: Reading[Any], pick: Callable[[Any], Any]) -> Reading[Any]:
    """Take a part of a value that was read in one call; an error stays."""
    if reading.error is not None:
        return Reading(source=reading.source, error=reading.error)
    return Reading(source=reading.source, value=pick(reading.value))


def text_of(value: str | bytes) -> str:
    """Return the text of what NVML writes into a buffer."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def pci_of(info: Any) -> str:  # noqa: ANN401 - a ctypes structure of pynvml
    """Return the address in a PCI structure. Some drivers leave the text of a remote end empty and fill the numbers."""
    address = normal_pci(text_of(info.busId))
    return address or f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def bits_of(words: Any) -> tuple[int, ...]:  # noqa: ANN401 - a ctypes array of pynvml
    """Return the numbers of the bits set in a mask of 64-bit words."""
    return tuple(word * 64 + bit for word, mask in enumerate(words) for bit in range(64) if mask >> bit & 1)
