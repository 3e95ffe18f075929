"""The fault matrix: every fault on two and four ranks, links between hosts made from namespaces, and a real SLURM.

    python bench/fault_matrix.py [--ranks 2,4] [--runs 1] [--only kill_rank,hang] [--parts ranks,links,long,slurm]
                                 [--results bench/results/fault_matrix.json] [--page docs/faults.md] [--more]
                                 [KEY=VALUE ...]

Each part is `trainmaster faults run`; results of parts that are not run again stay. Links need root; SLURM is Debian's,
unpacked and not installed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fault_matrix_page import page
from shaped_hosts import shaped_hosts

ROOT: Final = Path(__file__).resolve().parents[1]
JOB: Final = (
    *("experiment=demo", "topology=cpu", "batch.max_steps=12", "checkpoint.every=3"),
    *("data.max_eval_rows=16", "faults.step=8"),
)
# What is answered only where the steps that are left are worth a new start.
LONG: Final = ("batch.max_steps=90", "faults.step=24", "recovery.rehearse=false")
_RATE: Final = 1_000_000_000  # bits a second
_SSH: Final = """\
#!/bin/sh
# As ssh: a host, then a line for its shell.
host="$1"; shift
exec ip netns exec "{prefix}-$((${{host##*.}} - 1))" sh -c "$*"
"""


def main() -> None:
    """Run the parts, and write results and page."""
    asked = _arguments()
    for number in (signal.SIGTERM, signal.SIGINT):  # so that hosts and SLURM are taken away again
        signal.signal(number, _interrupt)
    before = json.loads(asked.results.read_text()) if asked.results.is_file() else {"settings": []}
    found = {setting["name"]: setting for setting in before["settings"]}
    done: dict[str, list[dict[str, Any]]] = {}
    if asked.more:
        done = {name: list(setting["runs"]) for name, setting in found.items()}
    for name, number, words, environ in _asked_for(asked):
        run = _run(name, number, words, environ, asked.keep)
        if run:
            done.setdefault(name, []).append(run)
            found[name] = {"name": name, "asked": list(words), "runs": done[name]}
        body = {
            "schema": 1,
            "when": time.strftime("%Y-%m-%d"),
            "command": f"python bench/fault_matrix.py --ranks {asked.ranks} --runs {asked.runs}",
            "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "torch": _torch()},
            "settings": list(found.values()),
        }
        asked.results.parent.mkdir(parents=True, exist_ok=True)
        asked.results.write_text(json.dumps(body, indent=1) + "\n")
        if body["settings"]:
            asked.page.write_text(page(body))


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run together: where, with which faults (none: all that can be done there), and what more is asked for."""

    name: str
    part: str
    place: Callable[[], AbstractContextManager[tuple[tuple[str, ...], Mapping[str, str]]]]
    faults: tuple[str, ...]
    words: tuple[str, ...]


def settings(ranks: Sequence[str]) -> tuple[Setting, ...]:
    """Return all settings. On two hosts the first one holds the store where the ranks meet."""
    first, back = ("faults.rank=0",), ("faults.seconds=45", "batch.max_steps=150")
    cut = (*LONG, "faults.factor=200")
    return (
        *(Setting(f"{number} ranks", "ranks", _here, (), (f"devices={number}",)) for number in ranks),
        Setting("2 hosts", "links", _hosts, ("kill_rank", "kill_launcher", "slow_link", "cut_link"), ()),
        Setting("2 hosts, the first one", "links", _hosts, ("kill_launcher", "stop_launcher", "cut_link"), first),
        Setting("2 hosts, the link back after 45 s", "links", _hosts, ("cut_link",), back),
        Setting("2 ranks, 90 steps", "long", _here, ("slow_rank",), ("devices=2", *LONG)),
        Setting("2 hosts, 90 steps", "long", _hosts, ("slow_link",), cut),
        Setting("SLURM", "slurm", _slurm, ("slurm_preempt", "slurm_node_down"), ()),
    )


def _asked_for(asked: argparse.Namespace) -> Iterator[tuple[str, int, tuple[str, ...], Mapping[str, str]]]:
    """Yield each run: a name, its number, the words after `faults run`, and the environment.

    Hosts and SLURM are made anew for each: a link that was cut, or a node that went down, stays so.
    """
    parts, only = asked.parts.split(","), tuple(filter(None, asked.only.split(",")))
    for setting in settings(asked.ranks.split(",")):
        wanted = tuple(fault for fault in setting.faults or only if fault in only or not only)
        chosen = (f"faults.only=[{','.join(wanted)}]",) if wanted else ()
        is_wanted = setting.part in parts and (wanted or not setting.faults)
        for number in range(asked.runs) if is_wanted else ():
            with setting.place() as (own, environ):
                yield setting.name, number, (*JOB, *setting.words, *chosen, *own, *asked.overrides), environ


def _run(
    name: str, number: int, words: Sequence[str], environ: Mapping[str, str], keep: Path | None
) -> dict[str, Any] | None:
    """Return the table of one `faults run`; None where it could not even train without a fault."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    print(f"{name}, run {number + 1}: {folder}", flush=True)
    run_dir = folder / "runs"
    command = [sys.executable, "-m", "orchestrator.cli", "faults", "run", *words, f"run_dir={run_dir}"]
    env = {**environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    subprocess.run(command, env=env, cwd=folder, check=False)  # noqa: S603 - our own words
    path = run_dir / "faults.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    if keep is not None:
        shutil.copytree(run_dir, keep / f"{name.replace(' ', '-')}-{number + 1}", dirs_exist_ok=True)
    if found is not None and all(row["as_expected"] for row in found["rows"]):
        shutil.rmtree(folder, ignore_errors=True)
    return found


@contextmanager
def _here() -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """This machine as it is."""
    yield (), os.environ


@contextmanager
def _hosts() -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """Two hosts made from namespaces; yields the overrides that make a run use them."""
    with shaped_hosts(2, _RATE) as made, tempfile.TemporaryDirectory() as folder:
        ssh = Path(folder) / "ssh"
        ssh.write_text(_SSH.format(prefix=made.names[0].rpartition("-")[0]))
        ssh.chmod(0o755)
        own = ("launch.hosts=[10.77.0.1,10.77.0.2]", f"launch.ssh={ssh}", "launch.join_seconds=30")
        yield ("devices=2", *own), os.environ


@contextmanager
def _slurm() -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """A real SLURM on this machine, as the tests use it; yields the environment of its commands."""
    sys.path.insert(0, str(ROOT))
    conftest = importlib.import_module("tests.cluster.conftest")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lab = conftest.Slurm(conftest._unpacked(), Path(folder))  # noqa: SLF001
        try:
            lab.start()
            own = ("launch=slurm", "launch.partition=low", "launch.submit=true", "faults.partition=high")
            yield ("devices=1", *own), lab.env
        finally:
            lab.stop()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _torch() -> str:
    import torch

    return str(torch.__version__)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", default="", help="faults, with commas")
    parser.add_argument("--parts", default="ranks,links,long,slurm")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results" / "fault_matrix.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "faults.md")
    parser.add_argument("--more", action="store_true", help="keep the runs that the results have, and add to them")
    parser.add_argument("--keep", type=Path, help="folder that the runs are copied to")
    parser.add_argument("overrides", nargs="*")
    return parser.parse_args()


if __name__ == "__main__":
    main()
