"""Packing in portions, against bitsandbytes packing the whole weight at once."""

from __future__ import annotations

from pathlib import Path

import bitsandbytes as bnb
import pytest
import torch
from safetensors.torch import save_file

from orchestrator.errors import UserError
from orchestrator.weights import packing
from orchestrator.weights.checkpoint import ByteReader, open_checkpoint
from orchestrator.weights.layout import Role
from orchestrator.weights.packing import Packing, check_tables, nested_code, pack
from orchestrator.weights.produce import Scratch, part_bytes

CPU = torch.device("cpu")


def memory(kind: Packing) -> dict[Role, torch.Tensor]:
    return {role: torch.full((nbytes,), 99, dtype=torch.uint8) for role, nbytes in part_bytes(kind).items()}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PORTION", 1024)


@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("shape", [(96, 128), (33, 70), (7, 9), (1, 1)])
def test_four_bits(quant_type: str, nested: bool, shape: tuple[int, int]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kind = Packing(quant_type=quant_type, shape=shape, dtype=dtype, nested_block=256 if nested else 0)
        into = memory(kind)
        pack(values, kind, into)
        bits, state = bnb.functional.quantize_4bit(
            values.to(dtype), blocksize=64, compress_statistics=nested, quant_type=quant_type
        )
        assert torch.equal(into[Role.packed], flat(bits))
        assert torch.equal(into[Role.absmax], flat(state.absmax))
        if nested:
            assert torch.equal(into[Role.nested_absmax], flat(state.state2.absmax))
            assert torch.equal(into[Role.nested_offset], flat(state.offset))


@pytest.mark.parametrize("shape", [(128, 96), (70, 33)])
def test_a_weight_stored_the_other_way_round(shape: tuple[int, int]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3)).T
    kind = Packing(quant_type="nf4", shape=tuple(values.shape), dtype=torch.bfloat16)
    turned, straight = memory(kind), memory(kind)
    pack(values, kind, turned)
    pack(values.contiguous(), kind, straight)
    assert all(torch.equal(turned[role], straight[role]) for role in straight)


@pytest.mark.parametrize("turned", [False, True])
def test_eight_bits(turned: bool) -> None:
    values = torch.randn(60, 80, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    values = values.T if turned else values
    kind = Packing(quant_type="int8", shape=tuple(values.shape), dtype=torch.float16)
    into = memory(kind)
    pack(values, kind, into)
    bits, scale, _ = bnb.functional.int8_vectorwise_quant(values.contiguous().to(torch.float16))
    assert torch.equal(into[Role.int8], flat(bits))
    assert torch.equal(into[Role.int8_scale], flat(scale))


def test_tables_other_than_the_librarys_own_are_refused() -> None:
    kind = Packing(quant_type="nf4", shape=(8, 8), dtype=torch.bfloat16, nested_block=256)
    good = {"quant_map": bnb.functional.get_4bit_type("nf4", device=CPU), "nested_quant_map": nested_code(CPU)}
    check_tables("w", kind, good)
    for wrong in ({**good, "quant_map": good["quant_map"] * 2}, {"quant_map": good["quant_map"]}):
        with pytest.raises(UserError, match="tables of codes"):
            check_tables("w", kind, wrong)


def test_scratch_memory_is_used_again_and_only_grows() -> None:
    scratch = Scratch(CPU)
    scratch.reserve(200)
    first = scratch.take(100)
    second = scratch.take(64)
    assert second.data_ptr() == first.data_ptr() + 128  # aligned
    with pytest.raises(RuntimeError, match="than was reserved"):
        scratch.take(64)
    scratch.reserve(100)
    assert scratch.take(10).data_ptr() == first.data_ptr()
    assert scratch.nbytes == 200


def test_bytes_of_a_checkpoint_are_read_from_their_place_and_counted(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(10), "b": torch.randn(3, 5).to(torch.bfloat16), "c": torch.tensor(7, dtype=torch.int8)}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.nbytes == 80 + 30 + 1
    with ByteReader(checkpoint.files) as reader:
        for name, tensor in tensors.items():
            stored = checkpoint.tensors[name]
            target = torch.empty(stored.nbytes, dtype=torch.uint8)
            reader.read_into(stored.file, stored.begin, target.numpy().data)
            assert torch.equal(target, flat(tensor))
            assert stored.shape == tuple(tensor.shape)
        assert reader.read_bytes == 111
        with pytest.raises(UserError, match="it ends before byte"):
            reader.read_into(0, 10**6, memoryview(bytearray(4)))
    with pytest.raises(UserError, match="No such file"), ByteReader((tmp_path / "none",)) as reader:
        reader.read_into(0, 0, memoryview(bytearray(4)))


def test_a_checkpoint_that_changed_has_another_fingerprint(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4)}, tmp_path / "model.safetensors")
    before = open_checkpoint(tmp_path).fingerprint
    assert open_checkpoint(tmp_path).fingerprint == before
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).fingerprint != before
