"""Tensors of a run: the spaces of a program, and buffers that are allocated once and used again."""

from __future__ import annotations

from collections import defaultdict

import torch

from orchestrator.collectives.layout import Space, Span
from orchestrator.collectives.program import Program


class Pool:
    """Flat buffers for pieces on their way, kept from run to run."""

    def __init__(self) -> None:
        """Start empty: the first run shows what is needed."""
        self._free: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
        self._lent: dict[int, torch.Tensor] = {}

    def take(self, elements: int, like: torch.Tensor) -> torch.Tensor:
        """Lend a buffer of so many elements; its content is whatever was there."""
        free = self._free[like.dtype, like.device]
        whole = free.pop() if free else None
        if whole is None or whole.numel() < elements:
            whole = torch.empty(elements, dtype=like.dtype, device=like.device)
        lent = whole[:elements]
        self._lent[id(lent)] = whole
        return lent

    def give_back(self, lent: torch.Tensor) -> None:
        """Take back what `take` lent."""
        whole = self._lent.pop(id(lent))
        self._free[whole.dtype, whole.device].append(whole)

    @property
    def held_bytes(self) -> int:
        """Bytes of all buffers, lent or free."""
        free = [tensor for tensors in self._free.values() for tensor in tensors]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*free, *self._lent.values()))


class Spaces:
    """The flat tensors behind a program's spans."""

    def __init__(self, program: Program, data: torch.Tensor, result: torch.Tensor | None, pool: Pool) -> None:
        """Take the caller's tensors; what is only passed on gets memory of its own."""
        self._pool = pool
        relayed = pool.take(program.relayed_elements, data) if program.relayed_elements else None
        self._relayed = relayed
        self._tensors = {Space.data: data, Space.result: result, Space.relayed: relayed}

    def at(self, span: Span) -> torch.Tensor:
        """View of a span."""
        tensor = self._tensors[span.space]
        if tensor is None:
            raise RuntimeError(f"no memory for {span}")  # a program that says 0 elements never names the space
        return tensor[span.begin : span.end]

    def close(self) -> None:
        """Give back what was lent."""
        if self._relayed is not None:
            self._pool.give_back(self._relayed)
            self._relayed = None


def apply(target: torch.Tensor, came: torch.Tensor, *, add: bool) -> None:
    """Sum what came into its place, or put it there."""
    if not add:
        target.copy_(came)
    elif target.dtype is torch.bool:
        target.logical_or_(came)  # a sum of truth values, as gloo and NCCL take it
    else:
        target.add_(came)
