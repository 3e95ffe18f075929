"""`route`: which way collectives take through the machine, how near the bound they come, and what limits them."""

from orchestrator.route.show import route

__all__ = ["route"]
