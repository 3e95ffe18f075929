"""Memory and speed of engines side by side: the same NF4 base, adapters, rows and optimizer, on CPU ranks of one host.

    python bench/engines.py [--params 1.1e9|small] [--ranks 2 4] [--engines NAME ...] [--rounds 3] [--steps 5]
        [--out bench/results/engines_cpu.json [--more]] [--write docs/engines.md]
    python bench/engines.py --one-device [--params ...]

Engines: `ddp` (whole base on each rank), `streamed` (equal shares, window of three layers, first start),
`streamed_again` (its second start, from the cache of packed layers), `streamed_uneven` (70 to 30, on four ranks 40, 30,
20, 10), `zero3`, `zero3_offload` (parameters and optimizer), `fsdp2`. How the rivals are set up, and why, stands at
the head of `engines_zero3.py` and `engines_fsdp2.py`. Each run is a fresh torchrun; the engines take turns, round by
round. All compute in fp32, since few CPUs multiply bf16 fast, and recompute all activations.

`--more` adds rounds to those that the file of --out holds, where they are of the same job; so do other ranks.
`--one-device` trains a base whose layers are four times what may lie on the device, the rest in host memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
from engines_job import Job, Shape, shape_of
from engines_page import one_device_page, page
from engines_run import num_cores, run_ranks
from engines_table import WARM_UP, Run, rows_of, verdicts, without_nan

ENGINES: Final = ("ddp", "streamed", "streamed_again", "streamed_uneven", "zero3", "zero3_offload", "fsdp2")
_UNEVEN: Final = {1: (1,), 2: (70, 30), 4: (40, 30, 20, 10)}
_LIBRARIES: Final = ("torch", "transformers", "peft", "bitsandbytes", "deepspeed")
_TIMEOUT_SECONDS: Final = 1800
_WINDOW: Final = 3
# What rounds of two calls must have in common.
_JOINED: Final = ("schema", "machine", "versions", "base", "rows", "seq_len", "steps")


def main() -> int:
    """Measure, print and write; returns 1 if a run failed."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ranks under way are ended, too
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="engines-") as scratch:
        folder = arguments.keep or Path(scratch)
        shape = shape_of(arguments.params, tied=not arguments.untied)
        base = folder / f"base-{arguments.params}-{'untied' if arguments.untied else 'tied'}"
        print(shape.words(), flush=True)
        make(base, shape)
        job = Job(
            engine="",
            base=str(base),
            out="",
            cache="",
            steps=arguments.steps,
            rows=arguments.rows,
            seq_len=arguments.seq_len,
            window=_WINDOW,
            shares=(),
            seed=1,
        )
        head = about(shape, arguments)
        if arguments.one_device:
            body, text, failures = one_device(job, folder, head)
        else:
            body, text, failures = side_by_side(job, folder, head, arguments)
    write(arguments, body, text, began)
    print(text)
    return 1 if failures else 0


def make(folder: Path, shape: Shape) -> None:
    """Write the base; torch is loaded here alone."""
    from engines_base import make_base

    make_base(folder, shape, seed=1)


def write(arguments: argparse.Namespace, body: dict[str, Any], text: str, began: float) -> None:
    """Write values and page where they are wanted."""
    values = json.dumps({**body, "seconds": time.perf_counter() - began}, indent=1)
    for path, content in ((arguments.out, f"{values}\n"), (arguments.write, text)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="1.1e9", help="about so many parameters, or `small` (20M)")
    parser.add_argument("--untied", action="store_true", help="embedding and head are two matrices")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=sorted(_UNEVEN))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="two of them are warm-up; one more is for counting")
    parser.add_argument("--rows", type=int, default=1, help="of a micro-batch")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--one-device", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON")
    parser.add_argument("--more", action="store_true", help="keep the runs that --out holds, and add to them")
    parser.add_argument("--write", type=Path, help="Markdown")
    parser.add_argument("--keep", type=Path, help="folder for base and runs, which stay there")
    arguments = parser.parse_args()
    try:
        shape_of(arguments.params)
    except ValueError as error:
        parser.error(f"--params: {error}")
    if arguments.more and (arguments.one_device or arguments.out is None):
        parser.error("--more adds to the rounds of --out FILE")
    if arguments.rounds < 1 or arguments.steps <= WARM_UP:
        parser.error(f"--rounds begin at 1, and --steps at {WARM_UP + 1}: {WARM_UP} are warm-up")
    return arguments


