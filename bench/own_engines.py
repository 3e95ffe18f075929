"""Live bytes of real runs of every engine here, term by term, beside what the estimate says of them.

    python bench/own_engines.py [--quick] [--only WORD ...] [--write docs/accuracy_engines.md]

Each run takes two steps on CPU ranks. States are counted after the first step; activations and the peak in the second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from own_fork import load_libraries, run_ranks
from own_grid import common, folder_name, grid, make_model, num_ranks, quick_grid

LIMIT: Final = 0.05
# Below this share of the peak a term's error is a matter of single small tensors.
SMALL_SHARE: Final = 0.002
_TIMEOUT_SECONDS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One term of one run, the largest over its ranks, in bytes."""

    run: str
    term: str
    measured: int
    estimated: int

    @property
    def error(self) -> float:
        """Estimate over measurement, less one."""
        return self.estimated / self.measured - 1 if self.measured else float(self.estimated > 0)


def rows_of(run: str, terms: dict[str, int], ranks: list[dict[str, Any]]) -> list[Row]:
    """Put every measured term beside the estimated one.

    Args:
        run: its settings, for the table.
        terms: bytes of the estimate's terms of the training phase, by name.
        ranks: what each rank wrote.
    """
    measured: dict[str, int] = {}
    for rank in ranks:
        for name, held in {**rank["states"], **rank["step"]}.items():
            measured[name] = max(held, measured.get(name, 0))
    estimated = {**terms, "peak": sum(terms.values())}
    names = [name for name in measured if measured[name] or estimated.get(name, 0)]
    return [Row(run=run, term=x, measured=measured[x], estimated=estimated.get(x, 0)) for x in names]


def measure(row: str, model: Path, folder: Path) -> list[Row]:
    """Plan and run one row of the grid; what an earlier call has measured of the same strategy is read.

    Raises:
        RuntimeError: it could not be planned or run.
    """
    before = _strategy(folder) if (folder / "live.0.json").exists() else None
    fresh = folder.with_name(f"{folder.name}.plan")
    _plan(row, model, fresh)
    if _strategy(fresh) != before:
        shutil.rmtree(folder, ignore_errors=True)
        _plan(row, model, folder)
        run_ranks(partial(_metered, folder / "plan.json"), num_ranks(row), folder / "rank.log", _TIMEOUT_SECONDS)
    plan = json.loads((fresh / "plan.json").read_text(encoding="utf-8"))
    shutil.rmtree(fresh)
    terms = {term["name"]: int(term["bytes"]) for term in plan["chosen"]["memory"]["train"]["terms"]}
    ranks = sorted(folder.glob("live.*.json"))
    return rows_of(row, terms, [json.loads(path.read_text(encoding="utf-8")) for path in ranks])


def _plan(row: str, model: Path, folder: Path) -> None:
    from orchestrator import cli

    words = [*common(model, row), *row.split(), f"run_dir={folder}"]
    folder.mkdir(parents=True, exist_ok=True)
    run_ranks(lambda: cli.main(["plan", *words]), 1, folder / "plan.log", _TIMEOUT_SECONDS)


def _strategy(folder: Path) -> object:
    """What of a plan decides what a run holds; None where there is no whole plan."""
    try:
        return json.loads((folder / "plan.json").read_text(encoding="utf-8"))["chosen"]["strategy"]
    except (OSError, ValueError, KeyError):
        return None


def _metered(path: Path) -> int:
    import own_rank

    return own_rank.run(path)


def is_judged(row: Row, peak_bytes: int) -> bool:
    """Whether the row's error counts: all but terms of a few small tensors."""
    return max(row.measured, row.estimated) >= SMALL_SHARE * peak_bytes


def document(rows: list[Row], failures: list[str]) -> str:
    """Return the table as a page."""
    lines = ["| run | term | measured, bytes | estimated, bytes | error |", "|---|---|---|---|---|"]
    run = ""
    for row in rows:
        shown = _short(row.run) if row.run != run else ""
        run = row.run
        lines.append(f"| {shown} | {row.term} | {row.measured:,} | {row.estimated:,} | {row.error:+.2%} |")
    return "\n".join([_HEAD, *lines, "", *failures, *summary(rows), ""])


