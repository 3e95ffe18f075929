"""Parameters and buffers outside the layers' extents: every rank holds them whole."""

from __future__ import annotations

import torch
from torch import nn

from orchestrator.weights.layers import FrozenParameter
from orchestrator.weights.layout import Role
from orchestrator.weights.skeleton import Skeleton
from orchestrator.weights.views import bind, declare


class Residents:
    """Gives them memory, each when it is first asked for."""

    def __init__(self, skeleton: Skeleton, device: torch.device) -> None:
        """Allocate nothing yet."""
        self._skeleton, self._device = skeleton, device
        self._parts: dict[str, dict[Role, torch.Tensor]] = {}
        self.nbytes = 0

    def whole(self, name: str) -> torch.Tensor:
        """Flat bytes of one that is not packed."""
        return self.part(name, Role.plain)

    def part(self, name: str, role: Role) -> torch.Tensor:
        """Flat bytes of a part; the model has them from then on."""
        if name not in self._parts:
            self._parts[name] = self._packed(name) if name in self._skeleton.kinds else self._plain(name)
        return self._parts[name][role]

    def _plain(self, name: str) -> dict[Role, torch.Tensor]:
        module, attribute = self._owner(name)
        shape, dtype = self._skeleton.expected[name].shape, self._skeleton.types[name]
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        if attribute in module._buffers:  # noqa: SLF001 - torch's own setattr does the same
            module._buffers[attribute] = tensor  # noqa: SLF001
        else:
            module._parameters[attribute] = nn.Parameter(tensor, requires_grad=False)  # noqa: SLF001
        self.nbytes += tensor.nbytes
        return {Role.plain: tensor.view(-1).view(torch.uint8)}

    def _packed(self, name: str) -> dict[Role, torch.Tensor]:
        module, attribute = self._owner(name)
        place = [FrozenParameter(name=name, module=module, attribute=attribute)]
        extent = declare(place)
        memory = torch.zeros(extent.nbytes, dtype=torch.uint8, device=self._device)
        bind(place, extent, memory)
        self.nbytes += memory.nbytes
        return {item.role: memory[item.offset : item.end] for item in extent.items}

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, attribute = name.rpartition(".")
        return self._skeleton.model.get_submodule(path), attribute
