"""How bitsandbytes packs a weight: planned from the modules or told by a checkpoint; and the packing itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import bitsandbytes as bnb
import torch

from orchestrator.errors import Problem, UserError
from orchestrator.weights.checkpoint import ByteReader, Checkpoint
from orchestrator.weights.jobs import Job, JobPlan
from orchestrator.weights.layout import Role
from orchestrator.weights.load_bytes import PORTION

BLOCK: Final = 64  # weights that share a scale, in bitsandbytes' own choice
NESTED_BLOCK: Final = 256  # scales that share one under double quantisation
_INT8: Final = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How one weight is packed.

    Attributes:
        quant_type: `nf4`, `fp4` or `int8`.
        shape: of the weight before packing.
        dtype: of the weight before packing, and after unpacking.
        block: weights that share a scale (4-bit).
        nested_block: scales that share one under double quantisation; 0 without.
    """

    quant_type: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    block: int = BLOCK
    nested_block: int = 0

    @property
    def elements(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def blocks(self) -> int:
        """Number of scales."""
        return -(-self.elements // self.block)


def packings(model: Any, plan: JobPlan, checkpoint: Checkpoint) -> dict[str, Packing]:  # noqa: ANN401
    """Return how each quantised parameter is packed, by its full name.

    Raises:
        UserError: the checkpoint packs in a way that is not known here.
    """
    found: dict[str, Packing] = {}
    with ByteReader(checkpoint.files) as reader:
        for job in plan.jobs:
            for name in job.targets:
                kind = _packing(model, job, name, reader)
                if kind is not None:
                    found[name] = kind
    return found


def _packing(model: Any, job: Job, name: str, reader: ByteReader) -> Packing | None:  # noqa: ANN401
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    if attribute != "weight" or not isinstance(module, bnb.nn.Linear4bit | bnb.nn.Linear8bitLt):
        return None
    shape = (module.out_features, module.in_features)
    if isinstance(module, bnb.nn.Linear8bitLt):
        return Packing(quant_type=_INT8, shape=shape, dtype=torch.float16)
    if not job.quantises:
        return _told(job, shape, reader)
    nested = NESTED_BLOCK if module.weight.compress_statistics else 0
    dtype = job.inputs[0].result_type
    return Packing(quant_type=module.weight.quant_type, shape=shape, dtype=dtype, nested_block=nested)


def _told(job: Job, shape: tuple[int, ...], reader: ByteReader) -> Packing:
    """Read what bitsandbytes wrote beside a packed weight: a JSON text of about 150 bytes."""
    notes = [x.stored for x in job.inputs if "quant_state.bitsandbytes__" in x.stored.name]
    if len(notes) != 1:
        raise _unknown(job.first, f"{len(notes)} descriptions of how it is packed")
    text = bytearray(notes[0].nbytes)
    reader.read_into(notes[0].file, notes[0].begin, memoryview(text))
    try:
        told = json.loads(text)
        made = Packing(
            quant_type=str(told["quant_type"]),
            shape=tuple(told["shape"]),
            dtype=getattr(torch, told["dtype"]),
            block=int(told["blocksize"]),
            nested_block=int(told.get("nested_blocksize", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unknown(job.first, f"a description that does not parse ({error!r})") from error
    if made.shape != shape or made.quant_type not in {"nf4", "fp4"}:
        raise _unknown(job.first, f"{made.quant_type} weights of shape {made.shape}, where the model has {shape}")
    return made


def _unknown(name: str, found: str) -> UserError:
    return UserError(Problem(where=f"weights, {name}", found=found, remedy="Quantise the 16-bit model again."))


def pack(values: torch.Tensor, kind: Packing, into: Mapping[Role, torch.Tensor]) -> None:
    """Pack a weight, bit for bit as bitsandbytes would pack it whole.

    Args:
        values: the weight, anywhere; it is cast portion by portion.
        kind: how.
        into: memory of each part, as flat bytes, on the device that packs.
    """
    if kind.quant_type == _INT8:
        _pack_int8(values, into[Role.int8].view(torch.int8), into[Role.int8_scale].view(torch.float32))
        return
    packed = into[Role.packed]
    nested = Role.nested_absmax in into
    absmax = (
        torch.empty(kind.blocks, dtype=torch.float32, device=packed.device)
        if nested
        else into[Role.absmax].view(torch.float32)
    )
    for begin, portion in _portions(values, kind.block):
        part = portion.to(packed.device, kind.dtype)
        bits, state = bnb.functional.quantize_4bit(part, blocksize=kind.block, quant_type=kind.quant_type)
        packed[begin // 2 : begin // 2 + bits.numel()].copy_(bits.view(-1))
        absmax[begin // kind.block : begin // kind.block + state.absmax.numel()].copy_(state.absmax)
        del portion, part, bits, state  # before the next portion takes memory
    if nested:
        offset = absmax.mean()
        codes, state = bnb.functional.quantize_blockwise(absmax - offset, blocksize=kind.nested_block)
        into[Role.absmax].copy_(codes)
        into[Role.nested_absmax].view(torch.float32).copy_(state.absmax)
        into[Role.nested_offset].view(torch.float32).copy_(offset)


def _portions(values: torch.Tensor, block: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield portions of whole blocks, flat, with the number of their first element."""
    columns = values.shape[-1]
    if not values.is_contiguous() and columns % block == 0:  # transposed: copied row by row, never whole
        step = max(1, PORTION // columns)
        for row in range(0, values.shape[0], step):
            yield row * columns, values[row : row + step].contiguous().view(-1)
        return
    flat = values.contiguous().view(-1)
    for begin in range(0, flat.numel(), PORTION):
        yield begin, flat[begin : begin + PORTION]


def _pack_int8(values: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> None:
    rows, columns = values.shape
    packed = packed.view(rows, columns)
    step = max(1, PORTION // columns)
    for begin in range(0, rows, step):
        part = values[begin : begin + step].contiguous().to(device=packed.device, dtype=torch.float16)
        bits, absmax, _ = bnb.functional.int8_vectorwise_quant(part)
        packed[begin : begin + step].copy_(bits)
        scale[begin : begin + step].copy_(absmax)
        del part, bits, absmax


def nested_code(device: torch.device) -> torch.Tensor:
    """Return the table of the 8-bit codes of double quantisation, which all weights share in bitsandbytes too."""
    table = bnb.functional.name2qmap
    if "dynamic" not in table:
        table["dynamic"] = bnb.functional.create_dynamic_map()
    code: torch.Tensor = table["dynamic"].to(device)
    return code


def check_tables(name: str, kind: Packing, tables: Mapping[str, torch.Tensor]) -> None:
    """Make sure that a checkpoint's tables of codes are those that the weights will be unpacked with.

    Raises:
        UserError: they are not.
    """
    if kind.quant_type == _INT8:
        return
    cpu = torch.device("cpu")
    own = {"quant_map": bnb.functional.get_4bit_type(kind.quant_type, device=cpu)}
    if kind.nested_block:
        own["nested_quant_map"] = nested_code(cpu)
    if set(own) != set(tables) or not all(torch.equal(table, tables[key]) for key, table in own.items()):
        raise _unknown(name, "tables of codes other than bitsandbytes' own")