def about(shape: Shape, arguments: argparse.Namespace) -> dict[str, Any]:
    """What was measured, where and when."""
    models = [x.split(":")[1].strip() for x in _lines("/proc/cpuinfo") if x.startswith("model name")]
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "schema": 1,
        "command": shlex.join(["python", "bench/engines.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{num_cores()} cores of {(models or [platform.machine()])[0]}, {memory_gib:.0f} GiB of memory",
        "load_average_before": os.getloadavg()[0],
        "versions": {name: version(name) for name in _LIBRARIES},
        "base": asdict(shape) | {"params": shape.params, "words": shape.words()},
        "rows": arguments.rows,
        "seq_len": arguments.seq_len,
        "steps": arguments.steps,
        "rounds": arguments.rounds,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def side_by_side(
    job: Job, folder: Path, head: dict[str, Any], arguments: argparse.Namespace
) -> tuple[dict[str, Any], str, list[str]]:
    """Run all engines in turns; returns values, page and failures. What is there is written after each round."""
    runs = before(arguments.out, head) if arguments.more else []
    failures: list[str] = []
    began = time.perf_counter()
    for world in arguments.ranks:
        first = max((run.turn + 1 for run in runs if run.world == world), default=0)
        for turn in range(first, first + arguments.rounds):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            for engine in arguments.engines:
                try:
                    runs.append(run_one(of_engine(job, engine, world, folder), world, turn))
                except RuntimeError as error:
                    failures.append(str(error))
                    print(error, flush=True)
            write(arguments, values_of(head, runs, failures), page(head, runs, failures), began)
    return values_of(head, runs, failures), page(head, runs, failures), failures


def before(path: Path, head: dict[str, Any]) -> list[Run]:
    """The runs of an earlier call; ends the program where they are of another job, whose numbers cannot be joined."""
    if not path.is_file():
        return []
    old = json.loads(path.read_text(encoding="utf-8"))
    differs = [name for name in _JOINED if old.get(name) != head[name]]
    if differs:
        told = ", ".join(f"{name} {old.get(name)!r}, now {head[name]!r}" for name in differs)
        sys.exit(f"--more: {path} is of another job: {told}. Leave --more out, or give it a file of its own.")
    return [Run(engine=x["engine"], world=x["world"], turn=x["turn"], ranks=x["ranks"]) for x in old["runs"]]


def run_one(job: Job, world: int, turn: int) -> Run:
    """Start the ranks of an engine, and tell what they found."""
    began = time.perf_counter()
    run = Run(engine=job.engine, world=world, turn=turn, ranks=run_ranks(job, world, _TIMEOUT_SECONDS))
    print(_progress(run, time.perf_counter() - began), flush=True)
    return run


def values_of(head: dict[str, Any], runs: list[Run], failures: list[str]) -> dict[str, Any]:
    """All that was measured, for a file."""
    head = {**head, "rounds": len({(x.world, x.turn) for x in runs})}
    values = [{"engine": x.engine, "world": x.world, "turn": x.turn, "ranks": list(x.ranks)} for x in runs]
    rows = [without_nan(asdict(row)) for row in rows_of(runs)]
    return {**head, "runs": values, "table": rows, "verdicts": verdicts(runs), "failures": failures}


def of_engine(job: Job, engine: str, world: int, folder: Path) -> Job:
    """Return the job of an engine: a second start needs the cache of the first, and no more steps than one."""
    cached = engine in {"streamed", "streamed_again"}
    return replace(
        job,
        engine=engine,
        out=str(folder / f"{engine}-{world}"),
        cache=str(folder / "cache") if cached else "",
        steps=1 if engine == "streamed_again" else job.steps,
        shares=_UNEVEN[world] if engine == "streamed_uneven" else (),
    )


def _progress(run: Run, seconds: float) -> str:
    live, mib = run.live_bytes[1], 2**20
    return (
        f"{run.world} ranks, round {run.turn + 1}, {run.engine}: live {live / mib:,.0f} MiB, "
        f"load peak {run.most('load_peak_bytes') / mib:,.0f} MiB, step {run.step_seconds:.2f} s, "
        f"start-up {run.most('startup_seconds'):.1f} s ({seconds:.0f} s in all)"
    )


def one_device(job: Job, folder: Path, head: dict[str, Any]) -> tuple[dict[str, Any], str, list[str]]:
    """Train with a quarter of the layers' bytes on the device, beside the resident run; returns values and page."""
    found = run_ranks(replace(job, engine="one_device", out=str(folder / "one_device")), 1, _TIMEOUT_SECONDS)[0]
    body = {**head, "one_device": found}
    failures = [] if found["equal_losses"] and found["live_bytes"] <= found["budget_bytes"] else ["missed"]
    return body, one_device_page(head, found), failures


if __name__ == "__main__":
    sys.exit(main())
