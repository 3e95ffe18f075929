"""An adapter's files as they lie on the disk: read without torch, and never trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

import numpy as np

from orchestrator.dataset.disk import reading
from orchestrator.errors import Problem, UserError
from orchestrator.workload.files import read_header

WEIGHTS: Final = "adapter_model.safetensors"
CONFIG: Final = "adapter_config.json"
ANOTHER_STATE: Final = "take another state with export.checkpoint=best or export.checkpoint=STEP."
_LENGTH_BYTES: Final = 8
_READ_BYTES: Final = 2**24
# Bits of the exponent: all are set in infinities and in what is no number (IEEE 754; bfloat16 is fp32's upper half).
_EXPONENTS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "F16": ("<u2", 0x7C00),
        "BF16": ("<u2", 0x7F80),
        "F32": ("<u4", 0x7F80_0000),
        "F64": ("<u8", 0x7FF0_0000_0000_0000),
    }
)


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Read `adapter_config.json`.

    Raises:
        UserError: it cannot be read, or says nothing of an adapter with a rank.
    """
    path = folder / CONFIG
    try:
        with reading(path):
            body = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is no JSON ({error})") from error
    if not isinstance(body, dict) or not isinstance(body.get("r"), int):
        raise _damaged(path, "it names no rank (r)")
    return body


def check_adapter(folder: Path) -> None:
    """Check that configuration and weights are whole files; their values are not looked at.

    Raises:
        UserError: what is wrong with them.
    """
    read_adapter_config(folder)
    if not read_header(folder / WEIGHTS):
        raise _damaged(folder / WEIGHTS, "it holds no tensor")


def check_finite(folder: Path) -> None:
    """Check that every value of an adapter is a finite number.

    Raises:
        UserError: naming the first tensor that holds another.
    """
    path = folder / WEIGHTS
    kinds = read_header(path)
    with reading(path), path.open("rb") as file:
        begin = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header: dict[str, Any] = json.loads(file.read(begin))
        for name in kinds:
            start, end = header[name]["data_offsets"]
            file.seek(_LENGTH_BYTES + begin + start)
            if not _is_finite(file, end - start, kinds[name].dtype):
                raise UserError(not_finite(name, str(path)))


def _is_finite(file: BinaryIO, nbytes: int, dtype: str) -> bool:
    if dtype not in _EXPONENTS:
        return True
    kind, mask = _EXPONENTS[dtype]
    return not any(bool(((np.frombuffer(part, kind) & mask) == mask).any()) for part in _parts(file, nbytes))


def _parts(file: BinaryIO, nbytes: int) -> Iterator[bytes]:
    while nbytes:
        part = file.read(min(nbytes, _READ_BYTES))
        if not part:
            raise OSError(f"{file.name} became shorter while it was read")
        nbytes -= len(part)
        yield part


def not_finite(name: str, where: str) -> Problem:
    """The problem of a tensor with values that no model can use."""
    found = f"{name} holds values that are no finite numbers (NaN or infinite)"
    return Problem(where=where, found=found, remedy=f"The training has diverged: {ANOTHER_STATE}")


def _damaged(path: Path, found: str) -> UserError:
    return UserError(Problem(where=str(path), found=found, remedy=f"The file is damaged: {ANOTHER_STATE}"))
