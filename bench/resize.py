"""Ranks that change in the middle of training against ranks that do not: the demo, equal steps, the same rows.

    python bench/resize.py [--steps N] [--seed N] [--out FILE] [--page FILE] [--from FILE]

Each run is `trainmaster train experiment=demo` on one CPU rank. A run that changes at step N is, up to there, the run
with the old rank bit by bit, so the losses of step N + 1, which are of the same rows, differ by the change alone.
`--page` writes the table and the picture beside it; `--from` takes the runs of an earlier `--out` and trains nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

MIB: Final = 2**20
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 380, 56, 16, 150, 40

Record = dict[str, Any]


def methods(steps: int) -> dict[str, tuple[int, int]]:
    """First rank, and rank after half of the steps, by name."""
    half = steps // 2
    return {
        "64": (64, 64),
        f"64 to 16 at {half}": (64, 16),
        f"64 to 4 at {half}": (64, 4),
        "16": (16, 16),
        f"16 to 64 at {half}": (16, 64),
    }


def main() -> int:
    """Run all, print the table, and write the page where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON with all runs")
    parser.add_argument("--page", type=Path, help="Markdown with table and picture")
    parser.add_argument("--from", dest="earlier", type=Path, help="JSON of an earlier run")
    asked = parser.parse_args()
    if asked.earlier:
        runs = json.loads(asked.earlier.read_text(encoding="utf-8"))
    else:
        runs = []
        with tempfile.TemporaryDirectory() as folder:
            for number, (name, ranks) in enumerate(methods(asked.steps).items()):
                runs.append(train(name, ranks, asked.steps, asked.seed, Path(folder) / str(number)))
                print(f"{name}: {runs[-1]['after']:.4f}", file=sys.stderr, flush=True)
                if asked.out:
                    asked.out.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    print(table(runs))
    if asked.page:
        picture = asked.page.parent / "pictures" / f"{asked.page.stem}.svg"
        picture.write_text(drawn(runs), encoding="utf-8")
        asked.page.write_text(page(runs), encoding="utf-8")
    return 0


def train(name: str, ranks: tuple[int, int], steps: int, seed: int, run_dir: Path) -> Record:
    """Train once; return losses, and what the change cost and freed."""
    first, then = ranks
    half = steps // 2
    command = [sys.executable, "-m", "orchestrator.cli", "train", "experiment=demo", "devices=1", "engine=ddp"]
    # The scale is alpha / rank = 1 for both ranks at the start, so that they differ in nothing but the rank.
    command += [f"run_dir={run_dir}", f"batch.max_steps={steps}", f"seed={seed}", f"adapter.rank={first}"]
    command += [f"adapter.alpha={first}", "eval.before=false", "checkpoint.every=0"]
    command += [f"adapter.resize.at={half}:{then}"] if then != first else []
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)  # noqa: S603
    lines = _lines(run_dir / "metrics.jsonl")
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    events = [event for event in _lines(run_dir / "events.jsonl") if event["event"] == "resized"]
    kept = ("step", "dropped_share", "largest_dropped_share", "bytes_before", "bytes_after", "freed_bytes", "seconds")
    return {
        "name": name,
        "seed": seed,
        "first": first,
        "then": then,
        "half": half,
        "losses": [line["loss"] for line in lines if "loss" in line],
        "seconds": [line["step_seconds"] for line in lines if "loss" in line],
        "after": summary["eval_loss_after"],
        "changes": [{key: event[key] for key in kept} for event in events],
    }


def _lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def jump(run: Record, runs: list[Record]) -> float | None:
    """Loss of the step after the change, above that of the same rows with the old rank; None without a change."""
    other = unchanged(run, runs)
    if other is None or not run["changes"]:
        return None
    if run["losses"][: run["half"]] != other["losses"][: run["half"]]:
        raise RuntimeError(f"{run['name']} and {other['name']} differ before the change")
    return float(run["losses"][run["half"]] - other["losses"][run["half"]])


def unchanged(run: Record, runs: list[Record]) -> Record | None:
    """The run that keeps the first rank of this one."""
    return next((one for one in runs if one["first"] == one["then"] == run["first"]), None)


