"""Replicated base, adapters in DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from orchestrator.engines.base import Engine, Moments
from orchestrator.engines.live import Named, replicated_base, tensors_of


class DdpEngine(Engine):
    """Every rank holds the whole 4-bit base; only adapter gradients cross the links."""

    name = "ddp"

    def trainer_arguments(self) -> dict[str, Any]:
        """Say that every adapter is used in every step, and that buffers need no broadcast."""
        return {"ddp_find_unused_parameters": False, "ddp_broadcast_buffers": False}

    def prepare(self, model: nn.Module) -> None:
        """Keep DDP away from the frozen base: it would broadcast all of it at the start."""
        frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        buffers = [name for name, _ in model.named_buffers()]
        # Public by habit: FSDP and others set the same attribute; DDP has no argument for it.
        setattr(model, "_ddp_params_and_buffers_to_ignore", frozen + buffers)  # noqa: B010

    def parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return a copy of the replicated parameter."""
        return parameter.detach().clone()

    def set_parameter(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Copy into the parameter in place, so that every alias stays valid."""
        with torch.no_grad():
            parameter.copy_(value.to(parameter.device, parameter.dtype))

    def moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Moments:
        """Return a copy of the optimizer's tensors; before the first step there are none."""
        state = _unwrap(optimizer).state.get(parameter, {})
        return {
            name: torch.as_tensor(value).detach().clone()
            for name, value in state.items()
            if torch.is_tensor(value) or isinstance(value, (int, float))
        }

    def set_moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, moments: Moments) -> None:
        """Put the tensors back where the optimizer keeps them (`step` counters stay on the host)."""
        state: dict[str, Any] = {}
        for name, value in moments.items():
            if value.dim() == 0:
                state[name] = value.clone() if name == "step" else value.to(parameter.device)
            else:
                state[name] = value.to(parameter.device)
        inner = _unwrap(optimizer)
        if type(inner).__module__.startswith("bitsandbytes"):
            state["step"] = int(state["step"])  # its kernels take a plain integer
        inner.state[parameter] = state

    def live_tensors(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Named:
        """Return base, adapters, moments and DDP's buckets; gradients are freed when a step ends."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return {
            **replicated_base(model),
            "adapters": [parameter.data for parameter in trained],
            "optimizer": tensors_of(_unwrap(optimizer).state),
            "ddp_buckets": _buckets(model),
        }


def _buckets(model: nn.Module) -> list[torch.Tensor]:
    """Copies of the reducer's buckets: C++ keeps the buckets themselves to itself, these have their sizes."""
    reducer: Any = getattr(model, "reducer", None)
    if reducer is None:
        return []
    return [bucket.buffer() for bucket in reducer._get_zeros_like_grad_buckets()]  # noqa: SLF001 - no public way


def _unwrap(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    if not isinstance(inner, torch.optim.Optimizer):
        raise TypeError(f"expected a torch optimizer, found {type(inner).__name__}")
    return inner
