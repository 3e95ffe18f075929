"""What becomes of a run: an adapter for PEFT and its servers, or a whole model with the adapter in it."""

from orchestrator.export.run import export

__all__ = ["export"]
