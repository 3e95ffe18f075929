"""Which stored tensors make which parameter, as transformers would load them: renamed, fused, split, cast.

A job turns some stored tensors into some parameters. Jobs are independent of each other, so that any rank can do any
of them, one at a time. Their conversions are transformers' own; what it would leave to chance is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from orchestrator.errors import Problem, UserError
from orchestrator.weights.checkpoint import Checkpoint, StoredTensor

STORED_TYPES: Final[Mapping[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A stored tensor, and how its job takes it.

    Attributes:
        stored: where it is.
        pattern: under which the conversion expects it.
        dtype: it is cast to this first; None leaves it as it is.
    """

    stored: StoredTensor
    pattern: str
    dtype: torch.dtype | None

    @property
    def result_type(self) -> torch.dtype:
        """Type after the cast."""
        return self.dtype or STORED_TYPES[self.stored.dtype]


@dataclass(slots=True, kw_only=True)
class Job:
    """Stored tensors that make parameters together.

    Attributes:
        first: name of the first parameter.
        targets: names of all parameters.
        inputs: what they are made from.
        transform: transformers' conversion, without tensors.
        quantises: bitsandbytes packs the result.
    """

    first: str
    transform: Any
    quantises: bool
    inputs: list[Input] = field(default_factory=list)
    targets: tuple[str, ...] = ()

    @property
    def read_bytes(self) -> int:
        """Bytes of the stored tensors."""
        return sum(x.stored.nbytes for x in self.inputs)

    @property
    def is_plain(self) -> bool:
        """One stored tensor is the parameter, under whatever name (some are renamed one by one by the quantiser)."""
        operations = getattr(self.transform, "operations", ())
        return len(self.inputs) == 1 and all(getattr(x, "hf_quantizer", None) for x in operations)

    def run(self, tensors: list[torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
        """Convert the stored tensors (in the order of `inputs`, cast already); the list is emptied.

        Raises:
            UserError: the conversion fails, or makes something else than was planned.
        """
        transform = deepcopy(self.transform)
        for at, x in enumerate(self.inputs):
            transform.add_tensor(self.first, x.stored.name, x.pattern, _Once(tensors, at))
        try:
            made = transform.convert(self.first, model=model, config=model.config, hf_quantizer=None, loading_info=None)
        except Exception as error:  # conversions raise all kinds
            raise _unfit(self.first, f"converting {self._words} failed ({type(error).__name__}: {error})") from error
        found = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
        if set(found) != set(self.targets):
            raise _unfit(self.first, f"converting {self._words} made {sorted(found)}, not {sorted(self.targets)}")
        return found

    @property
    def _words(self) -> str:
        names = ", ".join(x.stored.name for x in self.inputs[:2])
        return names + (f" and {len(self.inputs) - 2} more" if len(self.inputs) > 2 else "")  # noqa: PLR2004 - as many as shown


class _Once:
    """Gives a tensor away, so that the conversion alone holds it."""

    def __init__(self, tensors: list[torch.Tensor], at: int) -> None:
        self._tensors, self._at = tensors, at

    def __call__(self) -> torch.Tensor:
        found = self._tensors[self._at]
        self._tensors[self._at] = torch.empty(0)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """All jobs of a checkpoint.

    Attributes:
        jobs: every parameter that the checkpoint holds is made by one of them.
        missing: parameters that it does not hold.
        unused: stored tensors that the model has no use for.
    """

    jobs: tuple[Job, ...]
    missing: frozenset[str]
    unused: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What transformers asks a stored tensor for its type."""

    dtype: str

    def get_dtype(self) -> str:
        return self.dtype


def plan_jobs(model: Any, config: Any, expected: Mapping[str, torch.Tensor], checkpoint: Checkpoint) -> JobPlan:  # noqa: ANN401
    """Assign every stored tensor to a job.

    Args:
        model: on the meta device, with the modules of bitsandbytes in place.
        config: how transformers would load it (`LoadStateDictConfig`).
        expected: what the model holds, by name, on the meta device.
        checkpoint: what is stored.

    Raises:
        UserError: types that cannot be read, or conversions whose result cannot be told beforehand.
    """
    mapping = config.weight_mapping or []
    renamings = [x for x in mapping if isinstance(x, WeightRenaming)]
    converters = [x for x in mapping if isinstance(x, WeightConverter)]
    by_pattern = {pattern: x for x in converters for pattern in x.source_patterns}
    prefix = model.base_model_prefix
    jobs: dict[str, Job] = {}
    unused: list[str] = []
    for name in sorted(checkpoint.tensors, key=dot_natural_key):
        stored = checkpoint.tensors[name]
        target, pattern = rename_source_key(name, renamings, converters, prefix, expected)
        if target not in expected and name in expected:
            target, pattern = rename_source_key(name, [], [], base_model_prefix=prefix, meta_state_dict=expected)
        if target not in expected:
            unused.append(name)
            continue
        if stored.dtype not in STORED_TYPES:
            raise _unfit(name, f"its type {stored.dtype} is not known here")
        if target not in jobs:
            transform = WeightRenaming(name, target) if pattern is None else deepcopy(by_pattern[pattern])
            job = Job(first=target, transform=transform, quantises=_quantises(config, model, target))
            job.targets = _targets(job, expected)
            jobs[target] = job
        job = jobs[target]
        dtype = _cast(config, expected[target], target, job, stored)
        job.inputs.append(Input(stored=stored, pattern=pattern or name, dtype=dtype))
    made = {name for job in jobs.values() for name in job.targets}
    return JobPlan(jobs=tuple(jobs.values()), missing=frozenset(set(expected) - made), unused=_unused(model, unused))


def _quantises(config: Any, model: Any, target: str) -> bool:  # noqa: ANN401
    quantizer = config.hf_quantizer
    return bool(quantizer and not quantizer.pre_quantized and quantizer.param_needs_quantization(model, target))


def _targets(job: Job, expected: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    if isinstance(job.transform, WeightRenaming):
        return (job.first,)
    patterns = job.transform.target_patterns
    found = tuple(job.first.replace(patterns[0], pattern) for pattern in patterns)
    strangers = [name for name in found if name not in expected]
    if strangers:
        raise _unfit(job.first, f"the conversion makes {', '.join(strangers[:_SHOWN])}, which the model does not hold")
    return found


def _cast(
    config: Any,  # noqa: ANN401
    parameter: torch.Tensor,
    target: str,
    job: Job,
    stored: StoredTensor,
) -> torch.dtype | None:
    """Type that a stored tensor is cast to first, as in transformers' `convert_and_load_state_dict_in_model`."""
    dtype: torch.dtype | None = config.dtype
    planned = next((kind for name, kind in (config.dtype_plan or {}).items() if _matches(name, target)), None)
    if planned is not None:
        dtype = planned
    elif parameter.dtype != dtype and not job.quantises:
        dtype = parameter.dtype
    quantizer = config.hf_quantizer
    if quantizer and quantizer.pre_quantized:
        dtype = quantizer.get_new_dtype(job.transform, _Stored(dtype=stored.dtype), dtype)
    return dtype


def _matches(pattern: str, target: str) -> bool:
    return re.search(pattern.replace("*", r".*"), target) is not None


def _unused(model: Any, names: Iterable[str]) -> tuple[str, ...]:  # noqa: ANN401
    """Leave out what transformers expects to be of no use, such as buffers of old checkpoints."""
    known = [*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"]  # noqa: SLF001
    return tuple(name for name in names if not any(re.search(pattern, name) for pattern in known))


def refuse_missing(model: Any, missing: Iterable[str]) -> None:  # noqa: ANN401
    """Refuse a checkpoint that leaves parameters to chance; tied ones need only one of them.

    Raises:
        UserError: some are missing.
    """
    missing = frozenset(missing)
    sources: dict[str, set[str]] = {}
    for target, source in model.all_tied_weights_keys.items():
        sources.setdefault(source, {source}).add(target)
    tied = {name for group in sources.values() if not group <= missing for name in group}
    lost = sorted(missing - tied)
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        found = f"its weights lack {', '.join(lost[:_SHOWN])}{more}"
        remedy = "Download or save the model again; a base with random weights is no base to train on."
        raise UserError(Problem(where=f"model {model.config.name_or_path}", found=found, remedy=remedy))


def _unfit(name: str, found: str) -> UserError:
    remedy = "Save the model once with transformers' save_pretrained, or use engine=ddp."
    return UserError(Problem(where=f"weights, {name}", found=found, remedy=remedy))
