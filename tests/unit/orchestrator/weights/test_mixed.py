"""Bases of several kinds of storage, against bases that are stored in one kind whole and against the estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import bnb as quantised
from peft.tuners.lora.layer import Linear as PlainLayer

from orchestrator.config import BaseConfig, Quant
from orchestrator.engines.live import replicated_base, storage_bytes
from orchestrator.estimate.base import whole_bytes
from orchestrator.estimate.extents import Stored, layer_bytes
from orchestrator.merge.base import Base, Trained, source_of
from orchestrator.weights.cache import cache_key
from orchestrator.weights.checkpoint import open_checkpoint
from orchestrator.weights.mixed import bitsandbytes_config
from orchestrator.weights.skeleton import BaseSource, build_skeleton
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.quant_pattern import Kinds, kind_for, with_kinds

BF16, CPU = torch.bfloat16, torch.device("cpu")
WIDTHS: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 272,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, hf.PretrainedConfig] = {
    "llama": hf.LlamaConfig(**WIDTHS),
    "qwen2": hf.Qwen2Config(**WIDTHS),  # with biases
    "mixtral": hf.MixtralConfig(**WIDTHS, **EXPERTS),  # its experts are in one tensor, which stays as it is
    "gpt2": hf.GPT2Config(vocab_size=128, n_embd=96, n_layer=3, n_head=4, n_positions=64),  # Conv1D
}
MIX: Kinds = (
    (r"layers\.0\.", Quant.none),
    ("q_proj", Quant.int8),
    ("down_proj", Quant.int8),
    ("v_proj", Quant.fp4),
    ("o_proj", Quant.nf4),
)
MIXES: dict[str, Kinds] = {
    "llama": MIX,
    "qwen2": MIX,
    "mixtral": tuple(pair for pair in MIX if pair[0] != "down_proj"),
    "gpt2": ((r"h\.2\.", Quant.none), ("c_proj", Quant.int8), (r"c_attn", Quant.fp4)),
}


@pytest.fixture(scope="module", params=CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS[request.param], dtype=BF16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return request.param, folder


def _load(folder: Path, base: BaseConfig) -> Any:
    asked = bitsandbytes_config(base, BF16, "uint8")
    extra = {} if asked is None else {"quantization_config": asked}
    return hf.AutoModelForCausalLM.from_pretrained(folder, dtype=BF16, **extra)


def _parts(module: Any) -> list[torch.Tensor]:
    """All that holds a module's weight."""
    state = getattr(module.weight, "quant_state", None)
    parts = [module.weight.data]
    if state is not None:
        nested = [state.state2.absmax, state.offset] if state.nested else []
        parts += [state.absmax, *nested]
    if isinstance(module, bnb.nn.Linear8bitLt):
        parts.append(module.weight.SCB)
    return parts


@pytest.mark.parametrize("quant", [Quant.nf4, Quant.int8])
def test_each_module_is_as_in_a_base_of_its_kind(saved: tuple[str, Path], quant: Quant) -> None:
    name, folder = saved
    mixed = _load(folder, BaseConfig(quant=quant, quant_pattern=MIXES[name]))
    whole = {kind: dict(_load(folder, BaseConfig(quant=kind)).named_modules()) for kind in Quant}
    seen = set()
    for path, packed in whole[Quant.nf4].items():
        if isinstance(packed, bnb.nn.Linear4bit):
            kind = kind_for(path, MIXES[name]) or quant
            found, expected = mixed.get_submodule(path), whole[kind][path]
            assert type(found) is type(expected)
            for ours, theirs in zip(_parts(found), _parts(expected), strict=True):
                assert torch.equal(ours, theirs)
            seen.add(kind)
    assert seen >= {Quant.none, Quant.int8, Quant.fp4}
    for path, parameter in mixed.named_parameters():
        assert parameter.device.type == "cpu", path


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("quant", [Quant.nf4, Quant.int8])
def test_bytes_are_as_estimated(saved: tuple[str, Path], quant: Quant, *, double: bool) -> None:
    name, folder = saved
    base = BaseConfig(quant=quant, double_quant=double, quant_pattern=MIXES[name])
    shape = with_kinds(shape_from_config("m", CONFIGS[name].to_dict()), base.quant_pattern)
    model = _load(folder, base).requires_grad_(requires_grad=False)
    tensors = [tensor for found in replicated_base(model).values() for tensor in found]
    assert whole_bytes(shape, quant, double) == storage_bytes(tensors)

    asked = bitsandbytes_config(base, BF16, "uint8")
    source = BaseSource(folder=folder, dtype=BF16, quantization=asked, device=CPU)
    real = build_skeleton(source, open_checkpoint(folder)).layout
    assert layer_bytes(shape, Stored(quant=quant, double_quant=double, load_bytes=2)) == real.layer_bytes


