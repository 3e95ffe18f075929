"""Which errors mean that memory ran out, and which memory: without torch, which may not even be loaded.

Libraries say it in words and types of their own, or inside an error of another kind: the chain of causes counts.
"""

from __future__ import annotations

import errno
import linecache
import re
from collections.abc import Iterator
from typing import Final

from orchestrator.planner.setbacks import DEVICE, HOST

_TYPES: Final = frozenset({"OutOfMemoryError", "MemoryError", "_ArrayMemoryError", "ArrowMemoryError"})
_WORDS: Final = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory(?! in static TLS)|bad_alloc|unable to allocate"
    r"|failed to allocate|ALLOC_FAILED|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
_OF_DEVICE: Final = re.compile(r"CUDA|CUBLAS|CUDNN|CUSPARSE|NCCL|HIP\b", re.IGNORECASE)
_ASKED: Final = re.compile(
    r"(?:allocate|allocating)\s+(?P<number>\d[\d,.]*)\s*(?P<unit>[KMGTPE]i?B|bytes|B)?\b", re.IGNORECASE
)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_MOST_CAUSES: Final = 16
_PINNED: Final = "pin_memory"


def memory_error(error: BaseException) -> BaseException | None:
    """Return the error, or the one that caused it, that says that memory ran out; None where none does."""
    return next((one for one in _chain(error) if _says_so(one)), None)


def memory_line(text: str) -> str | None:
    """Return the line of a printed traceback that says that memory ran out, for libraries that keep only the text."""
    lines = (line for line in text.splitlines() if line and not line[0].isspace())  # source lines are indented
    return next((line for line in lines if _is_type(line) or _WORDS.search(line)), None)


def _is_type(line: str) -> bool:
    """Whether a line reads `module.MemoryError: ...`."""
    return line.partition(":")[0].rpartition(".")[2].strip() in _TYPES


def where_of(error: BaseException) -> str:
    """Return whose memory ran out (`device` or `host`), by an error that `memory_error` found."""
    if _is_pinning(error):  # page-locked memory is the host's, though CUDA hands it out
        return HOST
    if type(error).__module__.startswith("torch") and type(error).__name__ == "OutOfMemoryError":
        return DEVICE
    return DEVICE if not isinstance(error, MemoryError) and _OF_DEVICE.search(str(error)) else HOST


def asked_bytes(error: BaseException) -> int:
    """Return what could not be had, where the words tell it; 0 elsewhere."""
    found = _ASKED.search(str(error))
    if found is None:
        return 0
    unit = (found["unit"] or "").lower()
    shift = 0 if unit in {"bytes", "b"} else _UNITS.get(unit[:1], 0)
    try:
        return int(float(found["number"].rstrip(".").replace(",", "")) * (1 << shift))
    except ValueError:
        return 0


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes; what an error merely came after says nothing of it once it was handled apart."""
    now: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if now is None:
            return
        yield now
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ in _TYPES:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, Exception) and _WORDS.search(str(error)) is not None


def _is_pinning(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return _PINNED in code.co_name or _PINNED in linecache.getline(code.co_filename, trace.tb_lineno)
