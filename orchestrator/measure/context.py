"""Bytes of a CUDA process that torch's allocator does not count: context, kernels of the libraries, workspaces."""

from __future__ import annotations

import os

import torch

from orchestrator.measure.serve import Entry, Request


def used_bytes() -> int:
    """Bytes in use on the device that CUDA_VISIBLE_DEVICES names, by the driver, without starting CUDA."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()


def context(request: Request, before: int) -> list[Entry]:
    """What a process takes once it has multiplied, attended and unpacked, less what the allocator holds."""
    from bitsandbytes import functional

    make = {"dtype": torch.bfloat16, "device": request.device}
    weight = torch.randn(1024, 1024, **make, requires_grad=True)  # type: ignore[call-overload]
    packed, state = functional.quantize_4bit(weight.detach(), quant_type="nf4", compress_statistics=True)
    heads = (weight @ functional.dequantize_4bit(packed, state)).view(1, 16, 1024, 64)
    attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    torch.autograd.backward(attended.float().sum())
    torch.cuda.synchronize()
    outside = used_bytes() - before - torch.cuda.memory_reserved()
    how = "used by the driver's count after a product, attention and unpacking, less what the allocator holds"
    return [Entry(name="context", value=float(outside), unit="bytes", repeats=1, spread=0.0, how=how)]
