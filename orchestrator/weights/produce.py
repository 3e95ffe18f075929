"""One batch on the rank that reads it: stored tensors in, the bytes of parameters out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from orchestrator.errors import Problem, UserError
from orchestrator.weights.checkpoint import ByteReader
from orchestrator.weights.jobs import STORED_TYPES, Input, Job
from orchestrator.weights.layout import Role, aligned
from orchestrator.weights.packing import Packing, check_tables, pack
from orchestrator.weights.skeleton import Skeleton

Made = dict[str, dict[Role, torch.Tensor]]  # flat bytes of each part of each parameter
_STORED_PARTS = {"absmax": Role.absmax, "nested_absmax": Role.nested_absmax, "SCB": Role.int8_scale}


class Scratch:
    """Memory that is used again and again, and grows to the most that was ever asked for."""

    def __init__(self, device: torch.device) -> None:
        """Hold nothing yet."""
        self._device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._used = 0

    def clear(self) -> None:
        """All of it is free again."""
        self._used = 0

    def reserve(self, nbytes: int) -> None:
        """Make room for so many bytes; what is there is lost."""
        self._used = 0
        if self._memory.numel() < nbytes:
            self._memory = torch.empty(0, dtype=torch.uint8, device=self._device)  # let go before asking for more
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return flat bytes of the room that was reserved."""
        begin = self._used
        self._used = begin + aligned(nbytes)
        if self._used > self._memory.numel():
            raise RuntimeError("more scratch memory is taken than was reserved")
        return self._memory[begin : begin + nbytes]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._memory.numel()


class Producer:
    """Reads and packs batches, one at a time."""

    def __init__(
        self, skeleton: Skeleton, reader: ByteReader, device: torch.device, resident: Callable[[str], torch.Tensor]
    ) -> None:
        """Take what all batches need.

        Args:
            skeleton: tells what the parameters are to be.
            reader: of the checkpoint's files.
            device: where packed bytes are made.
            resident: memory, as flat bytes, of a parameter that every rank holds.
        """
        self._skeleton, self._reader, self._device, self._resident = skeleton, reader, device, resident
        self.raw, self.made = Scratch(torch.device("cpu")), Scratch(device)

    def run(self, batch: Sequence[Job]) -> Made:
        """Do the jobs of a batch; the bytes are good until the next one.

        Raises:
            UserError: files that cannot be read, or weights that do not fit the model.
        """
        self.raw.reserve(raw_bytes(self._skeleton, batch, self._device))
        self.made.reserve(made_bytes(self._skeleton, batch, self._device))
        found: Made = {}
        for job in batch:
            found |= self._run(job)
        return found

    def _run(self, job: Job) -> Made:
        kinds = self._skeleton.kinds
        if job.first in kinds and not job.quantises:
            return {job.first: self._packed_already(job, kinds[job.first])}
        if is_direct(self._skeleton, job, self._device):
            target = self._resident(job.first)
            stored = job.inputs[0].stored
            self._reader.read_into(stored.file, stored.begin, target.numpy().data)
            return {job.first: {Role.plain: target}}
        values = {job.first: self._read(job.inputs[0])} if job.is_plain else self._converted(job)
        if job.quantises:
            return {name: self._pack(name, values[name], kinds[name]) for name in job.targets}
        return {name: {Role.plain: self._plain(name, values[name], job)} for name in job.targets}

    def _read(self, x: Input, *, fresh: bool = False) -> torch.Tensor:
        stored = x.stored
        memory = torch.empty(stored.nbytes, dtype=torch.uint8) if fresh else self.raw.take(stored.nbytes)
        self._reader.read_into(stored.file, stored.begin, memory.numpy().data)
        return memory.view(STORED_TYPES[stored.dtype]).view(stored.shape)

    def _converted(self, job: Job) -> dict[str, torch.Tensor]:
        tensors = [self._read(x, fresh=True).to(x.result_type) for x in job.inputs]
        return job.run(tensors, self._skeleton.model)

    def _pack(self, name: str, values: torch.Tensor, kind: Packing) -> dict[Role, torch.Tensor]:
        module = self._skeleton.model.get_submodule(name.rpartition(".")[0])
        if issubclass(getattr(module, "source_cls", type(module)), Conv1D):
            values = values.T  # stored the other way round
        self._check(name, values.shape, kind.shape)
        into = {role: self.made.take(nbytes) for role, nbytes in part_bytes(kind).items()}
        pack(values, kind, into)
        return into

    def _plain(self, name: str, values: torch.Tensor, job: Job) -> torch.Tensor:
        self._check(name, values.shape, self._skeleton.expected[name].shape)
        dtype = self._skeleton.types[name]
        if values.dtype == dtype and values.device == self._device:
            return flat_bytes(values)
        target = self.made.take(values.numel() * dtype.itemsize) if job.is_plain else None
        if target is None:
            return flat_bytes(values.to(self._device, dtype))
        target.view(dtype).view(values.shape).copy_(values)
        return target

    def _packed_already(self, job: Job, kind: Packing) -> dict[Role, torch.Tensor]:
        """Take what bitsandbytes wrote as it is."""
        found: dict[Role, torch.Tensor] = {}
        tables: dict[str, torch.Tensor] = {}
        for x in job.inputs:
            suffix = x.stored.name.rpartition(".")[2]
            is_note = suffix.startswith("bitsandbytes__")
            values = self._read(x)
            if is_note:
                told = json.loads(bytes(values.numpy()))
                self._check_note(job.first, told, kind)
                if kind.nested_block:
                    offset = torch.tensor(float(told["nested_offset"]), dtype=torch.float32)
                    found[Role.nested_offset] = offset.view(1).view(torch.uint8)
            elif suffix in {"quant_map", "nested_quant_map"}:
                tables[suffix] = values
            elif suffix in _STORED_PARTS:
                found[_STORED_PARTS[suffix]] = flat_bytes(values)
            elif suffix == "weight":
                found[Role.int8 if kind.quant_type == "int8" else Role.packed] = flat_bytes(values)
        check_tables(job.first, kind, tables)
        wanted = part_bytes(kind)
        sizes = {role: part.numel() for role, part in found.items()}
        if sizes != wanted:
            raise _unfit(job.first, f"packed parts of {sizes} bytes, where {wanted} are expected")
        return {role: self._moved(found[role]) for role in wanted}

    def _moved(self, part: torch.Tensor) -> torch.Tensor:
        if part.device == self._device:
            return part
        target = self.made.take(part.numel())
        target.copy_(part)
        return target

    def _check_note(self, name: str, told: Mapping[str, Any], kind: Packing) -> None:
        shape = tuple(told.get("shape", ()))
        if shape != kind.shape or told.get("blocksize") != kind.block:
            raise _unfit(name, f"packed weights of shape {shape} in blocks of {told.get('blocksize')}")

    @staticmethod
    def _check(name: str, found: Sequence[int], expected: Sequence[int]) -> None:
        if tuple(found) != tuple(expected):
            raise _unfit(name, f"a shape of {tuple(found)}, where the model has {tuple(expected)}")


