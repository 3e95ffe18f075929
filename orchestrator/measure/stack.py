"""Memory of the installed libraries by the real model on fake tensors: `python -m orchestrator.measure.stack REQUEST`.

Counted, not timed, so a repeat would tell the same: bytes per logit, and bytes of a running layer against the formula.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.config import Checkpointing
from orchestrator.estimate import calibration as c
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Setting
from orchestrator.measure.device import versions
from orchestrator.measure.serve import Entry, Request, serve
from orchestrator.measure.small import RANK, llama, setting_of

STACKS: Final = ("hf_plain", "trl")
_TOKENS: Final = (256, 1024)  # two lengths: what does not grow with the tokens drops out
_HEAVY_HEAD: Final = {"hidden": 128, "vocab": c.HEAD_TILE_VOCAB}
_HEAVY_LAYER: Final = {"hidden": 4096, "vocab": 256}
_ADAPTER_DTYPE: Final = {"hf_plain": "fp32", "trl": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """Bytes per token: of the simulated peak, and of the estimate's terms."""

    peak: float
    terms: dict[str, float]


def main(arguments: list[str]) -> int:
    """Measure; returns the exit code."""
    return serve(arguments, {"stack": stack}, versions)


def stack(_: Request) -> list[Entry]:
    """Constants of both stacks."""
    return [entry for name in STACKS for entry in _of(name)]


def _of(name: str) -> Iterator[Entry]:
    head, running = _slopes(name, **_HEAVY_HEAD), _slopes(name, **_HEAVY_LAYER)
    # The fused head's constant rest is counted; what is left of its term is a tile of this many bytes a logit.
    per_logit = logit_bytes(name)
    rest = head.terms["logits"] - per_logit * c.HEAD_TILE_VOCAB
    value = (head.peak - head.terms["activations"] - rest) / c.HEAD_TILE_VOCAB
    shape = (
        f"a Llama of {_HEAVY_HEAD['hidden']} wide with {c.HEAD_TILE_VOCAB} logits, {_TOKENS[0]} and {_TOKENS[1]} tokens"
    )
    yield _entry(f"{name}.logit_bytes", value, "bytes a logit", f"{shape}, on fake tensors")
    factor = (running.peak - running.terms["activations"]) / running.terms["layer_transient"]
    shape = f"a Llama layer of width {_HEAVY_LAYER['hidden']}, {_TOKENS[0]} and {_TOKENS[1]} tokens"
    yield _entry(f"{name}.layer_factor", factor, "of what is counted", f"{shape}, on fake tensors")


def logit_bytes(stack_name: str) -> float:
    """What the estimate takes for a logit: of the whole logits, or of a tile of the fused head in 16 bits."""
    return float(c.PLAIN_LOSS_BYTES if stack_name == "hf_plain" else c.TILE_LOGIT_BYTES)


def _entry(name: str, value: float, unit: str, how: str) -> Entry:
    return Entry(name=name, value=value, unit=unit, repeats=1, spread=0.0, how=how)


def _slopes(name: str, *, hidden: int, vocab: int) -> Slopes:
    config = llama(hidden=hidden, layers=2, vocab=vocab)
    low, high = (_peaks(name, config, tokens) for tokens in _TOKENS)
    more = _TOKENS[1] - _TOKENS[0]
    terms = {key: (high[1][key] - low[1].get(key, 0)) / more for key in high[1]}
    return Slopes(peak=(high[0] - low[0]) / more, terms=terms)


def _peaks(name: str, config: dict[str, Any], tokens: int) -> tuple[int, dict[str, int]]:
    """Peak of the simulated step, and the estimate's terms."""
    from orchestrator.simulate.case import Case
    from orchestrator.simulate.step import simulate

    adapters = _ADAPTER_DTYPE[name]
    case = Case(model=config, micro=1, tokens=tokens, rank=RANK, stack=name, adapter_dtype=adapters)
    terms = {term.name: term.bytes for term in estimate_memory(_setting(name, config, tokens)).train.terms}
    return simulate(case).pass_bytes, terms


def _setting(name: str, config: dict[str, Any], tokens: int) -> Setting:
    changes: dict[str, Any] = {
        "compute_dtype": "bf16",
        "load_dtype": "bf16",
        "adapter_dtype": _ADAPTER_DTYPE[name],
        "checkpointing": Checkpointing.full,
        "stack": name,
    }
    return setting_of(config, rows=1, tokens=tokens, is_gpu=True, **changes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
