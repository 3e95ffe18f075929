"""The base that all engines load: a Llama with random weights in bf16, made where it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from engines_job import Shape
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

_NOISE: Final = 2**22  # values that are drawn; tensors are cuts of them
_SPREAD: Final = 0.02  # as Llama is initialised


def make_base(folder: Path, shape: Shape, seed: int) -> None:
    """Write `config.json` and one file of weights; a folder that has them is left as it is."""
    if (folder / "model.safetensors").exists():
        return
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.wide,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=2048,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tied = "lm_head.weight" if shape.tied else ""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name != tied}
    noise = (torch.randn(_NOISE, generator=torch.Generator().manual_seed(seed)) * _SPREAD).to(torch.bfloat16)
    weights = {name: _cut(noise, at, size) for at, (name, size) in enumerate(shapes.items())}
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").rename(folder / "model.safetensors")


def _cut(noise: torch.Tensor, at: int, shape: torch.Size) -> torch.Tensor:
    """Return the noise, turned on for each tensor: quicker than to draw a billion numbers."""
    many = shape.numel()
    found = noise.roll(7919 * at).repeat(-(-many // noise.numel()))[:many].reshape(shape).clone()
    return found + 1 if len(shape) == 1 else found  # norms
