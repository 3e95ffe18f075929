"""What a model's folder lacks: needed to train, not to plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.dataset.disk import is_file, names_in, reading
from orchestrator.errors import Problem

_SINGLE: Final = ("model.safetensors", "pytorch_model.bin")
_INDEX: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# In the order in which transformers looks.
_WEIGHTS: Final = (_SINGLE[0], _INDEX[0], _SINGLE[1], _INDEX[1])
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")
_MOST_NAMES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What is not there.

    Attributes:
        folder: of the model.
        weights: what was found instead of weights; empty when they are there.
        shards: files that the index names and that are missing; `weights` tells of them, too.
        tokenizer: no tokenizer that transformers reads.
        counter: no tokenizer.json, so that tokens cannot be counted.
    """

    folder: Path
    weights: str
    shards: tuple[str, ...]
    tokenizer: bool
    counter: bool

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a run cannot do without; missing shards of safetensors are told where their headers are read."""
        found = []
        if self.weights and not any(name.endswith(".safetensors") for name in self.shards):
            remedy = "Download the model again, or save it with save_pretrained."
            found.append(Problem(where=str(self.folder), found=self.weights, remedy=remedy))
        if self.tokenizer:
            remedy = "Save the tokenizer beside the model."
            found.append(Problem(where=str(self.folder), found="no tokenizer.json", remedy=remedy))
        return tuple(found)

    def notes(self, dtype: str) -> tuple[str, ...]:
        """What a plan did without; `dtype` is what config.json says of the weights, empty for nothing."""
        found = []
        if self.weights:
            stored = f"it says {dtype}" if dtype else "it does not name the dtype of the weights"
            found.append(f"{self.folder}: {self.weights}. Planned from config.json alone ({stored}); train needs them.")
        if self.counter:
            needed = "; train needs a tokenizer" if self.tokenizer else ""
            guess = "tokens are guessed from the length of the text"
            found.append(f"{self.folder}: no tokenizer.json, so {guess}{needed}.")
        return tuple(found)


def missing_files(folder: Path) -> Missing:
    """Look what a folder holds, without opening weights.

    Raises:
        UserError: the folder cannot be listed.
    """
    names = names_in(folder)
    shards = _absent_shards(folder, names)
    return Missing(
        folder=folder,
        weights=_weights(names, shards),
        shards=shards,
        tokenizer=not set(_TOKENIZERS).intersection(names),
        counter="tokenizer.json" not in names,
    )


def _weights(names: Sequence[str], shards: Sequence[str]) -> str:
    if shards:
        return f"{len(shards)} files of weights that the index names are missing ({_some(shards)})"
    if set(_WEIGHTS).intersection(names):
        return ""
    others = [name for name in names if name.endswith((".safetensors", ".bin"))]
    return f"none of {', '.join(_WEIGHTS)}; found {_some(others) if others else 'no other weights'}"


def _absent_shards(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Shards that the index in use names and that are not there; a damaged index names none (reading it tells)."""
    first = next((name for name in _WEIGHTS if name in names), "")
    if first not in _INDEX:
        return ()
    try:
        with reading(folder / first):
            told = json.loads((folder / first).read_text(encoding="utf-8"))
        wanted = sorted({str(name) for name in told["weight_map"].values()})
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(name for name in wanted if not is_file(folder / name))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