def share_of_gain(run: Record, runs: list[Record]) -> float | None:
    """What the dropped share of energy is of the loss that training has gained so far; None without a change."""
    other = unchanged(run, runs)
    if other is None or not run["changes"]:
        return None
    gained = other["losses"][0] - other["losses"][run["half"]]
    return float(run["changes"][0]["dropped_share"] * gained)


def table(runs: list[Record]) -> str:
    """A line for each run."""
    heads = (
        "rank",
        "held-out loss at the end",
        "against 64",
        "energy dropped",
        "jump of the loss",
        "dropped share of the gain",
    )
    heads += ("adapters, gradients, moments before", "after")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    whole = next(run["after"] for run in runs if run["first"] == run["then"] == 64)  # noqa: PLR2004
    for run in runs:
        change = run["changes"][0] if run["changes"] else None
        jumped, gain = jump(run, runs), share_of_gain(run, runs)
        cells = [run["name"], f"{run['after']:.4f}", f"{run['after'] / whole - 1:+.2%}"]
        cells += [f"{change['dropped_share']:.3%}" if change else "", "" if jumped is None else f"{jumped:+.5f}"]
        cells.append("" if gain is None else f"{gain:.5f}")
        cells += [_bytes(change["bytes_before"]), _bytes(change["bytes_after"])] if change else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _bytes(held: dict[str, int]) -> str:
    return f"{sum(held[name] for name in ('adapters', 'gradients', 'optimizer')) / MIB:.2f} MiB"


def page(runs: list[Record]) -> str:
    """The page of the docs."""
    steps, half = len(runs[0]["losses"]), runs[0]["half"]
    return f"""# Ranks that change in the middle of training

The demo task, {steps} steps on one CPU rank, the same rows in every run; where the rank changes, it does so after step
{half}. Made by

    python bench/resize.py --steps {steps} --out bench/results/resize.json --page docs/resize.md

{table(runs)}

- Energy dropped: of the squared singular values of all adapters' products B A, the share that is left out. It is the
  least that any adapters of the smaller rank can leave out (Eckart and Young).
- Jump: loss of step {half + 1} above that of the run with the old rank, which was the same until then bit by bit, on
  the same rows.
- Dropped share of the gain: that share of energy times the loss that training had gained by then, which is what the
  jump is to be compared with.
- Bytes are those of live tensors on the rank, counted before and after the change; gradients are as large as adapters.

A change costs nothing at the end of the run. That a larger rank at the start is worth its memory is not shown here: on
this small task the smaller one does as well from the beginning.

![Training loss](pictures/resize.svg)

Training loss, the mean of five steps. How to use it:
[change the rank while training](how-to/change-rank-while-training.md).
"""


def drawn(runs: list[Record]) -> str:
    """Training loss by step, smoothed over five steps, as SVG."""
    smooth = [_means(run["losses"], 5) for run in runs]
    low, high = min(map(min, smooth)), max(map(max, smooth))
    steps = len(smooth[0])

    def place(step: int, loss: float) -> str:
        x = _LEFT + step / max(1, steps - 1) * (_WIDTH - _LEFT - _RIGHT)
        y = _TOP + (high - loss) / max(1e-9, high - low) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">']
    parts.append(f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>')
    x, _ = place(runs[0]["half"], low).split(",")
    parts.append(f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#bbb" stroke-dasharray="4"/>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        loss = low + share * (high - low)
        y = place(0, loss).split(",")[1]
        parts.append(f'<text x="{_LEFT - 8}" y="{y}" font-size="11" text-anchor="end">{loss:.2f}</text>')
    for step in range(0, steps + 1, max(1, steps // 4)):
        x = place(min(step, steps - 1), low).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 20}" font-size="11" text-anchor="middle">{step}</text>')
    for at, (run, losses) in enumerate(zip(runs, smooth, strict=True)):
        points = " ".join(place(step, loss) for step, loss in enumerate(losses))
        colour = _COLOURS[at % len(_COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        y = _TOP + 16 + 18 * at
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 10}" y="{y}" font-size="12" fill="{colour}">rank {run["name"]}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _means(values: list[float], width: int) -> list[float]:
    found = []
    for at in range(len(values)):
        window = values[max(0, at - width + 1) : at + 1]
        found.append(sum(window) / len(window))
    return found


if __name__ == "__main__":
    sys.exit(main())
