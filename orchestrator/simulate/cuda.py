"""What CUDA does differently from a CPU, put in place of it: autocast's list, attention kernels, kernel buffers.

Fake tensors here live on the CPU, since torch's autograd engine refuses CUDA tensors without a driver. Everything
that would behave differently on a GPU is named in this file, with torch's own source as reference.
"""

# ruff: noqa: SLF001 - the kernels behind a public function have private names

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
import torch.utils.checkpoint
import trl.kernels.chunked_logprob as fused
import trl.trainer.utils as fused_caller
from torch.utils._pytree import tree_map
from transformers import masking_utils

_FP32: Final = 4
_FLASH_HEAD: Final = 256  # widest head of flash attention
_FLASH_ROWS: Final = 128  # its backward pass rounds lengths up to this, and heads to _FLASH_COLUMNS
_FLASH_COLUMNS: Final = 32
_BIAS_ALIGNMENT: Final = 16
_HALVES: Final = (torch.bfloat16, torch.float16)
# aten/src/ATen/autocast_mode.h, AT_FORALL_FP32: on CUDA but not on CPUs, where models of text call them.
_IN_FP32: Final = (
    (F, "layer_norm"),
    (F, "softplus"),
    (torch, "pow"),
    (torch.Tensor, "pow"),
    (torch.Tensor, "__pow__"),
    (torch, "rsqrt"),
    (torch.Tensor, "rsqrt"),
    (torch, "exp"),
    (torch.Tensor, "exp"),
)


# The same file, AT_FORALL_FP32_SET_OPT_DTYPE.
_FP32_IF_UNTOLD: Final = ((F, "softmax"), (torch, "softmax"), (torch.Tensor, "softmax"))


def _widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run `function` in fp32 under autocast, as CUDA's does."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - whatever the function returns
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = tree_map(_to_fp32, (args, kwargs))
        return function(*args, **kwargs)

    return run


def _to_fp32(value: Any) -> Any:  # noqa: ANN401 - any argument
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_half else value


def _summed_in_fp32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ask `function` for fp32 under autocast unless the caller names a dtype (`fp32_set_opt_dtype`)."""

    @functools.wraps(function)
    def run(value: torch.Tensor, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - whatever the function returns
        told = kwargs.get("dtype") or any(isinstance(x, torch.dtype) for x in args)
        if torch.is_autocast_enabled("cuda") and not told and value.dtype in _HALVES:
            kwargs["dtype"] = torch.float32
        return function(value, *args, **kwargs)

    return run


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> torch.Tensor:
    """`scaled_dot_product_attention` as CUDA chooses: flash without a mask, memory-efficient with one, else math."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    half = query.dtype in (torch.bfloat16, torch.float16)
    width = query.shape[-1]
    if half and attn_mask is None and width <= _FLASH_HEAD and width == value.shape[-1]:
        padded = [_padded(x, -width % 8) for x in (query, key, value)]
        scale = width**-0.5 if scale is None else scale
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        attended: torch.Tensor = flash(*padded, dropout_p, is_causal, False, scale=scale)[0]  # noqa: FBT003
        return attended[..., :width]
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    bias = _bias(attn_mask, query, key)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    result: torch.Tensor = efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]  # noqa: FBT003
    return result


def _padded(tensor: torch.Tensor, columns: int) -> torch.Tensor:
    return F.pad(tensor, (0, columns)) if columns else tensor


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask becomes an additive one of the query's dtype, aligned and seen by every head."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    columns = mask.shape[-1]
    mask = _padded(mask, -columns % _BIAS_ALIGNMENT)[..., :columns]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: A002, ARG001, FBT001, FBT002 - torch's signature
    """`dropout` with CUDA's mask of one byte; a CPU keeps a mask of the input's type."""
    if not training or p == 0.0:
        return input
    result: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]  # noqa: FBT003
    return result


def _ignore_mask(original: Callable[..., bool]) -> Callable[..., bool]:
    """Rows without padding: libraries look at the mask's values, which fake tensors do not have."""

    def decide(_mask: object, *args: object, **kwargs: object) -> bool:
        return original(None, *args, **kwargs)

    return decide


