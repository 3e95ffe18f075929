"""A base larger than the memory it may take, streamed from pinned host memory to one GPU.

    python bench/gpu_streamed.py [--params 3e9] [--seq-len 2048] [--rows 1] [--steps 8] [--out FILE] [--cpu]

1. A base with random weights is made (NF4, double-quantised, bf16), and the link is timed: pinned copies, nothing else.
2. It is trained with the whole base on the device: the figures to compare with.
3. The process is told to take no more device memory than the plan needs (`set_per_process_memory_fraction`): a quarter
   of the layers' bytes, and what is no base. The resident run would not fit. The base is trained in it, from the host.

What is told: overlap (1 - time waited for copies / time they took), rate of the copies against the link's, peak device
memory against the plan, tokens per second against resident, whether the losses are the same. It takes less than four
minutes. JSON goes to `--out`, else to `$OUT/gpu_streamed.json` or `bench/results/gpu_streamed.json`. Without CUDA, or
with `--cpu`, a tiny base is trained on the CPU to try the script; that measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from engines_base import make_base
from engines_host import CUT, from_host, resident, together
from engines_job import Job, Shape, shape_of
from engines_page import one_device_lines
from transformers import logging

from orchestrator.weights.slots import Pace

_LINK_BYTES: Final = 256 * 2**20
_TRIES: Final = 5
# Beyond the planned bytes: the allocator's rounding and fragments, and workspaces of the products.
_SLACK: Final = 1.10
_SLACK_BYTES: Final = 256 * 2**20


def link_bytes_per_second(chunk_bytes: int) -> float:
    """Rate of the link, from pinned host memory in copies as large as the store's; median of five."""
    host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_LINK_BYTES, dtype=torch.uint8, device="cuda")
    rates = []
    for _ in range(_TRIES + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for at in range(0, _LINK_BYTES, chunk_bytes):
            device[at : at + chunk_bytes].copy_(host[at : at + chunk_bytes], non_blocking=True)
        torch.cuda.synchronize()
        rates.append(_LINK_BYTES / (time.perf_counter() - began))
    return median(rates[1:])  # the first one wakes the link up


def planned_bytes(whole: dict[str, Any], found: dict[str, Any]) -> int:
    """Peak that the plan foresees: what is no base as in the resident run, and of the base what the cut leaves here."""
    rest: int = whole["peak_bytes"] - whole["base_bytes"]
    return rest + int(found["budget_bytes"]) + int(found["head_bytes"])


def limit_bytes(whole: dict[str, Any], layers_bytes: int) -> int:
    """What the process may take: the plan and some slack."""
    return int((whole["peak_bytes"] - layers_bytes * (CUT - 1) // CUT) * _SLACK) + _SLACK_BYTES


def on_gpu(job: Job) -> dict[str, Any]:
    """Measure the link, the resident run and, within the limit, the streamed one."""
    chunk = Pace().chunk_bytes
    link = link_bytes_per_second(chunk)
    whole = resident(job)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = limit_bytes(whole, whole["layers_bytes"])
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    found = from_host(job)
    planned = planned_bytes(whole, found)
    rate = found["copied_bytes"] / found["copy_seconds"]
    return together(whole, found) | {
        "device_name": torch.cuda.get_device_name(0),
        "limit_bytes": limit,
        "resident_fits_limit": whole["peak_bytes"] <= limit,
        "planned_bytes": planned,
        "peak_over_planned": found["peak_bytes"] / planned,
        "link_bytes_per_second": link,
        "copy_bytes_per_second": rate,
        "copy_over_link": rate / link,
    }


def report(body: dict[str, Any], tokens: int) -> list[str]:
    """Lines for the console; adds tokens per second to the values."""
    body["tokens_per_second"] = tokens / body["step_seconds"]
    body["resident_tokens_per_second"] = tokens / body["resident_step_seconds"]
    lines = one_device_lines(body)
    rates = f"{body['tokens_per_second']:,.0f} tokens/s, resident {body['resident_tokens_per_second']:,.0f}"
    lines.append(f"- {rates} ({body['tokens_per_second'] / body['resident_tokens_per_second']:.2f} x).")
    if "limit_bytes" in body:
        gib = {
            name: body[name] / 2**30 for name in ("peak_bytes", "planned_bytes", "resident_peak_bytes", "limit_bytes")
        }
        link, copies = body["link_bytes_per_second"] / 1e9, body["copy_bytes_per_second"] / 1e9
        lines.append(f"- Link {link:.1f} GB/s, copies {copies:.1f} GB/s ({body['device_name']}).")
        peak = f"- Peak {gib['peak_bytes']:.2f} GiB, planned {gib['planned_bytes']:.2f}"
        lines.append(f"{peak}; limit {gib['limit_bytes']:.2f}, resident {gib['resident_peak_bytes']:.2f}.")
    return lines


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="3e9")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8, help="two of them are warm-up")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    arguments.is_gpu = torch.cuda.is_available() and not arguments.cpu
    if not arguments.is_gpu:
        print("No GPU is used: a trial of the script with a tiny base on the CPU, which measures nothing.", flush=True)
        arguments.params, arguments.seq_len = "small", 32
    try:
        shape_of(arguments.params)
    except ValueError as error:
        parser.error(f"--params: {error}")
    return arguments


def measure(arguments: argparse.Namespace, shape: Shape, folder: Path) -> dict[str, Any]:
    """Make the base and train it both ways."""
    make_base(folder, shape, seed=1)
    job = Job(
        engine="streamed",
        base=str(folder),
        out="",
        cache="",
        steps=arguments.steps,
        rows=arguments.rows,
        seq_len=arguments.seq_len,
        window=3,
        shares=(),
        seed=1,
        device="cuda" if arguments.is_gpu else "cpu",
        dtype="bfloat16" if arguments.is_gpu else "float32",
    )
    body = on_gpu(job) if arguments.is_gpu else together(resident(job), from_host(job))
    return body | {"base": asdict(shape), "job": {**asdict(job), "base": ""}, "measures": arguments.is_gpu}


def main() -> int:
    """Measure and write; returns 1 if losses differ or memory was above the plan."""
    arguments = parse()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Losses shall be the same bit by bit: attention's backward pass would add in any order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)  # noqa: FBT003 - torch's own signature
    torch.utils.deterministic.fill_uninitialized_memory = False
    began, shape = time.perf_counter(), shape_of(arguments.params)
    with tempfile.TemporaryDirectory(prefix="streamed-") as folder:
        body = measure(arguments, shape, Path(folder) / "base")
    tokens = arguments.rows * arguments.seq_len
    lines = [f"{shape.words()}; {arguments.rows} x {arguments.seq_len} tokens a step", *report(body, tokens)]
    body |= {"schema": 1, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    body |= {"seconds": time.perf_counter() - began}
    path = arguments.out or folder_of() / ("gpu_streamed.json" if arguments.is_gpu else "gpu_streamed_trial.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(*lines, f"{body['seconds']:.0f} s in all; written to {path}", sep="\n")
    is_good = body["equal_losses"] and body["live_bytes"] <= body["budget_bytes"]
    return 0 if is_good and not body.get("resident_fits_limit", False) else 1


def folder_of() -> Path:
    """Where results go."""
    return Path(os.environ.get("OUT") or Path(__file__).parent / "results")


if __name__ == "__main__":
    sys.exit(main())
