"""AdaLoRA's adapters are stored as the plain LoRA that they equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AdaLoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from orchestrator.export.serving import largest_rank
from orchestrator.train.as_lora import store_as_lora

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}


def base() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_attention_heads=4, num_key_value_heads=2))


def trained(masked: int) -> Any:
    """AdaLoRA with numbers in it, and some singular values masked in each module."""
    config = AdaLoraConfig(
        init_r=6,
        target_r=3,
        total_step=10,
        lora_alpha=20,
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "down_proj"],
        modules_to_save=["norm"],
    )
    model = get_peft_model(base(), config)
    torch.manual_seed(2)
    with torch.no_grad():
        for at, (name, parameter) in enumerate(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            if "lora_E" in name and masked:
                parameter[at % 3 : at % 3 + masked] = 0.0
        model.get_parameter("base_model.model.model.norm.modules_to_save.default.weight").mul_(1.5)
    return model.eval()


@pytest.mark.parametrize("masked", [0, 2, 6])
def test_plain_lora_gives_the_same_logits(tmp_path: Path, masked: int) -> None:
    model, ids = trained(masked), torch.arange(20)[None]
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
    model.save_pretrained(str(tmp_path))
    store_as_lora(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert config["r"] == largest_rank(config) == max(1, 6 - masked if masked < 6 else 6 - 4)
    again = PeftModel.from_pretrained(base(), str(tmp_path)).eval()
    with torch.no_grad():
        found = again(input_ids=ids).logits
        plain = base()(input_ids=ids).logits
    assert (wanted - plain).abs().max() > 0.01
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert any("norm" in name for name in load_file(tmp_path / "adapter_model.safetensors"))


def test_rows_that_adalora_names_are_counted() -> None:
    assert largest_rank({"r": 2, "rank_pattern": {"a.lora_E": [True, False, True, True]}}) == 3
