"""The base's tensors as they are merged into: as stored, or as the 4- and 8-bit weights that were trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils.quantization_config import QuantizationConfigMixin

from orchestrator.weights.checkpoint import ByteReader, Checkpoint, open_checkpoint
from orchestrator.weights.jobs import STORED_TYPES, Input, Job, JobPlan, refuse_missing
from orchestrator.weights.layout import Role
from orchestrator.weights.packing import Packing, nested_code, pack, packings
from orchestrator.weights.produce import part_bytes
from orchestrator.weights.skeleton import BaseSource, empty_model

_INT8_STEPS = 127.0  # an int8 weight is a whole number of 127ths of its row's largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How the run held the base.

    Attributes:
        dtype: of the arithmetic, in which weights were loaded.
        quantization: what bitsandbytes was asked for; None where the weights stayed in `dtype`.
    """

    dtype: torch.dtype
    quantization: QuantizationConfigMixin | None


class Base:
    """Tensors of a base, read when they are asked for."""

    def __init__(self, source: BaseSource, trained: Trained | None) -> None:
        """Open the files and build the modules; no weight is read.

        Args:
            source: the model, in the type that is to be written.
            trained: how the run held it; None to take the weights as they are stored.

        Raises:
            UserError: no safetensors, or weights that do not make up the model.
        """
        self.checkpoint: Checkpoint = open_checkpoint(source.folder)
        self.model: PreTrainedModel
        self.plan: JobPlan
        self.model, self.plan, _ = empty_model(source, self.checkpoint)
        refuse_missing(self.model, self.plan.missing)
        self._reader = ByteReader(self.checkpoint.files)
        self._kinds: dict[str, Packing] = {}
        self._turned: set[str] = set()
        self._types: dict[str, torch.dtype] = {}
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if trained is not None:
            self._take_types(replace(source, dtype=trained.dtype, quantization=trained.quantization))

    def _take_types(self, source: BaseSource) -> None:
        model, plan, _ = empty_model(source, self.checkpoint)
        self._kinds = packings(model, plan, self.checkpoint) if source.quantization is not None else {}
        self._types = {x.stored.name: x.result_type for job in plan.jobs for x in job.inputs}
        for name in self._kinds:
            module = model.get_submodule(name.rpartition(".")[0])
            if issubclass(getattr(module, "source_cls", type(module)), Conv1D):
                self._turned.add(name)

    @property
    def reader(self) -> ByteReader:
        """Of the checkpoint's files."""
        return self._reader

    @property
    def quantised(self) -> frozenset[str]:
        """Parameters that the run held in 4 or 8 bits."""
        return frozenset(self._kinds)

    def values(self, job: Job) -> dict[str, torch.Tensor]:
        """Return the parameters of a job in fp32, as they are to be merged into.

        Raises:
            UserError: files that cannot be read.
        """
        tensors = [self._read(x) for x in job.inputs]
        made = {job.first: tensors.pop()} if job.is_plain else job.run(tensors, self.model)
        return {name: self._as_trained(name, value).float() for name, value in made.items()}

    def _read(self, x: Input) -> torch.Tensor:
        stored = x.stored
        memory = torch.empty(stored.nbytes, dtype=torch.uint8)
        self._reader.read_into(stored.file, stored.begin, memory.numpy().data)
        values = memory.view(STORED_TYPES[stored.dtype]).view(stored.shape)
        return values.to(self._types.get(stored.name, values.dtype))

    def _as_trained(self, name: str, values: torch.Tensor) -> torch.Tensor:
        kind = self._kinds.get(name)
        if kind is None:
            return values
        if name not in self._turned:
            return rounded(values, kind, self._device)
        return rounded(values.T, kind, self._device).T.contiguous()  # bitsandbytes holds it the other way round

    def close(self) -> None:
        """Close all files."""
        self._reader.close()


def rounded(values: torch.Tensor, kind: Packing, device: torch.device) -> torch.Tensor:
    """Return a weight as it is after bitsandbytes has packed and unpacked it, on the CPU.

    Args:
        values: (out, in), in the type that the run gave to bitsandbytes.
        kind: how it packs.
        device: where it packs.
    """
    parts = {role: torch.empty(nbytes, dtype=torch.uint8, device=device) for role, nbytes in part_bytes(kind).items()}
    pack(values, kind, parts)
    if kind.quant_type == "int8":
        scale = parts[Role.int8_scale].view(torch.float32).view(-1, 1)
        return (parts[Role.int8].view(torch.int8).view(kind.shape).float() * (scale / _INT8_STEPS)).cpu()
    absmax = parts[Role.absmax]
    state = QuantState(
        absmax=absmax if kind.nested_block else absmax.view(torch.float32),
        shape=torch.Size(kind.shape),
        code=bnb.functional.get_4bit_type(kind.quant_type, device=device),
        blocksize=kind.block,
        quant_type=kind.quant_type,
        dtype=kind.dtype,
    )
    if kind.nested_block:
        state.nested = True
        state.offset = parts[Role.nested_offset].view(torch.float32).view(())
        state.state2 = QuantState(
            absmax=parts[Role.nested_absmax].view(torch.float32),
            code=nested_code(device),
            blocksize=kind.nested_block,
            dtype=torch.float32,
        )
    found: torch.Tensor = bnb.functional.dequantize_4bit(parts[Role.packed].view(-1, 1), state)
    return found.cpu()


def source_of(folder: Path, dtype: torch.dtype, *, trust_remote_code: bool) -> BaseSource:
    """Return a folder's model in a type, on the CPU, without quantisation."""
    cpu = torch.device("cpu")
    return BaseSource(folder=folder, dtype=dtype, quantization=None, device=cpu, trust_remote_code=trust_remote_code)
