"""What to simulate, read from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator.errors import Problem, UserError

_CHOICES = {
    "quant": ("nf4", "fp4", "none"),
    "compute_dtype": ("bf16", "fp16", "fp32"),
    "load_dtype": ("bf16", "fp16", "fp32"),
    "adapter_dtype": ("bf16", "fp16", "fp32"),
    "checkpointing": ("full", "selective", "none"),
    "stack": ("trl", "hf_plain"),
    "attention": ("sdpa", "eager"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training step on one GPU.

    Attributes:
        model: `config.json` of the model.
        micro: rows of a forward pass.
        tokens: tokens of each row.
        masked: rows are padded or packed, so attention gets a mask; else it is causal alone.
        accumulation: forward passes per optimizer step.
        rank, targets, dropout: of the LoRA adapters.
        layers: simulate only so many layers; None for all.
        recomputed: layers that are recomputed, from the first on, with checkpointing; None for all.
        stack: `trl` (fused head, our loop) or `hf_plain` (full logits, transformers' own loss).
    """

    model: Mapping[str, Any]
    micro: int
    tokens: int
    rank: int
    masked: bool = False
    accumulation: int = 1
    targets: tuple[str, ...] = ("all-linear",)
    dropout: float = 0.0
    quant: str = "nf4"
    double_quant: bool = True
    compute_dtype: str = "bf16"
    load_dtype: str = "bf16"
    adapter_dtype: str = "bf16"
    checkpointing: str = "full"
    stack: str = "trl"
    attention: str = "sdpa"
    layers: int | None = None
    recomputed: int | None = None

    def __post_init__(self) -> None:
        """Name everything that cannot be simulated."""
        problems = [
            Problem(where=name, found=f"{getattr(self, name)!r}", remedy=f"Use one of {', '.join(choices)}.")
            for name, choices in _CHOICES.items()
            if getattr(self, name) not in choices
        ]
        counts = {"micro": self.micro, "tokens": self.tokens, "rank": self.rank, "accumulation": self.accumulation}
        problems += [
            Problem(where=name, found=f"{value!r}", remedy="Give a count of at least 1.")
            for name, value in counts.items()
            if type(value) is not int or value < 1
        ]
        part = self.recomputed
        if part is not None and (type(part) is not int or part < 1 or self.checkpointing == "none"):
            found = f"{part!r} with checkpointing {self.checkpointing}"
            remedy = "Give a count of at least 1, with checkpointing full or selective."
            problems.append(Problem(where="recomputed", found=found, remedy=remedy))
        if not isinstance(self.model, Mapping) or "model_type" not in self.model:
            problems.append(
                Problem(where="model", found="no model_type", remedy="Give the content of the model's config.json.")
            )
        if problems:
            raise UserError(*problems)


def read_case(path: Path) -> Case:
    """Read a case.

    Raises:
        UserError: the file cannot be read or says what no case can say.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(Problem(where=str(path), found=str(error), remedy="Give a JSON file.")) from error
    names = [field.name for field in fields(Case)]
    needed = [name for name in ("model", "micro", "tokens", "rank") if not isinstance(body, dict) or name not in body]
    unknown = sorted(set(body) - set(names)) if isinstance(body, dict) else []
    if needed or unknown:
        found = f"missing: {', '.join(needed) or 'nothing'}; unknown: {', '.join(unknown) or 'nothing'}"
        raise UserError(Problem(where=str(path), found=found, remedy=f"The keys are {', '.join(names)}."))
    if "targets" in body:
        body["targets"] = tuple(body["targets"])
    return Case(**body)
