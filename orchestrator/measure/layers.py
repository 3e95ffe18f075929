"""What a decoder layer takes beside its products: launches by the host, and passes over activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from orchestrator.estimate.activations import saved_bytes_per_token
from orchestrator.estimate.calibration import ELEMENTWISE_PASSES
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.time_flops import flops_per_token
from orchestrator.measure.kernels import watch_for
from orchestrator.measure.serve import Entry, Request
from orchestrator.measure.small import RANK, llama, setting_of
from orchestrator.measure.timing import Timing, summed_up, timed, timed_rounds

_LAYERS: Final = (1, 4)
_MORE: Final = _LAYERS[1] - _LAYERS[0]
_PASSES: Final = 2  # forward and backward, nothing recomputed
_NARROW: Final = 64  # products of this width take no time beside their launches
_WIDE: Final = 512
_ROWS, _TOKENS = 8, 64


def overhead(request: Request) -> list[Entry]:
    """Seconds of the host per kernel, and per decoder layer and pass, where neither has anything to compute."""
    one = torch.ones(16, device=request.device)
    out = torch.empty_like(one)
    op = timed(lambda: torch.add(one, one, out=out), watch_for(request))
    rounds = timed_rounds(_models(request, hidden=_NARROW, rows=1, tokens=8), watch_for(request))
    layer_pass = summed_up([(long - short) / _MORE / _PASSES for short, long in rounds])
    how = f"a Llama layer of width {_NARROW} with NF4 weights and an adapter at each of 7 modules, 8 tokens"
    return [_entry("op", op, "a sum of 16 numbers"), _entry("layer_pass", layer_pass, how)]


def _entry(name: str, timing: Timing, how: str) -> Entry:
    return Entry(name=name, value=timing.seconds, unit="s", repeats=timing.repeats, spread=timing.spread, how=how)


def layer(request: Request) -> list[Entry]:
    """Bytes per second of a CPU rank in norms, rotations, activations and casts, as the estimate counts them.

    A layer's time less that of its products, its unpacking and its launches, each on shapes of the same model.
    """
    one, many = (_setting(layers) for layers in _LAYERS)
    tokens = _ROWS * _TOKENS
    flops = tokens * (flops_per_token(many) - flops_per_token(one)) / _MORE
    multiply, multiplied = _products(tokens)
    calls = (
        *_models(request, hidden=_WIDE, rows=_ROWS, tokens=_TOKENS),
        *_models(request, hidden=_NARROW, rows=1, tokens=8),
        multiply,
        _unpack(),
    )
    rest = summed_up(
        [
            (long - short - (narrow_long - narrow_short)) / _MORE - flops / multiplied * products - _PASSES * unpacked
            for short, long, narrow_short, narrow_long, products, unpacked in timed_rounds(calls, watch_for(request))
        ]
    )
    moved = tokens * saved_bytes_per_token(one) * ELEMENTWISE_PASSES.value
    how = f"a Llama layer of width {_WIDE}, {_ROWS} x {_TOKENS} tokens: its time without products, unpacking, launches"
    return [
        Entry(
            name="elementwise",
            value=moved / rest.seconds,
            unit="bytes/s",
            repeats=rest.repeats,
            spread=rest.spread,
            how=how,
        )
    ]


def _setting(layers: int) -> Setting:
    return setting_of(llama(hidden=_WIDE, layers=layers), rows=_ROWS, tokens=_TOKENS, is_gpu=False)


def _products(tokens: int) -> tuple[Callable[[], object], float]:
    """All modules of a layer, forward and input gradient, and their operations."""
    operands = [
        (
            torch.randn(x.out_features, x.in_features),
            torch.randn(tokens, x.in_features),
            torch.randn(tokens, x.out_features),
        )
        for x, _ in _setting(1).model.linear_counts
    ]
    flops = sum(2 * 2 * tokens * weight.numel() for weight, _, _ in operands)
    return lambda: [(data @ weight.t(), gradient @ weight) for weight, data, gradient in operands], flops


def _unpack() -> Callable[[], object]:
    """All weights of a layer, once."""
    from bitsandbytes import functional

    packed = [
        functional.quantize_4bit(torch.randn(x.out_features, x.in_features), quant_type="nf4", compress_statistics=True)
        for x, _ in _setting(1).model.linear_counts
    ]
    return lambda: [functional.dequantize_4bit(*item) for item in packed]


def _models(request: Request, *, hidden: int, rows: int, tokens: int) -> tuple[Callable[[], object], ...]:
    """A step of a model of few layers, and of one with more: what these take more is free of what both do once."""
    return tuple(_step(request, llama(hidden=hidden, layers=layers), rows, tokens) for layers in _LAYERS)


def _step(request: Request, config: dict[str, Any], rows: int, tokens: int) -> Callable[[], None]:
    """Forward and backward pass through the decoder, without the head."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    base = LlamaModel(LlamaConfig(**{key: value for key, value in config.items() if key != "model_type"}))
    base.requires_grad_(requires_grad=False)
    names = _quantise(base, request.device)
    adapters = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=sorted(names))
    model: Any = get_peft_model(base.to(request.device), adapters).train()
    ids = torch.zeros((rows, tokens), dtype=torch.int64, device=request.device)

    def step() -> None:
        # On a GPU as in training; CPU ranks compute in fp32.
        with torch.autocast(request.device, dtype=torch.bfloat16, enabled=request.device == "cuda"):
            hidden = model(input_ids=ids, use_cache=False).last_hidden_state
        hidden.sum().backward()

    return step


def _quantise(base: nn.Module, device: str) -> set[str]:
    """Put bitsandbytes' layers in the place of the decoder's linear ones; returns their names."""
    import bitsandbytes as bnb

    found = [
        (parent, name, child)
        for parent in base.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
    for parent, name, child in found:
        packed = bnb.nn.Linear4bit(
            child.in_features, child.out_features, bias=False, compute_dtype=child.weight.dtype, quant_type="nf4"
        )
        packed.weight = bnb.nn.Params4bit(
            child.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True, module=packed
        )
        packed.support_avx512bf16_for_cpu = False  # as in training: it would repack the weights
        setattr(parent, name, packed.to(device))
    return {name for _, name, _ in found}
