"""Model shapes of a folder: computed from config.json and checked against the weights' headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.errors import Problem, UserError
from orchestrator.workload.agreement import disagreements
from orchestrator.workload.families import SUPPORTED, is_known, shape_from_config
from orchestrator.workload.files import TensorInfo, read_config, read_headers
from orchestrator.workload.layout import Config
from orchestrator.workload.model import ModelShape
from orchestrator.workload.not_decoders import refuse_others
from orchestrator.workload.quantised import prequantised
from orchestrator.workload.unknown import Uncountable, shape_from_headers
from orchestrator.workload.wrappers import language_part

_FLOATS: Final = frozenset({"BF16", "F16", "F32", "F64"})
_SHOWN: Final = 5
__all__ = ["Uncountable", "load_shape"]


def load_shape(folder: Path, name: str = "", *, without_weights: bool = False) -> ModelShape:
    """Shape of the model in `folder`: computed from config.json and checked against its weights.

    Args:
        folder: of the model.
        name: what to call it.
        without_weights: go by config.json alone (for a plan, where some or all of the weights are not there).

    Raises:
        Uncountable: the architecture is neither known nor clear from the headers; the meta device can tell.
        UserError: files are missing or damaged, disagree, or hold weights that cannot be trained on.
    """
    try:
        return _load_shape(folder, name, {} if without_weights else read_headers(folder))
    except ValueError as error:  # counts that no shape can have
        raise UserError(
            Problem(
                where=str(folder / "config.json"),
                found=str(error).rstrip(". "),
                remedy="Take config.json and the weights from the model's own folder.",
            )
        ) from error


def _load_shape(folder: Path, name: str, tensors: Mapping[str, TensorInfo]) -> ModelShape:
    config = read_config(folder)
    name = name or folder.name
    kind = config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        found = f"model_type {kind!r} is no name of an architecture"
        remedy = "Take the file from the model's own folder."
        raise UserError(Problem(where=str(folder / "config.json"), found=found, remedy=remedy))
    refuse_others(name, config)
    told = prequantised(name, config)
    quantised = sorted({info.dtype for info in tensors.values()} - _FLOATS)
    if quantised and not told and any(tensors[key].dtype in quantised for key in _weights(tensors)):
        raise _refused(name, f"its weights hold {', '.join(quantised)}: they are quantised already")
    if not is_known(config):
        return replace(shape_from_headers(name, config, tensors), stored=_stored(tensors))
    try:
        shape = shape_from_config(name, config)
    except UserError as error:
        # Inside a wrapper, files leave out whatever equals a default that only transformers knows.
        raise Uncountable(*error.problems) if language_part(config) else error from error
    return replace(shape, stored=_stored(tensors)) if _agree(shape, config, tensors, folder) else shape


def _weights(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Names of parameters; masks of old checkpoints are stored as U8 buffers."""
    return [name for name in tensors if not name.endswith((".attn.bias", ".masked_bias", ".attention.bias"))]


def _stored(tensors: Mapping[str, TensorInfo]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for info in tensors.values():
        counts[info.dtype] += info.elements
    return tuple(counts.most_common())


def _agree(shape: ModelShape, config: Config, tensors: Mapping[str, TensorInfo], folder: Path) -> bool:
    """Whether there are weights, which then agree.

    Raises:
        UserError: they do not, with the first disagreements.
    """
    if not tensors:
        return False
    spare = config.get("num_nextn_predict_layers")
    faults = disagreements(shape, tensors, spare_layers=spare if isinstance(spare, int) else 0)
    if faults:
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise UserError(
            Problem(
                where=str(folder),
                found=f"config.json and the weights disagree: {'; '.join(faults[:_SHOWN])}{more}",
                remedy="Download or save the model again.",
            )
        )
    return True


def _refused(name: str, found: str) -> UserError:
    remedy = f"Use 16- or 32-bit weights of a dense decoder; known from config.json: {', '.join(SUPPORTED)}."
    return UserError(Problem(where=f"model {name}", found=found, remedy=remedy))
