"""The adapters on a base that holds no weights: what is added to a parameter is PEFT's own to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedModel

from orchestrator.errors import Problem, UserError
from orchestrator.weights.skeleton import hollow

_ADAPTER = "default"
_CPU = torch.device("cpu")


class AdaptedLayers:
    """Merges adapters into parameters that are handed in one by one.

    Every parameter of the base stands for a tensor of its shape with one element of memory; PEFT sees ordinary
    modules, and merges into the one that is given its weight for a moment.
    """

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        """Put the adapters of a folder on a model without weights, which is changed.

        Raises:
            UserError: the adapters do not fit the model, or hold what cannot be merged.
        """
        empty_out(model)
        try:
            adapted: Any = PeftModel.from_pretrained(model, str(folder), low_cpu_mem_usage=True)
        except Exception as error:  # libraries raise all kinds for a damaged file
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise _unfit(folder, f"PEFT cannot load it onto the base ({reason})") from error
        self._layers: dict[str, Any] = {}
        self._whole: dict[str, torch.Tensor] = {}
        self._used: set[str] = set()
        for path, module in adapted.base_model.model.named_modules():
            name = ".".join(part for part in path.split(".") if part != "base_layer")
            if isinstance(module, BaseTunerLayer):
                self._layers[f"{name}.{getattr(module, 'parameter_name', None) or 'weight'}"] = module
            elif isinstance(module, ModulesToSaveWrapper):
                for key, value in module.modules_to_save[_ADAPTER].named_parameters():
                    self._whole[f"{name}.{key}"] = value.detach()
            elif isinstance(module, AuxiliaryTrainingWrapper):
                raise _unfit(folder, f"{name} has trained rows of its own (trainable_token_indices)")
        for module in self._layers.values():
            for parameter in module.parameters():
                parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature

    @property
    def names(self) -> frozenset[str]:
        """Full names of the base's parameters that adapters change."""
        return frozenset(self._layers) | frozenset(self._whole)

    @property
    def unused(self) -> frozenset[str]:
        """Names that nothing was merged into yet."""
        return self.names - self._used

    def merged(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return a parameter with its adapters in it.

        Args:
            name: of the parameter in the base.
            weight: its value in fp32; it is overwritten.
        """
        self._used.add(name)
        if name in self._whole:
            return self._whole[name].float()
        layer = self._layers[name]
        base: nn.Module = layer.get_base_layer()
        attribute = name.rpartition(".")[2]
        empty = base._parameters[attribute]  # noqa: SLF001 - the parameter itself
        base._parameters[attribute] = nn.Parameter(weight, requires_grad=False)  # noqa: SLF001
        try:
            with torch.no_grad():
                layer.merge(safe_merge=False, adapter_names=[_ADAPTER])
            made = base._parameters[attribute]  # noqa: SLF001
        finally:
            base._parameters[attribute] = empty  # noqa: SLF001
            layer.merged_adapters.clear()
            getattr(layer, "_caches", {}).clear()  # DoRA leaves the norms that it divided by
        if made is None:
            raise RuntimeError(f"{name} was lost while it was merged")
        return made.detach()


def empty_out(model: nn.Module) -> None:
    """Let every parameter be fp32 on the CPU, with one element of memory."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):  # noqa: SLF001 - the parameters themselves
            if parameter is not None:
                empty = hollow(tuple(parameter.shape), torch.float32, _CPU)
                module._parameters[name] = nn.Parameter(empty, requires_grad=False)  # noqa: SLF001


def _unfit(folder: Path, found: str) -> UserError:
    remedy = "Use export.format=peft, and let PEFT apply it."
    return UserError(Problem(where=f"adapter {folder.name}", found=found, remedy=remedy))
