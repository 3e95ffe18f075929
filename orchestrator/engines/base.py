"""The contract between the training loop and whoever shards the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from orchestrator.engines.live import Named, count_bytes

Moments = dict[str, torch.Tensor]


def frozen_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Return every tensor the frozen base really consists of, quantisation state included."""
    tensors: list[torch.Tensor] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            continue
        tensors.append(parameter.data)
        partition = getattr(parameter, "ds_tensor", None)  # set by ZeRO-3: what this rank keeps
        if partition is not None:
            tensors.append(partition)
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            tensors.extend([state.absmax, state.code])
            if state.nested:
                tensors.extend([state.state2.absmax, state.state2.code])
    return tensors


class Engine(ABC):
    """One way to hold base, adapters and optimizer over the ranks.

    Every method that returns a whole tensor is collective: all ranks call it in the same order.
    """

    name: str

    @abstractmethod
    def trainer_arguments(self) -> dict[str, Any]:
        """Return what the trainer's arguments must say for this engine."""

    @abstractmethod
    def prepare(self, model: nn.Module) -> None:
        """Adjust the model before it is wrapped."""

    @abstractmethod
    def parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return a trainable parameter whole, in full precision where the engine keeps one."""

    @abstractmethod
    def set_parameter(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Write a whole tensor back into a trainable parameter."""

    @abstractmethod
    def moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Moments:
        """Return the optimizer's state of a parameter, whole: name -> tensor."""

    @abstractmethod
    def set_moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, moments: Moments) -> None:
        """Write the optimizer's state of a parameter back."""

    @abstractmethod
    def live_tensors(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Named:
        """Return the tensors that live between steps, under the names of the memory estimate's terms."""

    def live_bytes(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """Return the bytes that live on this rank now, by term."""
        return count_bytes(self.live_tensors(model, optimizer))
