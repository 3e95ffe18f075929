"""Two ranks that differ: planned cut and rows against even ones, one rank held to a third of a core's time.

    python bench/mixed_machine.py [--rounds 3] [--steps 6] [--speed 0.3333] [--write FILE]

A base of some 25M parameters with the demo's tokenizer and rows. The ranks get device budgets of 1:3, and the first
one a CPU quota from a control group (root) as soon as the base is loaded. `even`: half of the layers' bytes and of the
rows each. `planned`: what `trainmaster plan` makes of the budgets and `engine.speeds`. The rates of this machine are
measured before (`trainmaster bench`), so that predictions have something to stand on. Runs of both are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from engines_base import make_base
from engines_job import Shape

ROOT: Final = Path(__file__).parents[1]
GROUPS: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
PERIOD_MICROSECONDS: Final = 20_000  # short, so that a held rank does not stop for long
START_SECONDS: Final = 300
WARM_UP: Final = 2
_ASK: Final = (
    "engine=streamed",
    "devices=2",
    "checkpointing=none",
    "batch.micro=auto",
    "data.max_eval_rows=2",
    "eval.before=false",
    "checkpoint.every=0",
    "base.cache=false",
    "compress=none",
)


@contextmanager
def quota(cores: float) -> Iterator[Path]:
    """A control group whose processes together get so many cores' time; yields its list of processes."""
    top = next(path for path in GROUPS if path.is_dir())
    group = top / f"trainmaster-{os.getpid()}"
    group.mkdir()
    microseconds = round(cores * PERIOD_MICROSECONDS)
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{microseconds} {PERIOD_MICROSECONDS}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(microseconds))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def make_model(folder: Path) -> None:
    """The random base, with the tokenizer of the shipped one."""
    folder.mkdir(parents=True, exist_ok=True)
    make_base(folder, Shape(hidden=512, wide=1408, layers=8, heads=8, key_heads=4, vocab=4096, tied=True), 0)
    for path in (ROOT / "examples" / "base").iterdir():
        if path.name.startswith(("tokenizer", "chat")):
            shutil.copy(path, folder)


def trainmaster(*words: str) -> str:
    """Run a verb; return what it printed."""
    command = [sys.executable, "-m", "orchestrator.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())  # noqa: S603
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def environment() -> dict[str, str]:
    """Of all processes: one thread a rank, which sleeps while it waits."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}


def make_plan(folder: Path, asked: argparse.Namespace, *, planned: bool) -> Path:
    """Plan a run in a folder of its own."""
    budgets = f"engine.budgets_gib=[{asked.budget},{3 * asked.budget}]"
    more = [f"engine.speeds=[{asked.speed},1]", budgets] if planned else ["engine.shards=[1,1]"]
    words = [f"model={folder.parent / 'model'}", f"data={ROOT / 'examples' / 'data'}", *_ASK, *more]
    words += [f"batch.global={asked.rows}", "data.seq_len=192", f"batch.max_steps={asked.steps}"]
    words += [f"calibration={asked.calibration}", f"run_dir={folder}"]
    print(trainmaster("plan", *words).split("\n\n")[1], file=sys.stderr)
    return folder / "plan.json"


def run(plan: Path, speed: float) -> list[float]:
    """Carry a plan out, the first rank held; returns seconds of each step after the first ones."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with quota(speed) as held:
        ranks = [
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "orchestrator.train.worker", str(plan)],
                env={**environment(), **where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
            )
            for rank in range(2)
        ]
        try:
            wait_for_base(plan.parent / "events.jsonl", ranks)
            held.write_text(str(ranks[0].pid))
            if any(rank.wait() for rank in ranks):
                raise SystemExit(f"a rank of {plan} failed")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    lines = [json.loads(line) for line in (plan.parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["step_seconds"] for line in lines if "step_seconds" in line][WARM_UP:]


def wait_for_base(events: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Return when the base is loaded: what comes before is not what is measured."""
    deadline = time.monotonic() + START_SECONDS
    while not (events.exists() and "base_loaded" in events.read_text(encoding="utf-8")):
        if time.monotonic() > deadline or any(rank.poll() is not None for rank in ranks):
            raise SystemExit("the ranks did not start")
        time.sleep(0.1)


def main() -> int:
    """Measure both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=16, help="of a global batch")
    parser.add_argument("--speed", type=float, default=1 / 3, help="of the first rank, in cores")
    parser.add_argument("--budget", type=float, default=0.25, help="GiB of the first rank; the second has three times")
    parser.add_argument("--calibration", default="", help="file of `trainmaster bench`; measured anew by default")
    parser.add_argument("--write", type=Path, help="Markdown page")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        make_model(root / "model")
        if not asked.calibration:
            asked.calibration = str(root / "calibration.json")
            trainmaster("bench", f"save={asked.calibration}")
        seconds: dict[str, list[float]] = {"even": [], "planned": []}
        plans: dict[str, dict[str, Any]] = {}
        for at in range(asked.rounds):
            for name, found in seconds.items():
                path = make_plan(root / f"{name}-{at}", asked, planned=name == "planned")
                plans[name] = json.loads(path.read_text(encoding="utf-8"))
                found.append(statistics.median(run(path, asked.speed)))
                print(f"{name}, round {at + 1}: {found[-1]:.3f} s a step", file=sys.stderr, flush=True)
    page = table(asked, seconds, plans)
    print(page)
    if asked.write:
        asked.write.write_text(page, encoding="utf-8")
    return 0


def table(asked: argparse.Namespace, seconds: dict[str, list[float]], plans: dict[str, dict[str, Any]]) -> str:
    """The page."""
    command = f"python bench/mixed_machine.py --rounds {asked.rounds} --steps {asked.steps}"
    told = (
        f"`{command}` on {time.strftime('%Y-%m-%d')}: the first rank has {asked.speed:.2f} of a core and a budget of "
        f"{asked.budget} GiB, the second a core and {3 * asked.budget} GiB. Medians over {asked.rounds} interleaved "
        "runs; fastest and slowest in brackets."
    )
    lines = [
        "# Two ranks that differ",
        "",
        told,
        "",
        "| cut and rows | rows | MiB of the layers | step s | predicted s | error |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in seconds.items():
        chosen = plans[name]["chosen"]
        strategy, step = chosen["strategy"], statistics.median(found)
        parts = "/".join(f"{share['device'] / 2**20:.1f}" for share in strategy["streamed"]["shares"])
        rows = "/".join(map(str, strategy["shares"]))
        told, error = "-", "-"
        if name == "planned":
            predicted = chosen["step_seconds"]
            told, error = f"{predicted:.3f}", f"{predicted / step - 1:+.0%}"
        spread = f"{step:.3f} ({min(found):.3f}-{max(found):.3f})"
        lines.append(f"| {name} | {rows} | {parts} | {spread} | {told} | {error} |")
    gain = statistics.median(seconds["even"]) / statistics.median(seconds["planned"])
    return "\n".join([*lines, "", f"The planned one is {gain:.2f} times as fast.", ""])


if __name__ == "__main__":
    sys.exit(main())
