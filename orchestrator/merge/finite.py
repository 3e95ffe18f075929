"""Nothing is written that no model can use: values that are no numbers, or that a type cannot hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from orchestrator.errors import Problem, UserError
from orchestrator.export.adapter_files import not_finite

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types whose values are looked at; the others hold codes or whole numbers."""
_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
_PORTION = 2**22


def checked(
    name: str, values: Iterable[torch.Tensor], dtype: torch.dtype, *, copies: bool = False
) -> Iterator[torch.Tensor]:
    """Yield the values of a tensor, each portion after it was looked at.

    Args:
        name: of the tensor.
        values: in portions.
        dtype: in which they are written.
        copies: they are the base's own, which may hold infinities; only a loss by the type is an error.

    Raises:
        UserError: naming the tensor, and what to do.
    """
    for value in values:
        if dtype in FLOATS and value.dtype in FLOATS:
            flat = value.detach().reshape(-1)
            for begin in range(0, flat.numel(), _PORTION):
                _check(name, flat[begin : begin + _PORTION], dtype, copies=copies)
        yield value


def _check(name: str, part: torch.Tensor, dtype: torch.dtype, *, copies: bool) -> None:
    is_finite = torch.isfinite(part)
    if not copies and not bool(is_finite.all()):
        raise UserError(not_finite(name, "export"))
    if part.dtype != dtype and not torch.equal(torch.isfinite(part.to(dtype)), is_finite):
        found = f"{name} holds values beyond {torch.finfo(dtype).max:.5g}, which {_NAMES[dtype]} cannot hold"
        wider = "bf16" if dtype == torch.float16 else "fp32"
        raise UserError(Problem(where="export.dtype", found=found, remedy=f"Use export.dtype={wider}."))
