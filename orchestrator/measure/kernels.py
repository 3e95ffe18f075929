"""What single kernels reach on one device: products, copies, unpacking, transfers. The same code for CPU and CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from orchestrator.measure.serve import Entry, Request
from orchestrator.measure.timing import MIN_REPEATS, Timing, Watch, timed, watch_of

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_MOST_SECONDS: Final = 2.0  # for one product, all repeats together
_FREE_SHARE: Final = 0.3
_MIB: Final = 2**20
_MLP: Final = 2.75  # width of an MLP, times the model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured on a kind of device.

    Attributes:
        tokens: rows of the products.
        widths: of a model's residual stream; of their MLP `_MLP` times as much.
        copy_bytes: of one copy; beyond what caches hold.
    """

    tokens: int
    widths: tuple[int, ...]
    copy_bytes: int


_CPU: Final = Sizes(tokens=128, widths=(256, 1024, 2048), copy_bytes=128 * _MIB)
_CUDA: Final = Sizes(tokens=4096, widths=(1024, 4096, 8192), copy_bytes=1024 * _MIB)


def sizes_of(request: Request) -> Sizes:
    """What to measure on the device of a request."""
    return _CUDA if request.device == "cuda" else _CPU


def watch_for(request: Request) -> Watch:
    """How the rank of a request is timed."""
    if request.device == "cuda":
        return watch_of(is_cpu=False, threads=request.threads, wait=torch.cuda.synchronize)
    return watch_of(is_cpu=True, threads=request.threads)


def gemm(request: Request) -> list[Entry]:
    """FLOP/s of a frozen linear module, forward and input gradient, by precision and width."""
    return [entry for name, dtype in DTYPES.items() for entry in _gemm(request, name, dtype)]


def _gemm(request: Request, name: str, dtype: torch.dtype) -> Iterator[Entry]:
    sizes, watch, rate = sizes_of(request), watch_for(request), 0.0
    for width in sizes.widths:
        rows, inner = sizes.tokens, int(_MLP * width)
        flops = 2 * 2 * rows * width * inner
        needs = dtype.itemsize * (inner * width + rows * (2 * width + 2 * inner))
        if needs > _FREE_SHARE * _free_bytes(request) or (rate and flops / rate * MIN_REPEATS > _MOST_SECONDS):
            return  # larger ones would be slower still
        make = {"dtype": dtype, "device": request.device}
        weight, data = torch.randn(inner, width, **make), torch.randn(rows, width, **make)  # type: ignore[call-overload]
        timing = timed(_both_ways(weight, data, torch.randn(rows, inner, **make)), watch)  # type: ignore[call-overload]
        rate = flops / timing.seconds
        yield Entry(
            name=f"{name}.{width}",
            value=rate,
            unit="FLOP/s",
            repeats=timing.repeats,
            spread=timing.spread,
            how=f"{rows} tokens through a linear module {width} x {inner} and back, {name}",
        )


def _both_ways(weight: torch.Tensor, data: torch.Tensor, gradient: torch.Tensor) -> Callable[[], None]:
    """A linear module's product, and that of its input's gradient."""
    out, back = torch.empty_like(gradient), torch.empty_like(data)

    def call() -> None:
        torch.mm(data, weight.t(), out=out)
        torch.mm(gradient, weight, out=back)

    return call


def _free_bytes(request: Request) -> float:
    if request.device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    import psutil

    return float(psutil.virtual_memory().available) / request.ranks


def copies(request: Request) -> list[Entry]:
    """Bytes per second that a large copy within the device's memory reads and writes."""
    size = min(sizes_of(request).copy_bytes, int(_FREE_SHARE * _free_bytes(request) / 2))
    source = torch.ones(size, dtype=torch.uint8, device=request.device)
    target = torch.zeros_like(source)
    timing = timed(lambda: target.copy_(source), watch_for(request))
    how = f"a copy of {size // _MIB} MiB, read and written"
    return [_rate("copy", 2 * size, timing, how)]


def transfers(request: Request) -> list[Entry]:
    """Bytes per second of pinned copies to the device, and from it."""
    size = min(256 * _MIB, int(_FREE_SHARE * _free_bytes(request)))
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    device = torch.zeros(size, dtype=torch.uint8, device=request.device)
    watch, how = watch_for(request), f"{size // _MIB} MiB of pinned host memory"
    there = timed(lambda: device.copy_(host, non_blocking=True), watch)
    back = timed(lambda: host.copy_(device, non_blocking=True), watch)
    return [_rate("host_to_device", size, there, how), _rate("device_to_host", size, back, how)]


def _rate(name: str, moved: int, timing: Timing, how: str) -> Entry:
    return Entry(
        name=name,
        value=moved / timing.seconds,
        unit="bytes/s",
        repeats=timing.repeats,
        spread=timing.spread,
        how=how,
    )


def dequantise(request: Request) -> list[Entry]:
    """Weights per second that bitsandbytes unpacks from NF4 with scales that are quantised again, by target type.

    By width too: large results are given back to the system after each use on a CPU, and mapped anew.
    """
    return [
        _dequantise(request, name, dtype, width) for name, dtype in DTYPES.items() for width in sizes_of(request).widths
    ]


def _dequantise(request: Request, name: str, dtype: torch.dtype, width: int) -> Entry:
    from bitsandbytes import functional

    rows, columns = int(_MLP * width), width
    weight = torch.randn(rows, columns, dtype=dtype, device=request.device)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    timing = timed(lambda: functional.dequantize_4bit(packed, state), watch_for(request))
    return Entry(
        name=f"nf4.{name}.{width}",
        value=rows * columns / timing.seconds,
        unit="weights/s",
        repeats=timing.repeats,
        spread=timing.spread,
        how=f"a weight of {rows} x {columns} from nf4 with double quantisation to {name}",
    )