def test_packed_layers_are_kept_for_each_pattern(saved: tuple[str, Path]) -> None:
    """nf4 and fp4 take the same bytes, so the layout alone would not tell them apart."""
    name, folder = saved
    leaf = "c_attn" if name == "gpt2" else "v_proj"
    keys, checkpoint = set(), open_checkpoint(folder)
    for pairs in ((), ((leaf, Quant.fp4),), ((leaf, Quant.none),), ((rf"1\..*{leaf}", Quant.fp4),)):
        asked = bitsandbytes_config(BaseConfig(quant_pattern=pairs), BF16, "uint8")
        skeleton = build_skeleton(BaseSource(folder=folder, dtype=BF16, quantization=asked, device=CPU), checkpoint)
        keys.add(cache_key(skeleton, checkpoint, CPU))
    assert len(keys) == 4


def test_adapters_are_those_of_the_kind(saved: tuple[str, Path]) -> None:
    name, folder = saved
    model = _load(folder, BaseConfig(quant_pattern=MIXES[name]))
    targets: Any = r".*self_attn\..*_proj" if name == "mixtral" else "all-linear"
    adapted = get_peft_model(model, LoraConfig(target_modules=targets, r=2, task_type="CAUSAL_LM"))
    layers = {bnb.nn.Linear4bit: quantised.Linear4bit, bnb.nn.Linear8bitLt: quantised.Linear8bitLt}
    seen = set()
    for path, module in adapted.base_model.model.named_modules():
        if hasattr(module, "lora_A"):
            kind = type(module.base_layer)
            assert isinstance(module, layers.get(kind, PlainLayer)), path
            seen.add(kind)
    assert len(seen) == 3
    adapted(input_ids=torch.arange(12).view(2, 6), labels=torch.arange(12).view(2, 6)).loss.backward()
    grads = [x.grad for path, x in adapted.named_parameters() if "lora_B" in path]
    assert grads
    assert all(x is not None and bool(x.isfinite().all()) and bool(x.any()) for x in grads)


def test_merging_takes_the_values_of_each_kind(saved: tuple[str, Path]) -> None:
    name, folder = saved
    config = BaseConfig(quant_pattern=MIXES[name])
    trained = Trained(dtype=BF16, quantization=bitsandbytes_config(config, BF16, "uint8"))
    opened = Base(source_of(folder, torch.float32, trust_remote_code=False), trained)
    found = {key: value for job in opened.plan.jobs for key, value in opened.values(job).items()}
    opened.close()
    for path, module in _load(folder, config).named_modules():
        if isinstance(module, bnb.nn.Linear4bit | bnb.nn.Linear8bitLt):
            if isinstance(module, bnb.nn.Linear4bit):
                values = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            else:
                values = module.weight.data.float() * (module.weight.SCB.view(-1, 1) / 127)
            ours = found[f"{path}.weight"]
            assert torch.equal(ours.T if name == "gpt2" else ours, values.float()), path
        elif isinstance(module, torch.nn.Linear) and f"{path}.weight" in found:  # a tied head is not
            assert torch.equal(found[f"{path}.weight"], module.weight.float()), path
