"""The base model without its weights: every module in its place, no memory behind the parameters.

transformers builds it, through `from_pretrained` with the reading of weights left out. So modules, types, buffers,
attention, generation settings and what bitsandbytes replaces are those of an ordinary load, for every family.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.loading_report import LoadStateDictInfo
from transformers.utils.quantization_config import QuantizationConfigMixin

from orchestrator.errors import Problem, UserError
from orchestrator.weights.checkpoint import Checkpoint
from orchestrator.weights.jobs import JobPlan, plan_jobs
from orchestrator.weights.layers import FrozenParameter, decoder_layers, frozen_places, settle_biases
from orchestrator.weights.layout import BaseLayout
from orchestrator.weights.packing import Packing, nested_code, packings
from orchestrator.weights.views import declare

_HOOK: Final = "_load_pretrained_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSource:
    """Which base, and how it is held.

    Attributes:
        folder: of the model.
        dtype: in which weights are loaded.
        quantization: what bitsandbytes is asked for; None leaves the weights in the load type.
        device: of this rank.
        attention: implementation; empty for the library's choice.
        trust_remote_code: the folder's own code may run.
    """

    folder: Path
    dtype: torch.dtype
    quantization: QuantizationConfigMixin | None
    device: torch.device
    attention: str = ""
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """The model, and where its frozen bytes go.

    Attributes:
        model: with parameters that have a type and a shape, but no memory of their own.
        plan: how its parameters are made from what is stored.
        kinds: how quantised parameters are packed, by full name.
        expected: all that the model holds, by full name, on the meta device.
        types: of what is not packed, by full name.
        layers: the decoder layers.
        places: frozen parameters of each layer.
        names: full name of each such parameter, to its layer and name in it.
        layout: of the layers' bytes.
    """

    model: PreTrainedModel
    plan: JobPlan
    kinds: dict[str, Packing]
    expected: dict[str, torch.Tensor]
    types: dict[str, torch.dtype]
    layers: nn.ModuleList
    places: list[list[FrozenParameter]]
    names: dict[str, tuple[int, str]]
    layout: BaseLayout


def build_skeleton(source: BaseSource, checkpoint: Checkpoint) -> Skeleton:
    """Build the model without reading a weight.

    Raises:
        UserError: a model that transformers cannot build, one without a list of decoder layers, or weights that do
            not make up the model.
    """
    model, plan, expected = empty_model(source, checkpoint)
    for module in model.modules():
        # Its repacked layout for some CPUs would replace the stored bytes.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 - a plain attribute, no tensor
    kinds = packings(model, plan, checkpoint)
    types = {name: job.inputs[0].result_type for job in plan.jobs for name in job.targets}
    layers = decoder_layers(model)
    for path, module in model.named_modules():
        for attribute in list(module._parameters):  # noqa: SLF001 - the parameters themselves
            name = f"{path}.{attribute}" if path else attribute
            _stand_in(module, attribute, kinds.get(name), types.get(name), source.device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    settle_biases(layers)
    places = frozen_places(model, layers)
    full = {id(parameter): name for name, parameter in model.named_parameters()}
    # bitsandbytes' modules want some of them in another type than the load's.
    types |= {full[id(place.parameter)]: place.parameter.dtype for found in places for place in found}
    names = {full[id(place.parameter)]: (at, place.name) for at, found in enumerate(places) for place in found}
    if tied := sorted(set(model.all_tied_weights_keys).intersection(names)):
        raise unfit(source, f"{tied[0]} is tied to another parameter")
    layout = BaseLayout(extents=tuple(declare(found) for found in places))
    return Skeleton(
        model=model,
        plan=plan,
        kinds=kinds,
        expected=expected,
        types=types,
        layers=layers,
        places=places,
        names=names,
        layout=layout,
    )


def empty_model(source: BaseSource, checkpoint: Checkpoint) -> tuple[PreTrainedModel, JobPlan, dict[str, torch.Tensor]]:
    """Build the modules on the meta device.

    Returns:
        The model, how its parameters are made from what is stored, and all it holds, by full name.

    Raises:
        UserError: transformers cannot build it.
    """
    kwargs: dict[str, Any] = {
        "dtype": source.dtype,
        "trust_remote_code": source.trust_remote_code,
        "local_files_only": True,
        "use_safetensors": True,
    }
    if source.attention:
        kwargs["attn_implementation"] = source.attention
    if source.quantization is not None:
        kwargs["quantization_config"] = source.quantization
    if source.device.type == "cuda":
        kwargs["device_map"] = {"": source.device.index or 0}
    with _without_weights(checkpoint) as kept:
        try:
            model = AutoModelForCausalLM.from_pretrained(str(source.folder), **kwargs)
        except (torch.OutOfMemoryError, MemoryError, UserError):
            raise
        except Exception as error:  # libraries raise all kinds for a model they do not know
            reason = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise unfit(source, f"its modules could not be built ({type(error).__name__}: {reason})") from error
    return model, *kept[0]


def unfit(source: BaseSource, found: str) -> UserError:
    """A model that only a whole copy on each rank can serve."""
    remedy = "Check that this version of transformers knows the model, or use engine=ddp."
    return UserError(Problem(where=f"model {source.folder}", found=found, remedy=remedy))


@contextmanager
def _without_weights(checkpoint: Checkpoint) -> Iterator[list[tuple[JobPlan, dict[str, torch.Tensor]]]]:
    """Let `from_pretrained` plan the reading of the weights instead of reading them.

    Raises:
        UserError: this version of transformers has another way to load.
    """
    original = PreTrainedModel.__dict__.get(_HOOK)
    if not isinstance(original, staticmethod):
        found = f"this version of transformers has no {_HOOK}"
        raise UserError(Problem(where="engine=streamed", found=found, remedy="Install transformers 5.24, or use ddp."))
    kept: list[tuple[JobPlan, dict[str, torch.Tensor]]] = []

    def plan_only(model: Any, _state: object, _files: object, config: Any, *_: object) -> tuple[Any, None]:  # noqa: ANN401
        expected = model.state_dict()
        kept.append((plan_jobs(model, config, expected, checkpoint), expected))
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.device.type == "meta":
                tensor._is_hf_initialized = True  # noqa: SLF001 - lest it is filled at random
        for name, _ in model.named_non_persistent_buffers():
            del model.get_buffer(name)._is_hf_initialized  # noqa: SLF001 - these are not stored: the modules fill them
        names = ("missing_keys", "unexpected_keys", "mismatched_keys", "skipped_pp_keys")
        nothing: dict[str, Any] = {name: set() for name in names}
        return LoadStateDictInfo(**nothing, error_msgs=[], conversion_errors={}), None

    setattr(PreTrainedModel, _HOOK, staticmethod(plan_only))
    try:
        yield kept
    finally:
        setattr(PreTrainedModel, _HOOK, original)


def _stand_in(
    module: nn.Module, name: str, kind: Packing | None, dtype: torch.dtype | None, device: torch.device
) -> None:
    """Replace a parameter on the meta device by one of the same kind that can later be given memory."""
    parameter = module._parameters[name]  # noqa: SLF001 - the parameter itself
    if parameter is None or parameter.device.type != "meta":
        return
    made: nn.Parameter
    if kind is None:
        made = nn.Parameter(hollow(tuple(parameter.shape), dtype or parameter.dtype, device), requires_grad=False)
    elif kind.quant_type == "int8":
        data, scale = hollow(kind.shape, torch.int8, device), hollow(kind.shape[:1], torch.float32, device)
        made = bnb.nn.Int8Params(data, requires_grad=False, CB=data, SCB=scale)
    else:
        made = _packed(module, kind, device)
    module._parameters[name] = made  # noqa: SLF001 - as torch's own setattr would


def _packed(module: Any, kind: Packing, device: torch.device) -> nn.Parameter:  # noqa: ANN401 - Linear4bit
    state = QuantState(
        absmax=hollow((kind.blocks,), torch.uint8 if kind.nested_block else torch.float32, device),
        shape=torch.Size(kind.shape),
        code=bnb.functional.get_4bit_type(kind.quant_type, device=device),
        blocksize=kind.block,
        quant_type=kind.quant_type,
        dtype=kind.dtype,
    )
    if kind.nested_block:
        state.nested = True
        state.offset = torch.zeros((), dtype=torch.float32, device=device)
        state.state2 = QuantState(
            absmax=hollow((-(-kind.blocks // kind.nested_block),), torch.float32, device),
            code=nested_code(device),
            blocksize=kind.nested_block,
            dtype=torch.float32,
        )
    storage = module.weight.quant_storage
    made: nn.Parameter = bnb.nn.Params4bit(
        hollow((-(-kind.elements // 2) // storage.itemsize, 1), storage, device),
        requires_grad=False,
        quant_state=state,
        blocksize=kind.block,
        compress_statistics=bool(kind.nested_block),
        quant_type=kind.quant_type,
        quant_storage=storage,
        module=module,
        bnb_quantized=True,
    )
    module.quant_state = state
    return made


def hollow(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of that shape whose elements are all the same single one in memory."""
    return torch.zeros((1,) * len(shape), dtype=dtype, device=device).expand(shape)
