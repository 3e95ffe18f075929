"""Compressed gradients against dense ones and PowerSGD, on hosts made from network namespaces. Needs root.

    python bench/compress_exchange.py [--hosts 2] [--rate 200mbit] [--runs 3] [--layers 32] [--density 0.01]
                                      [--ways "dense bf16,topk split int8 bf16"] [--nice -10]
                                      [--results bench/results] [--profile WAY]

Gradients are those of an adapter of rank 16 on all linears of Llama-3-8B: 41.9M elements with 32 layers. Each way is a
hook of DistributedDataParallel; ways take turns. `none` exchanges nothing: what DDP itself needs. `refresh` is a step
in which all elements travel; below the table stand means of both kinds of steps over runs of some lengths.
Egress is counted at the host's interface, with the headers of Ethernet, IP and TCP and what gloo adds; `of the formula`
is it over the payload that the planner reckons with. At most 1514 / 1448 = 1.046 is headers of data; answers add some.
Writes `compress_RATE_HOSTSxSLOTS.json` to the results' folder, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from shaped_hosts import INTERFACE, ShapedHosts, shaped_hosts

from orchestrator.compress.clock import PHASES
from orchestrator.config import CompressConfig
from orchestrator.planner.compress_refresh import count_refreshes

ROOT: Final = Path(__file__).resolve().parents[1]
RATES: Final = {"200mbit": 200_000_000, "1gbit": 1_000_000_000}
SLOTS: Final = 2
WAYS: Final = (
    "none bf16",
    "dense fp32",
    "dense bf16",
    "topk hierarchical int8 bf16",
    "topk split int8 bf16",
    "topk gather int8 bf16",
    "refresh hierarchical int8 bf16",
    "refresh split int8 bf16",
    "powersgd 1 bf16",
    "powersgd 2 bf16",
)
_LIMIT_SECONDS: Final = 900
_STEPS: Final = (100, 1000, 10_000)  # of runs, for the mean


def main() -> None:
    """Measure, print and write."""
    asked = _arguments()
    settings = {
        "hosts": asked.hosts,
        "slots": SLOTS,
        "bits_per_second": RATES[asked.rate],
        "runs": asked.runs,
        "layers": asked.layers,
        "density": asked.density,
        "ways": asked.ways.split(","),
        "nice": asked.nice,
        "profile": asked.profile,
    }
    answer = measure(settings)
    print(table(answer))
    if asked.results:
        asked.results.mkdir(parents=True, exist_ok=True)
        name = f"compress_{asked.rate}_{asked.hosts}x{SLOTS}.json"
        (asked.results / name).write_text(json.dumps(answer, indent=1) + "\n")


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks on hosts of their own, and return what they measured with what it was measured on."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, shaped_hosts(settings["hosts"], settings["bits_per_second"]) as made:
        paths = {"meet": f"{folder}/meet", "answer": f"{folder}/answer.json"}
        given = Path(folder) / "settings.json"
        given.write_text(json.dumps({**settings, **paths}))
        _run_ranks(made, settings, given)
        answer: dict[str, Any] = json.loads(Path(paths["answer"]).read_text())
    return {
        "when": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "torch": torch.__version__},
        "load_before_and_after": [load, os.getloadavg()[0]],
        **{key: settings[key] for key in ("hosts", "slots", "bits_per_second", "runs", "density", "nice")},
        **answer,
    }


def _run_ranks(made: ShapedHosts, settings: dict[str, Any], given: Path) -> None:
    worker = str(Path(__file__).with_name("compress_worker.py"))
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "bench"))),
        "PYTHONWARNINGS": "ignore",
    }
    nice = ("nice", "-n", str(settings["nice"])) if settings["nice"] else ()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(settings["hosts"] * settings["slots"]):
            command = made.command(rank // settings["slots"], *nice, sys.executable, worker, str(given), str(rank))
            ranks.append(subprocess.Popen(command, env=env))  # noqa: S603 - our own words
        deadline = time.monotonic() + _LIMIT_SECONDS
        codes = [rank.wait(timeout=max(1.0, deadline - time.monotonic())) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


def table(answer: dict[str, Any]) -> str:
    """The measurements as Markdown."""
    by_name = {way["name"]: median(way["seconds"]) for way in answer["ways"]}
    load = " and ".join(f"{value:.1f}" for value in answer["load_before_and_after"])
    head = (
        f"{answer['hosts']} hosts x {answer['slots']} ranks, {answer['bits_per_second'] / 1e6:g} Mb/s a host, "
        f"{answer['elements'] / 1e6:.1f}M elements, density {answer['density']:.1%}, medians of {answer['runs']} runs, "
        f"{answer['machine']['cores']} cores, load before and after {load}."
    )
    words = ("way", "ms", "runs", "CPU s a rank", "egress MB a host", "of the formula")
    words += (f"{', '.join(PHASES)} ms", "x bf16", "x fp32")
    lines = [head, "", f"| {' | '.join(words)} |", "|---" * len(words) + "|"]
    for way in answer["ways"]:
        own = median(way["seconds"])
        runs = ", ".join(f"{1e3 * each:.0f}" for each in sorted(way["seconds"]))
        phases = ", ".join(f"{1e3 * way['phases'][name]:.0f}" for name in PHASES) if way["phases"] else ""
        formula = way["formula_bytes"]
        over = f"{way['egress_bytes'] / formula:.3f}" if formula else ""
        gains = [f"{by_name[dense] / own:.1f}" if dense in by_name else "" for dense in ("dense bf16", "dense fp32")]
        lines.append(
            f"| {way['name']} | {1e3 * own:.0f} | {runs} | {median(way['cpu_seconds']):.2f} "
            f"| {way['egress_bytes'] / 1e6:.2f} | {over} | {phases} | {' | '.join(gains)} |"
        )
    return "\n".join([*lines, "", *_means(by_name)])


def _means(by_name: dict[str, float]) -> Iterator[str]:
    """What a compressed step takes on the mean of a run, refreshes among them, against dense bf16."""
    told, dense = CompressConfig(), by_name.get("dense bf16")
    for name, topk in by_name.items():
        refresh = by_name.get(name.replace("topk", "refresh", 1))
        if dense is None or refresh is None or not name.startswith("topk"):
            continue
        for steps in _STEPS:
            warm = min(told.max_warmup_steps, ceil(told.warmup_fraction * steps))
            count, compressed = count_refreshes(told.refresh, warm, steps), steps - warm
            mean = (count * refresh + (compressed - count) * topk) / compressed
            yield (
                f"{name}, {steps:,} steps, {count} of {compressed:,} compressed ones refreshes: "
                f"{1e3 * mean:.0f} ms on the mean, {dense / mean:.1f} x dense bf16."
            )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", choices=RATES, default="200mbit")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas; the last word is the gradients' type")
    parser.add_argument("--nice", type=int, default=0, help="of the ranks; below 0 where the machine has other work")
    parser.add_argument("--profile", default="", help="a way whose first run rank 0 profiles")
    parser.add_argument("--results", type=Path, help="a folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
