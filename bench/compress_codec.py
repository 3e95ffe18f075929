"""What sparse packets cost one core: select, encode, decode, in CPU seconds and as multiples of one pass over memory.

    python bench/compress_codec.py [--elements 41943040] [--runs 7] [--ranks 4] [--markdown]

41,943,040 elements are the adapters of an 8B model at rank 16. One pass is a copy of the fp32 buffer: it reads and
writes each element once. CPU seconds of the process are counted, since other work on the machine does not change them
much; wall seconds stand beside them.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch

from orchestrator.compress.select import by_keys, largest
from orchestrator.compress.topk import all_finite, decode, encode, encode_residual
from orchestrator.compress.values import to_bytes
from orchestrator.planner.compression import CHUNK, Codec, Values

_TILE: Final = 256  # chunks, as the exchange takes them
_CODECS: Final = (
    Codec(kept=40, values=Values.int8),
    Codec(kept=40, values=Values.bf16),
    Codec(kept=64, values=Values.int8),
    Codec(kept=64, values=Values.int4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation: medians over the runs."""

    what: str
    cpu_seconds: float
    wall_seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--elements", type=int, default=41_943_040)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=4, help="packets that are summed")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(args.elements // CHUNK, CHUNK, generator=torch.Generator().manual_seed(1))
    load = os.getloadavg()[0]
    rows = list(_measured(x, args.runs, args.ranks))
    print(
        f"{x.numel():,} elements, {args.runs} runs, one thread, load {load:.1f} to {os.getloadavg()[0]:.1f}, ", end=""
    )
    print(f"{platform.machine()}, torch {torch.__version__}")
    _print(rows, markdown=args.markdown)


def _measured(x: torch.Tensor, runs: int, ranks: int) -> Iterator[Row]:
    spare = x.clone()

    def fresh() -> None:
        spare.copy_(x)

    def timed(what: str, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> Row:
        return _timed(what, work, before, runs)

    yield timed("copy: one pass", fresh)
    yield timed("all_finite", lambda: all_finite(x))
    yield timed("set to zero", spare.zero_)
    for kept in sorted({codec.kept for codec in _CODECS}):
        yield timed(f"select {kept}: torch.topk of magnitudes (before)", lambda kept=kept: x.abs().topk(kept, dim=1))
        yield timed(f"select {kept}: by keys (what CUDA runs)", lambda kept=kept: by_keys(x, kept))
        yield timed(f"select {kept}: two stages", lambda kept=kept: largest(x, kept))
    for codec in _CODECS:
        name = f"{codec.kept} {codec.values.value}"
        yield timed(f"encode_residual {name} by torch.topk (before)", lambda codec=codec: _before(spare, codec), fresh)
        yield timed(f"encode {name}, select included", lambda codec=codec: encode(x, codec))
        yield timed(f"encode_residual {name}", lambda codec=codec: encode_residual(spare, codec), fresh)
        tiled = [rows for rows in spare.split(_TILE)]  # noqa: C416 - a list of views
        yield timed(
            f"encode_residual {name}, {_TILE} chunks at a time",
            lambda codec=codec, tiled=tiled: [encode_residual(rows, codec) for rows in tiled],
            fresh,
        )
        packets = encode(x, codec)
        yield timed(f"decode {name}", lambda codec=codec, packets=packets: decode(packets, codec, out=spare))
        yield timed(
            f"decode {name}: sum of {ranks}, whole buffer at a time (before)",
            lambda codec=codec, packets=packets: _sum(packets, codec, spare, ranks, len(spare)),
        )
        yield timed(
            f"decode {name}: sum of {ranks}, {_TILE} chunks at a time",
            lambda codec=codec, packets=packets: _sum(packets, codec, spare, ranks, _TILE),
        )


def _before(x: torch.Tensor, codec: Codec) -> torch.Tensor:
    """The plain way: torch's own top-k, places packed as 64-bit numbers; equal magnitudes in any order."""
    places = x.abs().topk(codec.kept, dim=1, sorted=False).indices.sort(dim=1).values
    values = x.gather(1, places)
    coded, sent = to_bytes(values, codec)
    x.scatter_(1, places, values - sent)
    word = places[:, ::2] | places[:, 1::2] << 12
    packed = torch.stack((word & 255, word >> 8 & 255, word >> 16), dim=2).to(torch.uint8)
    return torch.cat((packed.flatten(1), coded), dim=1)


def _sum(packets: torch.Tensor, codec: Codec, out: torch.Tensor, ranks: int, tile: int) -> None:
    for begin in range(0, len(out), tile):
        rows = slice(begin, begin + tile)
        for rank in range(ranks):
            decode(packets[rows], codec, out=out[rows], add=rank > 0)


def _timed(what: str, work: Callable[[], object], before: Callable[[], object], runs: int) -> Row:
    cpu, wall = [], []
    for _ in range(runs + 1):  # the first touches memory and is dropped
        before()
        cpu_begin, wall_begin = time.process_time(), time.perf_counter()
        work()
        cpu.append(time.process_time() - cpu_begin)
        wall.append(time.perf_counter() - wall_begin)
    return Row(what=what, cpu_seconds=median(cpu[1:]), wall_seconds=median(wall[1:]))


def _print(rows: list[Row], *, markdown: bool) -> None:
    one_pass = rows[0].cpu_seconds
    if markdown:
        print("\n| operation | CPU ms | wall ms | passes |\n|---|---|---|---|")
    for row in rows:
        cells = (f"{row.cpu_seconds * 1e3:.1f}", f"{row.wall_seconds * 1e3:.1f}", f"{row.cpu_seconds / one_pass:.1f}")
        if markdown:
            print(f"| {row.what} | {' | '.join(cells)} |")
        else:
            print(f"  {row.what:62} {cells[0]:>8} CPU ms {cells[1]:>8} wall ms {cells[2]:>6} passes")


if __name__ == "__main__":
    main()
