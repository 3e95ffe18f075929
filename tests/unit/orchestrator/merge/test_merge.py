"""A merged model against PEFT's own `merge_and_unload`, over architectures and kinds of adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora.layer import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
)

from orchestrator.errors import UserError
from orchestrator.export.adapter_files import WEIGHTS
from orchestrator.merge.adapter import cast
from orchestrator.merge.base import Base, Trained, source_of
from orchestrator.merge.finite import checked
from orchestrator.merge.layers import AdaptedLayers
from orchestrator.merge.run import Merge, Merged

_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MODELS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SMALL, tie_word_embeddings=True),
    "llama-untied": LlamaConfig(**_SMALL, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**_SMALL),
    "phi3": Phi3Config(**_SMALL),
    "gpt2": GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
    "mixtral": MixtralConfig(**_SMALL, num_local_experts=4, num_experts_per_tok=2),
}


def _base(tmp_path: Path, name: str, shard: str = "1MB") -> Path:
    torch.manual_seed(0)
    folder = tmp_path / name
    AutoModelForCausalLM.from_config(_MODELS[name]).save_pretrained(folder, max_shard_size=shard)
    return folder


def _adapter(base: Path, folder: Path, **kwargs: Any) -> Path:
    config = LoraConfig(
        **({"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | kwargs)
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data += 0.1 * noise
    model.save_pretrained(str(folder))
    return folder


def _merged(
    base: Path, adapter: Path, out: Path, dtype: torch.dtype = torch.float32, **kwargs: Any
) -> tuple[Any, Merged]:
    opened = Base(source_of(base, dtype, trust_remote_code=False), kwargs.pop("trained", None))
    merge = Merge(opened, AdaptedLayers(opened.model, adapter))
    out.mkdir()
    done = merge.write(out, kwargs.pop("limit_bytes", 2**17), lambda _line: None)
    opened.close()
    config = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).config
    if done.is_untied:
        config.tie_word_embeddings = False
    config.save_pretrained(out)
    return AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), done


def _logits(model: Any) -> torch.Tensor:
    ids = torch.arange(3, 63).view(3, 20)
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=ids).logits
    return found


_CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"use_rslora": True}),
    ("llama", {"use_dora": True}),
    ("llama-untied", {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 8}, "alpha_pattern": {"v_proj": 32}}),
    ("llama-untied", {"modules_to_save": ["lm_head"]}),
    ("llama-untied", {"target_modules": ["q_proj", "lm_head", "embed_tokens"]}),
    ("qwen2", {"use_dora": True, "use_rslora": True}),
    ("phi3", {}),
    ("gpt2", {}),
    ("gpt2", {"use_dora": True, "fan_in_fan_out": True, "target_modules": ["c_attn", "c_proj"]}),
    ("mixtral", {"target_modules": ["q_proj", "v_proj"]}),
    (
        "mixtral",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    ),
]


@pytest.mark.parametrize(("name", "kwargs"), _CASES, ids=[f"{n}-{'-'.join(k) or 'lora'}" for n, k in _CASES])
def test_is_what_peft_merges(tmp_path: Path, name: str, kwargs: dict[str, Any]) -> None:
    base = _base(tmp_path, name)
    adapter = _adapter(base, tmp_path / "adapter", **kwargs)
    plain = _logits(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    own: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(adapter))
    applied = _logits(own)
    reference = own.merge_and_unload()

    found, done = _merged(base, adapter, tmp_path / "out")

    assert len(done.files) > 2
    expected = reference.state_dict()
    assert set(found.state_dict()) == set(expected)
    for key, value in found.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(_logits(found), applied, rtol=1e-4, atol=1e-4)
    assert (applied - plain).abs().max() > 0.01  # the adapter does something


@pytest.mark.parametrize("kwargs", [{"modules_to_save": ["embed_tokens"]}, {"target_modules": ["embed_tokens"]}])
def test_tied_embeddings_are_two_tensors_where_an_adapter_changes_one(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    base = _base(tmp_path, "llama")
    adapter = _adapter(base, tmp_path / "adapter", **kwargs)
    own: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(adapter))

    found, done = _merged(base, adapter, tmp_path / "out")

    assert done.is_untied
    torch.testing.assert_close(_logits(found), _logits(own), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "dora"), [("llama", False), ("llama", True), ("gpt2", False)])
def test_on_the_dequantised_base_it_is_the_model_that_was_trained(tmp_path: Path, name: str, dora: bool) -> None:
    base = _base(tmp_path, name)
    adapter = _adapter(base, tmp_path / "adapter", use_dora=dora)
    asked = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, quantization_config=asked)
    trained = _logits(PeftModel.from_pretrained(loaded, str(adapter)))

    exact, _ = _merged(base, adapter, tmp_path / "exact", trained=Trained(dtype=torch.float32, quantization=asked))
    near, _ = _merged(base, adapter, tmp_path / "near")

    exact_error = float((_logits(exact) - trained).abs().max())
    near_error = float((_logits(near) - trained).abs().max())
    assert exact_error < 1e-4
    assert near_error > 100 * exact_error  # the original base is another model


def test_sixteen_bits_differ_by_their_rounding_alone(tmp_path: Path) -> None:
    base = _base(tmp_path, "llama")
    adapter = _adapter(base, tmp_path / "adapter")
    whole, _ = _merged(base, adapter, tmp_path / "fp32")
    short, _ = _merged(base, adapter, tmp_path / "bf16", torch.bfloat16)
    for key, value in whole.state_dict().items():
        assert torch.equal(short.state_dict()[key], value.bfloat16().float()), key


def test_what_fp16_cannot_hold_is_refused(tmp_path: Path) -> None:
    base = _base(tmp_path, "llama")
    adapter = _adapter(base, tmp_path / "adapter", lora_alpha=1e7)
    with pytest.raises(UserError, match="fp16 cannot hold"):
        _merged(base, adapter, tmp_path / "out", torch.float16)


def test_another_base_is_refused(tmp_path: Path) -> None:
    base = _base(tmp_path, "llama")
    adapter = _adapter(base, tmp_path / "adapter")
    other = _base(tmp_path, "gpt2")
    with pytest.raises(UserError, match=r"export\.format=peft"):
        _merged(other, adapter, tmp_path / "out")


def test_no_memory_is_taken_by_the_base_before_it_is_merged(tmp_path: Path) -> None:
    base = _base(tmp_path, "llama")
    opened = Base(source_of(base, torch.float32, trust_remote_code=False), None)
    layers = AdaptedLayers(opened.model, _adapter(base, tmp_path / "adapter"))
    held = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in opened.model.parameters()}
    adapters = sum(
        p.nbytes
        for m in opened.model.modules()
        if isinstance(m, LoraLayer)
        for n, p in m.named_parameters()
        if "lora_" in n
    )
    assert layers.names
    assert sum(held.values()) < adapters + 4096


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    base = _base(tmp_path, "llama")
    adapter = _adapter(base, tmp_path / "adapter")
    tensors = load_file(adapter / WEIGHTS)
    broken = next(name for name in tensors if "layers.1.self_attn.v_proj.lora_B" in name)
    tensors[broken][3, 1] = float("nan")
    save_file(tensors, adapter / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.layers\.1\.self_attn\.v_proj\.weight holds .*checkpoint=best"):
        _merged(base, adapter, tmp_path / "out", dtype)
    with pytest.raises(UserError, match=rf"{broken} holds .*checkpoint=best"):
        cast(adapter, tmp_path / "cast", dtype)


def test_what_the_written_type_cannot_hold_is_refused_of_adapters_and_of_copies(tmp_path: Path) -> None:
    source = tmp_path / "adapter"
    source.mkdir()
    save_file({"a": torch.tensor([1.0, 7e4])}, source / WEIGHTS)
    with pytest.raises(UserError, match=r"a holds .* fp16 cannot hold.*export\.dtype=bf16"):
        cast(source, tmp_path / "cast", torch.float16)
    cast(source, tmp_path / "cast", torch.bfloat16)
    with pytest.raises(UserError, match="fp16 cannot hold"):
        list(checked("b", [torch.tensor([7e4])], torch.float16, copies=True))
    kept = [torch.tensor([1.0, -float("inf")]), torch.tensor([2])]
    assert list(checked("c", kept, torch.float16, copies=True)) == kept  # a mask of the base
