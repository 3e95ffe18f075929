"""Collectives of gloo against our schedules, on hosts made from network namespaces with shaped links. Needs root.

    python bench/namespaces.py [--hosts 2,4] [--rates 1gbit,200mbit] [--runs 3] [--sizes 65536,...] [--only all_reduce]
                               [--nice -10]
                               [--results bench/results] [--table docs/routes_measured.md]

Writes `namespaces_RATE_HOSTSxSLOTS.json` to the results' folder, and a table of all results there.
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
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from route_table_measured import printed, table
from shaped_hosts import INTERFACE, ShapedHosts, shaped_hosts

ROOT: Final = Path(__file__).resolve().parents[1]
RATES: Final = {"200mbit": 200_000_000, "1gbit": 1_000_000_000}
SLOTS: Final = 2
SIZES: Final = (64 << 10, 1 << 20, 8 << 20, 64 << 20)
# None near the 256 KiB that a shaped link lets pass at once after a pause.
LINK_SIZES: Final = (1, 1 << 10, 4 << 20, 16 << 20, 32 << 20)
_PIECES: Final = {"piece_bytes": 512 << 10, "depth": 12, "most": 512}
_EXCHANGED: Final = {"piece_bytes": 512 << 10, "depth": 4, "most": 512}  # has several peers under way at each step
WAYS: Final = {
    "all_reduce": [{"algorithm": "leaders", **_PIECES}, {"algorithm": "ring in pieces", **_PIECES}],
    "all_gather": [{"algorithm": "leaders", **_PIECES}, {"algorithm": "ring in pieces", **_PIECES}],
    "all_to_all": [{"algorithm": "direct in pieces", **_EXCHANGED}, {"algorithm": "flow", **_EXCHANGED}],
}
_LIMIT_SECONDS: Final = 1800


def main() -> None:
    """Measure, print and write."""
    asked = _arguments()
    signal.signal(signal.SIGTERM, _interrupt)  # so that the hosts are taken away again
    ways = {name: ways for name, ways in asked.ways.items() if not asked.only or name in asked.only.split(",")}
    asked.results.mkdir(parents=True, exist_ok=True)
    for rate in asked.rates.split(","):
        for hosts in map(int, asked.hosts.split(",")):
            settings = {
                "hosts": hosts,
                "slots": SLOTS,
                "bits_per_second": RATES[rate],
                "runs": asked.runs,
                "sizes": [int(size) for size in asked.sizes.split(",")],
                "ways": ways,
                "nice": asked.nice,
                "links": not asked.no_links,
                "link_sizes": LINK_SIZES,
            }
            answer = measure(settings)
            name = f"namespaces_{rate}_{hosts}x{SLOTS}.json"
            (asked.results / name).write_text(json.dumps(answer, indent=1) + "\n")
            print(printed(answer), flush=True)
    if asked.table:
        found = [json.loads(path.read_text()) for path in sorted(asked.results.glob("namespaces_*.json"))]
        asked.table.write_text(table(found))


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks on hosts of their own, and return what they measured with what it was measured on."""
    load = os.getloadavg()[0]
    hosts, bits = settings["hosts"], settings["bits_per_second"]
    with tempfile.TemporaryDirectory() as folder, shaped_hosts(hosts, bits) as made:
        paths = {"meet": f"{folder}/meet", "answer": f"{folder}/answer.json"}
        given = Path(folder) / "settings.json"
        given.write_text(json.dumps({**settings, **paths}))
        _run_ranks(made, settings, given)
        answer: dict[str, Any] = json.loads(Path(paths["answer"]).read_text())
    return {
        "when": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "torch": torch.__version__},
        "load_before_and_after": [load, os.getloadavg()[0]],
        **{key: settings[key] for key in ("hosts", "slots", "bits_per_second", "runs", "nice")},
        **answer,
    }


def _run_ranks(made: ShapedHosts, settings: dict[str, Any], given: Path) -> None:
    slots, worker = settings["slots"], str(Path(__file__).with_name("route_worker.py"))
    python_path = os.pathsep.join((str(ROOT), str(ROOT / "bench")))
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "PYTHONPATH": python_path,
        "PYTHONWARNINGS": "ignore",
    }
    nice = ("nice", "-n", str(settings["nice"])) if settings["nice"] else ()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(settings["hosts"] * slots):
            command = made.command(rank // slots, *nice, sys.executable, worker, str(given), str(rank))
            ranks.append(subprocess.Popen(command, env=env))  # noqa: S603 - our own words
        deadline = time.monotonic() + _LIMIT_SECONDS
        codes = [rank.wait(timeout=max(1.0, deadline - time.monotonic())) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--only", default="", help="collectives, with commas")
    parser.add_argument(
        "--ways", type=json.loads, default=WAYS, help="JSON: collective -> list of algorithm and pieces"
    )
    parser.add_argument("--nice", type=int, default=0, help="of the ranks; below 0 where the machine has other work")
    parser.add_argument("--no-links", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--table", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
