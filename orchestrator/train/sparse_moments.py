"""Keeps AdamW's second moment what dense gradients would make of it while gradients travel sparse.

An element that is sent once in t steps brings the sum of t gradients, and its square is t times what the squares of
these t gradients add up to, where they are alike. AdamW would divide by a root that is too large, and the element would
move by a fraction of what it moves with dense gradients. So the square counts 1/t. (1-bit Adam, arXiv 2102.02888,
freezes the second moment for the same reason.) After a step in which all elements travel, dense or refresh, none waits,
also not one that was zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import AdamW, Optimizer

State = dict[str, torch.Tensor]


class SparseMoments:
    """Counts, for each element, the steps since it last came, and corrects the second moment for it."""

    def __init__(self, optimizer: AdamW, named: Mapping[str, torch.nn.Parameter], says_all: Callable[[], bool]) -> None:
        """Follow an optimizer from its next step on.

        Args:
            optimizer: before its step.
            named: its parameters.
            says_all: whether all elements came in the present step.
        """
        self._named, self._says_all = named, says_all
        self._since: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._handle = optimizer.register_step_pre_hook(self._before)

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401
        """Take off the old moment what the square of this step's gradient is going to bring too much."""
        for group in optimizer.param_groups:
            beta = group["betas"][1]
            for parameter in group["params"]:
                moment = optimizer.state.get(parameter, {}).get("exp_avg_sq")
                # In 16 bits the difference below could end under zero.
                if parameter.grad is not None and moment is not None and moment.dtype is torch.float32:
                    self._correct(parameter, parameter.grad, moment, beta)

    def _correct(
        self, parameter: torch.nn.Parameter, gradient: torch.Tensor, moment: torch.Tensor, beta: float
    ) -> None:
        since = self._since.get(parameter)
        if since is None:
            since = self._since[parameter] = torch.zeros_like(gradient, dtype=torch.float32)
        since.add_(1.0)
        surplus = gradient.float().square().mul_(1 - 1 / since).mul_((1 - beta) / beta)
        moment.sub_(surplus.to(moment.dtype))
        if self._says_all():
            since.zero_()
        else:
            since.masked_fill_(gradient != 0, 0.0)

    def state(self) -> State:
        """Steps since each element came, by parameter name; copies, which later steps leave alone."""
        held = {name: self._since[value] for name, value in self._named.items() if value in self._since}
        return {name: value.to("cpu", copy=True) for name, value in held.items()}

    def load(self, saved: State) -> None:
        """Go on from saved counts."""
        for name, value in self._named.items():
            if name in saved:
                self._since[value] = saved[name].to(value.device).clone()

    def close(self) -> None:
        """Leave the optimizer alone."""
        self._handle.remove()
