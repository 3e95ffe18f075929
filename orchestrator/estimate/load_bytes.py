"""How much memory loading a base into shards takes (`weights.load_plan`), before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Weights that are packed at once. bitsandbytes makes several 32-bit copies of what it packs; each block is packed by
# itself, so that portions of whole blocks give the same bits.
PORTION: Final = 2**18
# Bytes that packing takes for each weight of a portion, beside the result; measured with torch's profiler on CPU,
# torch 2.13 and bitsandbytes 0.50 (14.1, 28.1 and 10.0). A GPU's kernels take less.
PACKING_BYTES: Final = {"nf4": 14.1, "fp4": 28.1, "int8": 10.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPeak:
    """Bytes of one rank when it holds most.

    Attributes:
        kept: pieces of the layers, and those parameters that every rank holds which have been loaded by then.
        raw: for what it reads at once, as it is stored (host memory).
        made: for what it packs at once.
        incoming: for what others send it at once.
        passing: of packing or conversions, gone before the next batch.
    """

    kept: int
    raw: int
    made: int
    incoming: int
    passing: int

    @property
    def total(self) -> int:
        """All of it, where host and device are the same memory."""
        return self.kept + self.raw + self.made + self.incoming + self.passing

    @property
    def beside(self) -> int:
        """What loading takes beside what is kept."""
        return self.total - self.kept


def packing_bytes(quant_type: str, weights: int, *, blocks: int = 0, copy_bytes: int = 0) -> int:
    """Bytes that packing takes for a weight, beside what is read and what is made.

    Args:
        quant_type: `nf4`, `fp4` or `int8`.
        weights: its elements.
        blocks: its scales, where these are packed in turn (double quantisation); else 0.
        copy_bytes: for each weight of a portion that is cast, or turned round, before.
    """
    portions = round(min(weights, PORTION) * (PACKING_BYTES[quant_type] + copy_bytes))
    # The 32-bit scales are there all the time; at the end, their distances from the mean, and the codes of these.
    return max(4 * blocks + portions, 9 * blocks)
