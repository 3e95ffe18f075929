"""The page that `bench/engines.py` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engines_table import Run, rows_of, table, verdicts

_MIB: Final = 2**20

_COLUMNS: Final = """\
- Live base: bytes of the frozen base's tensors on a rank at the largest moment of a step, seen at every frozen linear
  module when its forward pass and its recomputation begin and when its backward pass is done. Each storage counts
  once: shares, windows, what is gathered, what is on its way, scales, embedding and head. Adapters, gradients and
  optimizer are no base. On a CPU the offload target is the same memory: `offloaded` is shown and counted.
- Peak RSS: the kernel's high-water mark of a rank (the largest of them), beside what it was before loading: interpreter
  and libraries alone take that much.
- Load peak: the high-water mark from before loading until the first step, less what was resident before. The kernel
  counts pages of a mapped checkpoint, which could be dropped; the next column leaves them out (looked at every 20 ms).
- Step: median of the steps after the first two, each as long as on its slowest rank. CPU: what the process has
  computed in it, all threads, the largest of the ranks; a busy machine lengthens it less.
- Start-up: from the start of a rank's process until its first step; the largest of the ranks. `streamed` packs the
  base and fills the cache in its first start; `streamed_again` is the second one, which finds it, and takes one step
  only.
- How the rivals are set up, and why, stands at the head of `bench/engines_zero3.py` and `bench/engines_fsdp2.py`.
- Last loss: mean over the ranks, of the last step."""


def page(head: Mapping[str, Any], runs: Sequence[Run], failures: Sequence[str]) -> str:
    """Return the side by side table with the targets."""
    lines = [
        "# Engines side by side on CPU ranks",
        "",
        *_about(head),
        "",
        "## Targets",
        "",
        *(f"- {line}" for line in verdicts(runs)),
        "",
        "## Figures",
        "",
        *table(rows_of(runs)),
        "",
        _COLUMNS,
    ]
    if failures:
        lines += ["", "## Runs that failed", "", *(f"    {line}" for fault in failures for line in fault.splitlines())]
    return "\n".join(lines) + "\n"


def _about(head: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in head["versions"].items())
    return f"""\
Made by `{head["command"]}` on {head["date"]}.

- Machine: {head["machine"]}; load average {head["load_average_before"]:.1f} before. {versions}.
- Base: {head["base"]["words"]}; NF4, double-quantised.
- LoRA of rank 16 on all linear modules and AdamW, in fp32; gradients clipped to 1.0; all activations recomputed;
  {head["rows"]} x {head["seq_len"]} tokens a rank.
- The engines take turns, round by round, each run under a fresh torchrun: medians (least to most) of the runs counted.
""".splitlines()


def one_device_page(head: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return what one rank with the host tier came to."""
    lines = ["# One device, the rest of the base in host memory", "", *_about(head), "", *one_device_lines(found)]
    return "\n".join(lines) + "\n"


def one_device_lines(found: Mapping[str, Any]) -> list[str]:
    """Say budget, losses and overlap."""
    mib = {name: found[name] / _MIB for name in found if name.endswith("_bytes")}
    whole, budget, live = mib["layers_bytes"], mib["budget_bytes"], mib["live_bytes"]
    ratio = found["step_seconds"] / found["resident_step_seconds"]
    return f"""\
- Layers {whole:,.1f} MiB, device budget {budget:,.1f} MiB ({whole / budget:.1f} times less).
- Live on the device: {live:,.1f} MiB ({"within" if live <= budget else "ABOVE"} the budget); embedding and head, \
{mib["head_bytes"]:,.1f} MiB, more in both runs.
- Losses {"equal, bit by bit" if found["equal_losses"] else "DIFFERENT"}: {found["losses"][-1]:.6f} at last.
- {found["step_seconds"]:.3f} s a step, resident {found["resident_step_seconds"]:.3f} s ({ratio:.2f} x).
- {mib["copied_bytes"]:,.0f} MiB copied a step in {found["copy_seconds"]:.3f} s, {found["exposed_seconds"]:.3f} s of \
it waited for: {found["overlap"]:.0%} overlapped.
""".splitlines()
