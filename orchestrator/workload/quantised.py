"""Weights that are quantised already: what `quantization_config` in config.json means for training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import Problem, UserError

_SHOWN: Final = 3
# What transformers cannot combine with a request for bitsandbytes, and who made it.
_WORDS: Final = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "mxfp4": "MXFP4",
    "fp8": "FP8",
    "compressed-tensors": "compressed-tensors",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "eetq": "EETQ",
    "torchao": "torchao",
}
_TYPES: Final = ("nf4", "fp4", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prequantised:
    """A checkpoint that bitsandbytes wrote: it loads as it is, whatever `base.quant` asks for.

    Attributes:
        quant: `nf4`, `fp4` or `int8`.
        double_quant: the scales are quantised too.
        skipped: modules it left alone (`llm_int8_skip_modules`); None for transformers' own choice.
        note: what to tell.
    """

    quant: str
    double_quant: bool
    skipped: tuple[str, ...] | None
    note: str


def prequantised(name: str, config: Mapping[str, object]) -> Prequantised | None:
    """Read `quantization_config`; None for ordinary weights.

    Raises:
        UserError: the weights are in a format that this project does not train on (GPTQ, AWQ, MXFP4, FP8, ...).
    """
    told = config.get("quantization_config")
    if not isinstance(told, Mapping):
        return None
    four, eight = bool(told.get("load_in_4bit")), bool(told.get("load_in_8bit"))
    method = str(told.get("quant_method") or "")
    if not (four or eight) or (method and "bitsandbytes" not in method):
        words = _WORDS.get(method, method or "an unnamed method")
        raise UserError(
            Problem(
                where=f"model {name}",
                found=f"its weights are quantised by {words}; this project trains on 16-bit weights or on 4- and "
                "8-bit weights of bitsandbytes",
                remedy="Take the model's 16-bit weights (or a copy dequantised to bf16) and set base.quant=nf4.",
            )
        )
    quant = str(told.get("bnb_4bit_quant_type") or "fp4") if four else "int8"
    if quant not in _TYPES:
        raise UserError(
            Problem(
                where=f"model {name}, quantization_config",
                found=f"bnb_4bit_quant_type is {quant!r}",
                remedy="bitsandbytes writes nf4 or fp4. Take the file from the model's own folder.",
            )
        )
    modules = told.get("llm_int8_skip_modules")
    skipped = tuple(str(x) for x in modules) if isinstance(modules, list | tuple) else None
    kept = ""
    if skipped:
        more = f" and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        kept = f" It left {', '.join(skipped[:_SHOWN])}{more} in 16 bits."
    return Prequantised(
        quant=quant,
        double_quant=four and bool(told.get("bnb_4bit_use_double_quant")),
        skipped=skipped,
        note=f"The weights are {quant} of bitsandbytes already and load as they are: base.quant has no say.{kept}",
    )
