"""Vendor figures of GPUs, grouped by where they come from and by how they were checked.

Rates are dense (no sparsity) and at the boost clock. Half precision is the tensor-core rate with fp32 accumulation:
GeForce cards run it at half of their fp16-accumulation rate, data-centre and professional cards at the full one
(with exceptions: A10G, L40, L20). `checked` says what the figures were compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Names (`|` between spellings), half precision and fp32 in TFLOP/s (0: no such unit), memory GB/s, memory GiB.
# Memory is the size of the whole card, or, where the driver keeps more than 2% back, the size it shows, rounded up.
Row = tuple[str, float, float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows with one source. Without `has_bf16` the half-precision rate holds for fp16 alone."""

    source: str
    date: str
    checked: str
    rows: tuple[Row, ...]
    has_bf16: bool = True


RECALLED: Final = "not verified: from memory of the source"
CODE_TABLES: Final = "half precision same in torchtitan or stas00/ml-engineering"
SPEC_TABLE: Final = "same in the public table lamonoai/gpumap"
CLOCKS: Final = "cores and boost clock found in public databases; half rate by the rule of the whitepaper"