def summary(rows: list[Row]) -> list[str]:
    """The largest error, and which rows are above the limit."""
    judged = judged_rows(rows)
    if not judged:
        return ["No run was measured."]
    worst = max(judged, key=lambda row: abs(row.error))
    above = sum(abs(row.error) > LIMIT for row in judged)
    runs = len({row.run for row in rows})
    largest = f"Largest error {worst.error:+.2%} ({_short(worst.run)}: {worst.term})"
    return [f"{runs} runs, {len(judged)} terms. {largest}; {above} above {LIMIT:.0%}."]


def judged_rows(rows: list[Row]) -> list[Row]:
    """Rows whose error counts."""
    peaks = {row.run: row.measured for row in rows if row.term == "peak"}
    return [row for row in rows if is_judged(row, peaks[row.run])]


def _short(row: str) -> str:
    words = (word.removeprefix("engine=").removeprefix("engine.").removeprefix("base=") for word in row.split())
    return " ".join(word.replace("devices=1", "1 rank,").replace("devices=2", "2 ranks,") for word in words)


_HEAD: Final = """# Live bytes of our engines, estimated and measured

Made by `python bench/own_engines.py --write docs/accuracy_engines.md`. Each line is one run of two optimizer steps of
two micro-batches of 2 x 192 tokens, on CPU ranks in fp32 unless it says bf16: the rank's own code, in forks of a
process that has the libraries loaded. The model is a Llama of two layers, hidden 768, vocabulary 4,096, tied, 66 MB
unquantised, with adapters of rank 16 on all linear modules.

- Terms are those of the estimate (`chosen` in `plan.json`, phase `train`). A storage counts once, whoever refers to it,
  and the largest of the ranks counts.
- States (base, adapters, optimizer, buffers) are counted after the first step, gradients before the optimizer's.
- `activations` is what a forward pass leaves alive, without parameters that are gathered or on their way; `peak` is the
  most that is alive at any time of the second step, beside the sum of all estimated terms. Both are seen operator by
  operator; what a kernel allocates and frees inside of one operator is not seen.
- On a CPU rank the offload target is the same memory, so offloaded bytes are counted, too.
- TRL's fused head allocates a tile of 32,768 columns. Those beyond the vocabulary are never written, so they are no
  memory on a host and not counted.
- Terms below 0.2% of the peak are shown and not judged.
- A paged optimizer takes the same bytes as the one that is not paged: on a CPU rank its pages are ordinary memory.
- Under ZeRO-3 without checkpointing `activations` holds the whole packed base, too: bitsandbytes' 4-bit product saves a
  view of the gathered weight, which lives on when DeepSpeed releases the parameter.
- NVMe offload is not part of the grid. The library for asynchronous file access could be compiled (30 minutes of wall
  time on two busy cores) and parameters went to files, but the one try (unquantised base in bf16, checkpointing full)
  ended in the prefetch from files: "param 7 already assigned swap buffer", deepspeed partitioned_param_swapper.py.
"""


def measure_all(chosen: list[str], folder: Path) -> tuple[list[Row], list[str]]:
    """Measure rows of the grid one by one and print them; returns what was found, and which could not be run."""
    rows: list[Row] = []
    failures: list[str] = []
    began = time.perf_counter()
    model = folder / "model"
    load_libraries()
    # In a fork, since drawing weights starts threads.
    run_ranks(partial(make_model, model), 1, folder / "model.log", _TIMEOUT_SECONDS)
    for at, settings in enumerate(chosen):
        print(f"[{at + 1}/{len(chosen)}, {time.perf_counter() - began:.0f} s] {settings}", flush=True)
        try:
            found = measure(settings, model, folder / folder_name(settings))
        except RuntimeError as error:
            failures.append(f"- {settings}: {error}")
            print(failures[-1], flush=True)
            continue
        rows += found
        for row in found:
            print(f"  {row.term:18} {row.measured:12,} {row.estimated:12,} {row.error:+8.2%}", flush=True)
    return rows, failures


def main() -> int:
    """Print the table; returns 1 if an estimate is more than 5% off or a run failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four runs")
    parser.add_argument("--only", nargs="+", default=[""], help="runs whose settings contain one of these")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the runs; a strategy that was measured is not run again")
    arguments = parser.parse_args()
    chosen = [x for x in (quick_grid() if arguments.quick else grid()) if any(w in x for w in arguments.only)]
    if not chosen:
        parser.error("no run has settings that contain one of the words of --only")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows, failures = measure_all(chosen, folder)
    if arguments.write:
        arguments.write.write_text(document(rows, failures), encoding="utf-8")
    print(*summary(rows))
    return 1 if failures or any(abs(row.error) > LIMIT for row in judged_rows(rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
