"""The real model with adapters on fake tensors: transformers' modules, bitsandbytes' layers, PEFT's adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert
from trl.trainer.utils import add_fused_lm_head

from orchestrator.errors import Problem, UserError
from orchestrator.simulate.case import Case
from orchestrator.train.checkpointing import enable_checkpointing
from orchestrator.train.settings import TrainSettings
from orchestrator.workload.parameters import TUPLE_ROUTERS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BLOCK, _NESTED_BLOCK, _LEVELS, _CODE = 64, 256, 16, 256
_FUSED_OUTPUTS = ("log_probs", "entropy", "is_top1")  # what TRL's SFTTrainer asks for


def build_model(case: Case) -> PeftModel:
    """Build the model in the active fake mode, frozen but for its adapters."""
    config = _config(case)
    if case.layers is not None:
        config.num_hidden_layers = case.layers
    with no_init_weights():
        base: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[case.load_dtype], attn_implementation=case.attention
        )
        base.tie_weights()
    base.requires_grad_(requires_grad=False)
    if case.quant != "none":
        _quantise(base, case)
    model = _adapted(base, case)
    if case.stack == "trl":
        add_fused_lm_head(model.get_base_model(), outputs=_FUSED_OUTPUTS)
    enable_checkpointing(model, _settings(case), case.rank)
    return model.train()


def _config(case: Case) -> PretrainedConfig:
    """The model's configuration.

    Raises:
        UserError: this version of transformers has no causal language model of this kind.
    """
    try:
        config = AutoConfig.for_model(**dict(case.model))
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ValueError(f"no causal language model of type {config.model_type!r}")  # noqa: TRY301 - told below
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        remedy = "Give the config.json of a causal language model that this version of transformers knows."
        raise UserError(Problem(where="model", found=reason, remedy=remedy)) from error
    return config


def _quantise(base: PreTrainedModel, case: Case) -> None:
    """Let transformers choose the modules, and give each the tensors that bitsandbytes would store."""
    wanted = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=case.quant,
        bnb_4bit_use_double_quant=case.double_quant,
        bnb_4bit_compute_dtype=DTYPES[case.compute_dtype],
    )
    skipped = get_keys_to_not_convert(base)
    with unset_fake_temporarily():  # `Params4bit` cannot be made of a fake tensor; these are on the meta device
        replace_with_bnb_linear(base, modules_to_not_convert=skipped, quantization_config=wanted)
    for module in base.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.weight = packed_weight(module.out_features, module.in_features, case)
            if module.bias is not None:
                bias = torch.empty(module.out_features, dtype=DTYPES[case.load_dtype])
                module.bias = nn.Parameter(bias, requires_grad=False)
    target: Any = base
    target.is_loaded_in_4bit = True


def packed_weight(rows: int, columns: int, case: Case) -> nn.Parameter:
    """Stand in for `Params4bit`, which is a tensor class of its own and so cannot hold a fake tensor."""
    weights = rows * columns
    weight: Any = nn.Parameter(torch.empty((-(-weights // 2), 1), dtype=torch.uint8), requires_grad=False)
    weight.quant_state = _quant_state(weights, (rows, columns), case)
    weight.compress_statistics, weight.quant_type = case.double_quant, case.quant
    weight.bnb_quantized, weight.blocksize = True, _BLOCK
    parameter: nn.Parameter = weight
    return parameter


def _quant_state(weights: int, shape: tuple[int, int], case: Case) -> QuantState:
    blocks = -(-weights // _BLOCK)
    nested = None
    if case.double_quant:
        scales = torch.empty(-(-blocks // _NESTED_BLOCK), dtype=torch.float32)
        code = torch.empty(_CODE, dtype=torch.float32)
        nested = QuantState(absmax=scales, code=code, blocksize=_NESTED_BLOCK, dtype=torch.float32)
    return QuantState(
        absmax=torch.empty(blocks, dtype=torch.uint8 if nested else torch.float32),
        shape=torch.Size(shape),
        dtype=DTYPES[case.compute_dtype],
        blocksize=_BLOCK,
        code=torch.empty(_LEVELS, dtype=torch.float32),
        quant_type=case.quant,
        offset=torch.empty((), dtype=torch.float32) if nested else None,
        state2=nested,
    )


def _adapted(base: PreTrainedModel, case: Case) -> PeftModel:
    all_linear = case.targets == ("all-linear",)
    config = LoraConfig(
        r=case.rank,
        lora_alpha=2 * case.rank,
        lora_dropout=case.dropout,
        target_modules="all-linear" if all_linear else list(case.targets),
        exclude_modules=tuple_routers(base) if all_linear else None,
        task_type="CAUSAL_LM",
        bias="none",
    )
    # Everything is on one device; moving would swap tensors, which fake ones refuse.
    with mock.patch.object(nn.Module, "to", lambda module, *_args, **_kwargs: module):
        model = get_peft_model(base, config)
    if not isinstance(model, PeftModel):
        raise TypeError(f"PEFT returned {type(model).__name__} instead of a PeftModel")
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[case.adapter_dtype])
    return model


def tuple_routers(base: nn.Module) -> list[str] | None:
    """Full names of the linear modules that return a tuple; None when there are none."""
    return [name for name, module in base.named_modules() if type(module).__name__ in TUPLE_ROUTERS] or None


def _settings(case: Case) -> TrainSettings:
    return TrainSettings(
        run_dir=Path(),
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cpu"),
        engine="ddp",
        precision=case.compute_dtype,
        adapter_dtype=case.adapter_dtype,
        quant_storage="uint8",
        checkpointing=case.checkpointing,
        shares=(case.micro * case.accumulation,),
        micro=(case.micro,),
        accumulation=case.accumulation,
        recomputed_layers=case.recomputed,
    )
