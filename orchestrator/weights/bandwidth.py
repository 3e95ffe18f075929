"""How many bytes may be fetched while one layer computes: formulas that the planner uses, too."""

from orchestrator.estimate.bandwidth import CHUNK_BYTES, chunks_per_second, common_window_bytes, window_bytes

__all__ = ["CHUNK_BYTES", "chunks_per_second", "common_window_bytes", "window_bytes"]
