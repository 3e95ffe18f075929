"""Live bytes of the frozen base in real runs of every engine here, beside what the estimate says of it.

    python bench/own_engines.py [--write docs/accuracy_engines.md]

Each row is a run of three steps of `trainmaster train` on CPU ranks: after a whole step the storages of the base that
are alive on a rank are counted. On a CPU rank the offload target is the same memory, so it is counted too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

BASE_TERMS = frozenset({"base_packed", "absmax", "base_unquantised", "base_partition", "persistent_params"})
COMMON = ("experiment=demo", "batch.max_steps=3", "eval.before=false", "format=json", "checkpoint.every=0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: what was asked for, what was measured on rank 0, and what was estimated, in bytes."""

    label: str
    measured: int
    estimated: int

    @property
    def error(self) -> float:
        """Estimate over measurement, less one."""
        return self.estimated / self.measured - 1


def grid() -> list[tuple[str, ...]]:
    """Every engine and offload, at each storage of the base that it takes."""
    rows: list[tuple[str, ...]] = []
    for ranks in (1, 2):
        devices = f"devices={ranks}"
        for base in ("base=nf4", "base=nf4 base.double_quant=false", "base=fp4", "base=int8", "base=none"):
            rows.append(("engine=ddp", devices, *base.split()))
            if base == "base=int8":
                continue  # zero3 takes none
            for offload in ("none", "cpu"):
                knobs = (f"engine.offload_param={offload}", f"engine.offload_optimizer={offload}")
                rows.append(("engine=zero3", *knobs, devices, *base.split()))
    return rows


def run(overrides: tuple[str, ...], folder: Path) -> Row:
    """Train three steps and read what the run left."""
    command = [sys.executable, "-m", "orchestrator.cli", "train", *COMMON, *overrides, f"run_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)  # noqa: S603 - our own
    label = " ".join(part for part in overrides if not part.startswith("engine.offload_optimizer"))
    if done.returncode:
        message = f"{label}: exit code {done.returncode}\n{done.stderr[-2000:]}"
        raise RuntimeError(message)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    terms = plan["chosen"]["memory"]["train"]["terms"]
    estimated = sum(term["bytes"] for term in terms if term["name"] in BASE_TERMS)
    return Row(label=label, measured=summary["live_base_bytes"], estimated=estimated)


def main() -> int:
    """Print the table; returns 1 if an estimate is more than 5% off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    lines = ["| run | measured, bytes | estimated, bytes | error |", "|---|---|---|---|"]
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for at, overrides in enumerate(grid()):
            row = run(overrides, Path(scratch) / str(at))
            worst = max(worst, abs(row.error))
            lines.append(f"| {row.label} | {row.measured:,} | {row.estimated:,} | {row.error:+.2%} |")
            print(lines[-1], flush=True)
    text = (
        "# Live bytes of the base, estimated and measured\n\nMade by `python bench/own_engines.py --write "
        "docs/accuracy_engines.md`: three steps each, one run a row, on CPU ranks, where offloaded bytes lie in the "
        "same memory.\n\n" + "\n".join(lines) + f"\n\nLargest error {worst:.2%}.\n"
    )
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")
    print(f"largest error {worst:.2%}")
    return 1 if worst > 0.05 else 0  # noqa: PLR2004 - what the estimate promises


if __name__ == "__main__":
    sys.exit(main())
