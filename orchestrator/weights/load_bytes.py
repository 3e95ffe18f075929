"""How much memory loading a base takes: formulas that estimates use, too."""

from orchestrator.estimate.load_bytes import PACKING_BYTES, PORTION, LoadPeak, packing_bytes

__all__ = ["PACKING_BYTES", "PORTION", "LoadPeak", "packing_bytes"]
