"""Predicted against measured times of collectives, on hosts made from network namespaces. Needs root.

    python bench/route_predictions.py [--hosts 2,4] [--rates 1gbit,200mbit] [--runs 3] [--sizes 4194304,67108864]
                                      [--nice -10] [--results bench/results]
                                      [--table bench/results/route_predictions.md]

On each network the hosts are measured first, as a user would (torchrun on every host starts
`orchestrator.measure.group`), from a description that tells nothing of the shaped rate. Then the collectives are
predicted with that calibration and timed. Writes `route_predictions_RATE_HOSTSxSLOTS.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final

import torch
from shaped_hosts import INTERFACE, ShapedHosts, machine, shaped_hosts

from topology.codec import to_json

ROOT: Final = Path(__file__).resolve().parents[1]
RATES: Final = {"200mbit": 200_000_000, "1gbit": 1_000_000_000}
SLOTS: Final = 2
SIZES: Final = (4 << 20, 64 << 20)
_TOLD_BITS: Final = 10_000_000_000  # of a port, as its driver tells it: the shaper is not known
_LIMIT_SECONDS: Final = 900
_PORT: Final = "29533"
_HEAD: Final = (
    "# Predicted against measured collectives",
    "",
    "Written by `python bench/route_predictions.py --table bench/results/route_predictions.md` (root). Hosts are",
    "network namespaces of one machine, links shaped by tbf, two gloo ranks each. Every network was calibrated first,",
    "by `python -m orchestrator.measure.group` under torchrun, from a description with ports of 10 Gb/s. Medians; M as",
    "in `topology.collectives`. `by tables` is what would be predicted without the calibration.",
)


def main() -> None:
    """Measure, print and write."""
    asked = _arguments()
    signal.signal(signal.SIGTERM, _interrupt)  # so that the hosts are taken away again
    asked.results.mkdir(parents=True, exist_ok=True)
    for rate in asked.rates.split(",") if asked.rates else ():
        for hosts in map(int, asked.hosts.split(",")):
            answer = measure(hosts, RATES[rate], asked)
            (asked.results / f"route_predictions_{rate}_{hosts}x{SLOTS}.json").write_text(
                json.dumps(answer, indent=1) + "\n"
            )
            print("\n".join(_section(answer)), flush=True)
    if asked.table:
        found = [json.loads(path.read_text()) for path in sorted(asked.results.glob("route_predictions_*.json"))]
        lines = [line for answer in found for line in ["", *_section(answer)]]
        asked.table.write_text("\n".join([*_HEAD, *lines]) + "\n")


def measure(hosts: int, bits_per_second: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Calibrate hosts, then predict and time the collectives on them."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, shaped_hosts(hosts, bits_per_second) as made:
        topology, calibration = Path(folder) / "machine.json", Path(folder) / "calibration.json"
        topology.write_text(json.dumps(to_json(machine(hosts, SLOTS, _TOLD_BITS))))
        began = time.monotonic()
        words = ("-m", "orchestrator.measure.group", "--topology", str(topology), "--save", str(calibration))
        on_all_hosts(made, words, cache=folder, nice=asked.nice)
        took, answer = time.monotonic() - began, Path(folder) / "answer.json"
        settings = {"sizes": [int(size) for size in asked.sizes.split(",")], "runs": asked.runs}
        given = Path(folder) / "settings.json"
        given.write_text(json.dumps({**settings, "answer": str(answer), "topology": str(topology)}))
        worker = str(Path(__file__).with_name("route_predictions_worker.py"))
        on_all_hosts(made, (worker, str(given), str(calibration)), cache=folder, nice=asked.nice)
        rows, measured = json.loads(answer.read_text()), json.loads(calibration.read_text())
    return {
        "when": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "torch": torch.__version__},
        "load_before_and_after": [load, os.getloadavg()[0]],
        "hosts": hosts,
        "slots": SLOTS,
        "bits_per_second": bits_per_second,
        "runs": asked.runs,
        "nice": asked.nice,
        "calibration_seconds": took,
        "calibration": measured["sections"],
        "rows": rows,
    }


def on_all_hosts(made: ShapedHosts, words: Sequence[str], *, cache: str, nice: int = 0) -> None:
    """Start torchrun with these words on every host and wait for all; none of them outlives this."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "bench"))),
        "PYTHONWARNINGS": "ignore",
        "XDG_CACHE_HOME": cache,
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(made.names))]
    torchrun += ["--nproc-per-node", str(SLOTS), "--master-addr", "10.77.0.1", "--master-port", _PORT]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for at in range(len(made.names)):
            polite = ["nice", "-n", str(nice)] if nice else []
            command = made.command(at, *polite, *torchrun, "--node-rank", str(at), *words)
            started.append(subprocess.Popen(command, env=environment))  # noqa: S603 - our own words
        deadline = time.monotonic() + _LIMIT_SECONDS
        codes = [process.wait(timeout=max(1.0, deadline - time.monotonic())) for process in started]
    finally:
        for process in started:
            process.terminate()  # torchrun ends its ranks
        for process in started:
            process.wait()
    if any(codes):
        raise SystemExit(f"hosts ended with {codes}")


def _section(answer: dict[str, Any]) -> Iterator[str]:
    before, after = answer["load_before_and_after"]
    load = f"load {before:.0f} to {after:.0f} on {answer['machine']['cores']} cores, nice {answer['nice']}"
    yield (
        f"## {answer['bits_per_second'] / 1e6:g} Mb/s, {answer['hosts']} hosts x {answer['slots']} ranks, "
        f"{answer['runs']} runs, {answer['when']}, {load}; calibrated in {answer['calibration_seconds']:.0f} s"
    )
    yield ""
    yield "| collective | MiB | way | measured ms | fastest - slowest | predicted ms | error | by tables ms |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in answer["rows"]:
        middle = median(row["seconds"])
        way = row["way"] if row["way"] == "gloo" else f"{row['way']}, {row['pieces']} pieces"
        chosen = " (chosen)" if row["chosen"] else ""
        spread = f"{1e3 * min(row['seconds']):.0f} - {1e3 * max(row['seconds']):.0f}"
        yield (
            f"| {row['collective']} | {row['size_bytes'] / 2**20:g} | {way}{chosen} | {1e3 * middle:.0f} | {spread} "
            f"| {1e3 * row['predicted']:.0f} | {row['predicted'] / middle - 1:+.0%} | {1e3 * row['by_tables']:.0f} |"
        )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--nice", type=int, default=0, help="of the ranks; below 0 where the machine has other work")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--table", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