def flat_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes; a view where it is contiguous."""
    return values.detach().contiguous().view(-1).view(torch.uint8)


def part_bytes(kind: Packing) -> dict[Role, int]:
    """Bytes of each part of a packed weight."""
    if kind.quant_type == "int8":
        return {Role.int8: kind.elements, Role.int8_scale: 4 * kind.shape[0]}
    packed = {Role.packed: -(-kind.elements // 2)}
    if not kind.nested_block:
        return packed | {Role.absmax: 4 * kind.blocks}
    nested = {Role.nested_absmax: 4 * -(-kind.blocks // kind.nested_block), Role.nested_offset: 4}
    return packed | {Role.absmax: kind.blocks} | nested


def target_parts(skeleton: Skeleton, name: str) -> dict[Role, int]:
    """Bytes of each part of any parameter."""
    kind = skeleton.kinds.get(name)
    if kind is not None:
        return part_bytes(kind)
    return {Role.plain: skeleton.expected[name].numel() * skeleton.types[name].itemsize}


def is_direct(skeleton: Skeleton, job: Job, device: torch.device) -> bool:
    """Whether a parameter that stays whole can be read straight into its place."""
    is_resident = job.first not in skeleton.names and job.first not in skeleton.kinds
    if not (is_resident and job.is_plain and device.type == "cpu"):
        return False
    stored = job.inputs[0].stored
    same_shape = tuple(stored.shape) == tuple(skeleton.expected[job.first].shape)
    return same_shape and STORED_TYPES[stored.dtype] == skeleton.types[job.first]


def raw_bytes(skeleton: Skeleton, batch: Sequence[Job], device: torch.device) -> int:
    """Host memory for what a batch reads, without conversions, which have memory of their own."""
    return sum(
        aligned(x.stored.nbytes)
        for job in batch
        if _is_staged(skeleton, job) and not is_direct(skeleton, job, device)
        for x in job.inputs
    )


def _is_staged(skeleton: Skeleton, job: Job) -> bool:
    return job.is_plain or (job.first in skeleton.kinds and not job.quantises)


def made_bytes(skeleton: Skeleton, batch: Sequence[Job], device: torch.device) -> int:
    """Memory on the device for what a batch makes, where it is not what was read."""
    return sum(
        aligned(nbytes)
        for job in batch
        if _is_made_anew(skeleton, job, device)
        for name in job.targets
        for nbytes in target_parts(skeleton, name).values()
    )


def _is_made_anew(skeleton: Skeleton, job: Job, device: torch.device) -> bool:
    if job.first in skeleton.kinds:
        return job.quantises or device.type != "cpu"
    if is_direct(skeleton, job, device) or not job.is_plain:
        return False
    return device.type != "cpu" or STORED_TYPES[job.inputs[0].stored.dtype] != skeleton.types[job.first]


def _unfit(name: str, found: str) -> UserError:
    remedy = "Download or save the model again."
    return UserError(Problem(where=f"weights, {name}", found=found, remedy=remedy))
