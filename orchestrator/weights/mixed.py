"""A base of several kinds of storage, loaded by transformers: some modules 4-bit, others 8-bit or not quantised.

transformers has a quantiser of bitsandbytes for 4 bits and one for 8. The one here lets the base's own kind replace the
linear modules as ever, then puts others in the place of those that a pattern names; each weight is quantised on its way
from the files by what its own module is. So every module has the values of a base that is stored in its kind whole.
"""

from __future__ import annotations

from typing import Any, Final

import bitsandbytes as bnb
import torch
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.core_model_loading import ConversionOps
from transformers.integrations import replace_with_bnb_linear
from transformers.integrations.bitsandbytes import Bnb4bitQuantize, Bnb8bitQuantize
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name
from transformers.utils.quantization_config import QuantizationConfigMixin

from orchestrator.config import BaseConfig, Quant
from orchestrator.workload.quant_pattern import Kinds, kind_for

_METHOD: Final = "trainmaster_mixed"  # under which transformers finds the quantiser
_PACKED: Final = (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt)


class MixedConfig(QuantizationConfigMixin):  # type: ignore[misc] # transformers' class has no types
    """What `from_pretrained` is asked for; a loaded model tells of the base's own kind alone."""

    def __init__(self, patterns: Kinds, plain: BitsAndBytesConfig, others: dict[Quant, BitsAndBytesConfig]) -> None:
        """Hold which modules differ, what all others are, and the other kinds."""
        self.quant_method = _METHOD
        self.patterns, self.plain, self.others = patterns, plain, others


def bitsandbytes_config(base: BaseConfig, dtype: torch.dtype, storage: str) -> QuantizationConfigMixin | None:
    """Return what `from_pretrained` is asked for; None keeps the base in the load dtype.

    Args:
        base: how it is stored.
        dtype: of the arithmetic.
        storage: name of the type that packed 4-bit weights are stored under.
    """
    if base.quant is Quant.none:
        return None
    kinds = {base.quant, *(kind for _, kind in base.quant_pattern)} - {Quant.none}
    configs = {kind: _config_of(kind, base, dtype, storage) for kind in kinds}
    plain = configs[base.quant]
    return MixedConfig(base.quant_pattern, plain, configs) if base.quant_pattern else plain


def _config_of(kind: Quant, base: BaseConfig, dtype: torch.dtype, storage: str) -> BitsAndBytesConfig:
    if kind is Quant.int8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind.value,
        bnb_4bit_use_double_quant=base.double_quant,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=getattr(torch, storage),
    )


@register_quantizer(_METHOD)
class MixedQuantizer(Bnb4BitHfQuantizer):  # type: ignore[misc] # transformers' class has no types
    """Quantises each weight as its own module asks."""

    def __init__(self, asked: MixedConfig, **kwargs: Any) -> None:  # noqa: ANN401 - transformers' own
        """Take what is asked for; to all others this is a quantiser of the base's own kind."""
        super().__init__(asked.plain, **kwargs)
        self._asked = asked

    def param_needs_quantization(self, model: nn.Module, param_name: str, **_: object) -> bool:
        """Whether a parameter is a packed module's weight."""
        module, name = get_module_from_name(model, param_name)
        return isinstance(module, _PACKED) and name != "bias"

    def _process_model_before_weight_loading(self, model: nn.Module, *args: object, **kwargs: object) -> None:
        before = dict(model.named_modules())
        super()._process_model_before_weight_loading(model, *args, **kwargs)
        packed = [name for name, module in model.named_modules() if isinstance(module, _PACKED)]
        for name in packed:
            kind = kind_for(name, self._asked.patterns)
            if kind is Quant.none:
                model.set_submodule(name, before[name])
            elif kind is not None:
                model.set_submodule(name, _replaced(before[name], self._asked.others[kind]))

    def _process_model_after_weight_loading(self, model: Any, **_: object) -> Any:  # noqa: ANN401 - a model
        # PEFT looks for the layers of a kind in a model that says it has some.
        kinds = {type(module) for module in model.modules()}
        for kind, flag in ((bnb.nn.Linear4bit, "is_loaded_in_4bit"), (bnb.nn.Linear8bitLt, "is_loaded_in_8bit")):
            if kind in kinds:
                setattr(model, flag, True)
        return model

    def get_quantize_ops(self) -> ConversionOps:
        """Return what quantises one weight."""
        return _Quantize(self)


class _Quantize(ConversionOps):  # type: ignore[misc] # transformers' class has no types
    """Packs a weight as the module does that it goes to."""

    def __init__(self, hf_quantizer: MixedQuantizer) -> None:
        self.hf_quantizer = hf_quantizer  # by this name transformers tells quantisation from other conversions
        self._four, self._eight = Bnb4bitQuantize(hf_quantizer), Bnb8bitQuantize(hf_quantizer)

    def convert(
        self,
        input_dict: dict[str, Any],
        *args: object,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, value in input_dict.items():
            module, _ = get_module_from_name(model, name)
            packs = self._eight if isinstance(module, bnb.nn.Linear8bitLt) else self._four
            made |= packs.convert({name: value}, *args, model=model, **kwargs)
        return made


def _replaced(module: nn.Module, config: BitsAndBytesConfig) -> nn.Module:
    """Return the module of another kind that takes this one's place."""
    holder = nn.Module()
    holder.add_module("linear", module)
    replace_with_bnb_linear(holder, modules_to_not_convert=[], quantization_config=config)
    return holder.get_submodule("linear")
