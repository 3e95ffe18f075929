"""How long the first plan of a fresh process takes, machine by machine.

    python bench/plan_speed.py [--write FILE] [--repeats N] [--only TEXT] [--corpus FOLDER]

Every plan is made in a process of its own, after the imports that `trainmaster plan` makes before it; counted is the
CPU time of `make_plan` and of the choice who sums the gradients, with all that these load and search for the first
time. What they load is compiled already, as in an installed package. Machines: all drawn ones of up to eight devices,
alone and twice, and the files of a corpus of `nvidia-smi topo -m` texts and NCCL topologies (memory that these do not
tell is filled in). `--write` makes the Markdown page.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orchestrator.inputs  # noqa: F401 - loaded before every plan
from orchestrator.calibration_store import choose_calibration
from orchestrator.compose import compose
from orchestrator.engines.gradient_route import with_gradient_route
from orchestrator.errors import UserError
from orchestrator.measure.use import measured_software
from orchestrator.planner.build import make_plan
from orchestrator.workload.batch import DataStats
from orchestrator.workload.named import preset_shape
from topology.errors import TopologyError
from topology.judge import judged
from topology.model import Topology
from topology.presets import preset, preset_names
from topology.probe import read_topology
from topology.units import GIB

AIM_SECONDS: Final = 0.2
MOST_DEVICES: Final = 8
ROOT: Final = Path(__file__).parents[1]
CORPUS: Final = ROOT.parent / "shared" / "corpus"
MODELS: Final = {"8B": "Llama-3.1-8B", "70B": "Llama-3.1-70B"}
SILENT_DEVICE_BYTES: Final = 40 * GIB
SILENT_HOST_BYTES: Final = 512 * GIB
_COMMAND: Final = "python bench/plan_speed.py --write docs/plan_speed.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A machine and a model: CPU seconds of each repeat, what was chosen, and which large libraries were loaded."""

    machine: str
    devices: int
    model: str
    seconds: tuple[float, ...]
    chosen: str
    loaded: tuple[str, ...]

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.seconds)


def machine_of(name: str) -> Topology:
    """A drawn machine (`NAME x2`: two of it) or a file of a corpus."""
    if name.endswith((".txt", ".xml")):
        return _filled(read_topology(Path(name)))
    drawn, _, times = name.rpartition(" x")
    return judged(preset(drawn, nodes=int(times)))


def _filled(found: Topology) -> Topology:
    hosts = tuple(
        replace(
            host,
            memory_bytes=host.memory_bytes or SILENT_HOST_BYTES,
            devices=tuple(replace(x, memory_bytes=x.memory_bytes or SILENT_DEVICE_BYTES) for x in host.devices),
        )
        for host in found.hosts
    )
    return replace(found, hosts=hosts)


def names_of(corpus: Path) -> list[tuple[str, int]]:
    """All machines of up to MOST_DEVICES GPUs, with how many they have."""
    names = [f"{name} x{nodes}" for name in preset_names() if name != "cpu" for nodes in (1, 2)]
    names += sorted(str(path) for kind in ("*.txt", "*.xml") for path in corpus.rglob(kind))
    found = []
    for name in names:
        try:
            count = len(machine_of(name).gpus)
        except TopologyError:
            continue  # no topology of a machine, and the corpus says so
        if 1 <= count <= MOST_DEVICES:
            found.append((name, count))
    return found


def plan_once(name: str, model: str) -> dict[str, Any]:
    """Plan once; what it took, what was chosen, and what was loaded meanwhile."""
    machine = machine_of(name)
    config, _ = compose(["data=rows.jsonl", f"model={model}", f"nodes={len(machine.hosts)}"], needs_job=True)
    # The typical instruction set: 10,000 rows of 600 tokens on average.
    data = DataStats(
        rows=10_000, eval_rows=50, mean_tokens=600.0, max_tokens=2048, total_tokens=6_000_000, source="counted"
    )
    shape = preset_shape(MODELS[model])
    calibration = choose_calibration("none", machine, {})
    before = set(sys.modules)
    start = time.process_time()
    try:
        plan = make_plan(config, machine, shape, data, "run", calibration)
        plan = with_gradient_route(plan, machine, calibration.calibration, measured_software)
        chosen = plan.chosen.strategy.label
    except UserError:
        chosen = "nothing fits; ways out"
    seconds = time.process_time() - start
    loaded = sorted({"numpy", "scipy"} & (set(sys.modules) - before))
    return {"seconds": seconds, "chosen": chosen, "loaded": loaded}


def compiled(folder: str) -> dict[str, str]:
    """The environment of a process that finds everything that planning may load compiled in `folder`."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = folder
    packages = [str(ROOT / name) for name in ("orchestrator", "topology")]
    command = [sys.executable, "-m", "compileall", "-q", *packages]
    subprocess.run(command, env=environment, check=True)  # noqa: S603 - our own files
    return environment


def measure(name: str, devices: int, model: str, repeats: int, environment: dict[str, str]) -> Row:
    """Plan in fresh processes."""
    found = []
    for _ in range(repeats):
        command = [sys.executable, __file__, "--one", name, model]
        done = subprocess.run(  # noqa: S603 - this file
            command, capture_output=True, text=True, check=True, env=environment
        )
        found.append(json.loads(done.stdout))
    return Row(
        machine="/".join(Path(name).parts[-2:]),
        devices=devices,
        model=model,
        seconds=tuple(one["seconds"] for one in found),
        chosen=found[0]["chosen"],
        loaded=tuple(found[0]["loaded"]),
    )


def page(rows: list[Row], repeats: int) -> str:
    """The table as Markdown, with what it adds up to before it."""
    made = [row for row in rows if not row.chosen.startswith("nothing")]
    slow = [row for row in made if row.median > AIM_SECONDS]
    worst = max(made, key=lambda row: row.median, default=None)
    lines = [
        "# How long the first plan takes",
        "",
        f"Made by `{_COMMAND}`.",
        f"CPU seconds of the first plan of a fresh process, median of {repeats} (range in brackets); the aim is",
        f"{AIM_SECONDS} s.",
        "Where nothing fits, the ways out are searched as well: those rows count up to a dozen searches.",
        "",
        f"- {len(made)} plans, {len(slow)} of them above {AIM_SECONDS} s, median "
        f"{statistics.median([row.median for row in made] or [0.0]):.3f} s"
        + (f", slowest {worst.median:.3f} s ({worst.machine}, {worst.model})" if worst else ""),
        f"- {_count(made, 'scipy')} of them loaded scipy, {_count(made, 'numpy')} numpy",
        "",
        "| machine | GPUs | model | seconds | loaded | chosen |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.machine} | {row.devices} | {row.model} | {row.median:.3f} [{min(row.seconds):.3f}-"
        f"{max(row.seconds):.3f}] | {', '.join(row.loaded) or '-'} | {row.chosen} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _count(rows: list[Row], library: str) -> int:
    return sum(library in row.loaded for row in rows)


def main() -> int:
    """Print the table; returns 1 where a plan takes longer than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("MACHINE", "MODEL"), help="plan once, in this process")
    parser.add_argument("--write", type=Path, help="where the page goes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="machines whose name holds this")
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=["8B"])
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(plan_once(*given.one)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        environment = compiled(folder)
        rows = [
            measure(name, devices, model, given.repeats, environment)
            for name, devices in names_of(given.corpus)
            if given.only in name
            for model in given.models
        ]
    text = page(rows, given.repeats)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    print(text, end="")
    return int(any(row.median > AIM_SECONDS for row in rows if not row.chosen.startswith("nothing")))


if __name__ == "__main__":
    sys.exit(main())