def _dequantised(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> int:  # noqa: ANN401
    """bitsandbytes/backends/cuda/ops.py, _dequant_linear_fallback: the weight and its scales, twice if nested."""
    rows, weights = args[0], prod(args[2])
    blocks = -(-weights // args[4])
    nested = 2 * _FP32 * blocks if _kwargs.get("absmax_8bit") is not None else 0
    return int(weights * rows.element_size() + nested)


def _flash_backward(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> int:  # noqa: ANN401
    """flash_api.cpp, mha_bwd: fp32 sums of the query's gradient, and keys repeated for grouped queries."""
    query, key = args[1], args[2]
    rows, heads, length, width = query.shape
    length = -(-length // _FLASH_ROWS) * _FLASH_ROWS
    columns = -(-width // _FLASH_COLUMNS) * _FLASH_COLUMNS
    sums = rows * heads * length * (columns + 1) * _FP32
    repeated = 2 * query.numel() * query.element_size() if key.shape[1] != heads else 0
    return int(sums + repeated)


def _efficient_backward(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> int:  # noqa: ANN401
    """kernel_backward.h: fp32 sums of the query's gradient, and one number a row."""
    query = args[1]
    return int(query.numel() * _FP32 + query.numel() // query.shape[-1] * _FP32)


def _selected(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> Any:  # noqa: ANN401 - may decline
    """`hidden[mask]` with every position wanted: the most that it can be."""
    mask = indices[0]
    if len(indices) != 1 or mask is None or mask.dtype != torch.bool:
        return NotImplemented
    return tensor.new_empty((mask.numel(), *tensor.shape[mask.dim() :]))


def _put(tensor: torch.Tensor, *args: Any) -> Any:  # noqa: ANN401 - as the operator
    """A gather's gradient is put into zeros in place, except of tensor subclasses (FunctionsManual.cpp)."""
    return NotImplemented if torch.is_grad_enabled() else _aten.index_put_.default(tensor, *args)


_aten: Final = torch.ops.aten
WORKSPACES: Final[Mapping[Any, Callable[[tuple[Any, ...], dict[str, Any], Any], int]]] = MappingProxyType(
    {
        torch.ops.bitsandbytes.gemm_4bit.default: _dequantised,
        _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
        _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    }
)
SUBSTITUTES: Final[Mapping[Any, Callable[..., Any]]] = MappingProxyType(
    {_aten.index.Tensor: _selected, _aten.index_put.default: _put}
)


class _Kernel:
    """A Triton kernel of the fused head: writes in place and allocates nothing."""

    def __getitem__(self, _grid: object) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None


def _addmm_fp32(_sum: torch.Tensor, _left: torch.Tensor, _right: torch.Tensor) -> None:
    """Add the product of 16-bit matrices to fp32 sums in place, as cuBLAS does."""


@contextmanager
def cuda_rules(*, masked: bool) -> Iterator[None]:
    """Make a CPU build of torch decide as a CUDA build with a GPU would; `masked` rows keep their mask."""
    with ExitStack() as stack:
        for target, name, value in (
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.amp, "is_autocast_available", lambda _device: True),
            (torch.utils.checkpoint, "_infer_device_type", lambda *_args: "cuda"),
            (torch.cuda, "is_bf16_supported", lambda *_args: True),
            (F, "scaled_dot_product_attention", attention),
            (F, "dropout", dropout),
            # It compares positions, which fake tensors do not have: rows are single documents, or masked ones.
            (masking_utils, "find_packed_sequence_indices", lambda *_args, **_kwargs: None),
            (fused, "_use_triton", lambda _device: True),
            (fused_caller, "_use_triton", lambda _device: True),
            (fused, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b))),
            (fused, "_forward_kernel", _Kernel()),
            (fused, "_backward_kernel", _Kernel()),
            (fused, "_addmm_fp32", _addmm_fp32),
        ):
            stack.enter_context(mock.patch.object(target, name, value, create=True))
        if not masked:
            decide = _ignore_mask(masking_utils._ignore_causal_mask_sdpa)
            stack.enter_context(mock.patch.object(masking_utils, "_ignore_causal_mask_sdpa", decide))
        for target, name in _IN_FP32:
            stack.enter_context(mock.patch.object(target, name, _widened(getattr(target, name))))
        for target, name in _FP32_IF_UNTOLD:
            stack.enter_context(mock.patch.object(target, name, _summed_in_fp32(getattr(target, name))))
        yield


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Autocast for both: the CPU's casts the fake tensors, CUDA's is what libraries ask about."""
    if dtype is torch.float32:
        yield
        return
    with torch.autocast("cuda", dtype=dtype), torch.autocast("cpu", dtype=dtype):
        yield
