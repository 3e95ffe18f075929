from __future__ import annotations

from typing import Final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.compress import reference
from orchestrator.compress.topk import (
    all_finite,
    decode,
    encode,
    encode_residual,
    encode_residual_with_flag,
    encode_with_flag,
    pack,
    refuse_non_finite,
    unpack,
)
from orchestrator.errors import RunFailed
from orchestrator.planner.compression import CHUNK, Codec, Values

_HUGE: Final = torch.finfo(torch.float32).max
_KEPT: Final = (2, 40, 64, 700, 3000, CHUNK)
_SHAPES: Final = ("normal", "heavy", "few", "equal", "coarse", "zero", "minus zero", "tiny", "huge", "bf16")

_codecs = st.builds(
    lambda kept, values: Codec(kept=kept, values=values), st.sampled_from(_KEPT), st.sampled_from(Values)
)
_seeds = st.integers(0, 2**32)


def _chunks(shape: str, seed: int, chunks: int = 2) -> torch.Tensor:
    """Chunks of one kind: what gradients look like, and what they seldom do."""
    at = torch.Generator().manual_seed(seed)
    x = torch.randn(chunks, CHUNK, generator=at)
    few = torch.rand(chunks, CHUNK, generator=at) < 0.004  # about 16 elements
    return {
        "normal": x * 1e-3,
        "heavy": x**5,
        "few": x * few,
        "equal": torch.full_like(x, 0.1) * x.sign(),
        "coarse": (x * 3).round(),
        "zero": x * 0,
        "minus zero": torch.full_like(x, -0.0),
        "tiny": x * 1e-41,
        "huge": (x * 2e38).clamp(-_HUGE, _HUGE),
        "bf16": x.bfloat16().float(),
    }[shape]


def _chunks_of_many_kinds(seed: int) -> torch.Tensor:
    return torch.cat([_chunks(shape, seed + at, 1) for at, shape in enumerate(_SHAPES)])


@settings(max_examples=60)
@given(codec=_codecs, seed=_seeds, shapes=st.lists(st.sampled_from(_SHAPES), min_size=2, max_size=3))
def test_packets_are_those_of_the_slow_reference_to_the_bit(codec: Codec, seed: int, shapes: list[str]) -> None:
    x = torch.cat([_chunks(shape, seed + at, 1) for at, shape in enumerate(shapes)])
    packets = encode(x, codec)
    assert packets.shape == (len(x), codec.chunk_bytes)
    assert np.array_equal(packets.numpy(), reference.encode(x.numpy(), codec))
    read = decode(packets, codec).numpy()
    assert np.array_equal(read.view(np.int32), reference.decode(packets.numpy(), codec).view(np.int32))


@pytest.mark.parametrize("values", Values)
@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("kept", [40, CHUNK])
def test_what_is_sent_and_what_is_left_make_up_the_whole(values: Values, shape: str, kept: int) -> None:
    codec = Codec(kept=kept, values=values)
    x = _chunks(shape, 5)
    left = x.clone()
    packets = encode_residual(left, codec)
    assert torch.equal(packets, encode(x, codec))
    sent = decode(packets, codec)
    assert torch.equal(left, x - sent)
    if values in {Values.fp32, Values.bf16}:
        assert torch.equal(sent.double() + left.double(), x.double())
    else:
        rounding = torch.finfo(torch.float32).eps * x.double().abs()
        assert ((sent.double() + left.double() - x.double()).abs() <= rounding).all()


@given(codec=_codecs, seed=_seeds, shape=st.sampled_from(_SHAPES))
def test_nothing_that_is_left_out_is_larger_than_what_is_kept(codec: Codec, seed: int, shape: str) -> None:
    x = _chunks(shape, seed)
    left = x.clone()
    encode_residual(left, Codec(kept=codec.kept, values=Values.fp32))
    kept = torch.where(left == x, 0, x).abs()
    smallest = kept.where(kept > 0, torch.inf).amin(dim=1, keepdim=True)
    assert (left.abs() <= smallest).all()
    # Where fewer than `kept` are above zero all of these are kept; else exactly as many as asked for.
    assert torch.equal((kept > 0).sum(dim=1), (x != 0).sum(dim=1).clamp(max=codec.kept))


def test_equal_magnitudes_go_by_place() -> None:
    x = torch.zeros(1, CHUNK)
    x[0, [9, 100, 4000, 4095]] = torch.tensor([-2.0, 1.0, -1.0, 1.0])
    sent = decode(encode(x, Codec(kept=2, values=Values.fp32)), Codec(kept=2, values=Values.fp32))
    assert sent.nonzero().tolist() == [[0, 9], [0, 100]]


def test_two_places_stand_in_three_bytes() -> None:
    x = torch.zeros(1, CHUNK)
    x[0, [0x123, 0xABC]] = torch.tensor([1.0, -2.0])
    packet = encode(x, Codec(kept=2, values=Values.bf16))[0]
    assert bytes(packet.tolist()).hex(" ") == "23 c1 ab 80 3f 00 c0"


def test_int8_rounds_halves_to_even_and_keeps_the_largest() -> None:
    x = torch.zeros(1, CHUNK)
    x[0, :4] = torch.tensor([127.0, -2.5, 3.5, -127.0])
    codec = Codec(kept=4, values=Values.int8)
    assert decode(encode(x, codec), codec)[0, :4].tolist() == [127, -2, 4, -127]


def test_int4_levels_lie_between_the_smallest_and_the_largest_kept() -> None:
    x = torch.zeros(1, CHUNK)
    x[0, :8] = torch.tensor([4.0, -4.5, 5.0, 5.5, -6.0, 6.5, 7.0, -7.5])
    codec = Codec(kept=8, values=Values.int4)
    assert torch.equal(decode(encode(x, codec), codec), x)


@given(seed=_seeds, shape=st.sampled_from(_SHAPES), kept=st.sampled_from(_KEPT))
def test_whole_numbers_are_off_by_half_a_step_at_most(seed: int, shape: str, kept: int) -> None:
    x = _chunks(shape, seed).clamp(-3.2e38, 3.2e38)  # above it lie the caps
    for values, steps in ((Values.int8, 127), (Values.int4, 7)):
        left = x.clone()
        sent = decode(encode_residual(left, Codec(kept=kept, values=values)), Codec(kept=kept, values=values))
        places = left != x
        step = torch.finfo(torch.float32).tiny + x.abs().amax(dim=1, keepdim=True) / steps
        # int4's step is rounded up to bf16, by less than one part in 128.
        assert (left.abs() <= (0.5 + 1 / 128) * step).logical_or(~places).all()
        assert (sent.abs() <= x.abs().amax(dim=1, keepdim=True) * (1 + 1 / 128)).all()


@given(seed=_seeds)
def test_levels_of_int4_are_three_times_closer_than_levels_from_zero(seed: int) -> None:
    x = _chunks("normal", seed)
    codec = Codec(kept=40, values=Values.int4)
    left = x.clone()
    kept = decode(encode_residual(left, codec), codec) != 0
    from_zero = x.abs().amax(dim=1, keepdim=True) / 7 / 2
    assert left.where(kept, 0).abs().max() < from_zero.max() * 0.6


@pytest.mark.parametrize("values", Values)
def test_the_largest_numbers_stay_finite(values: Values) -> None:
    codec = Codec(kept=40, values=values)
    x = torch.full((3, CHUNK), _HUGE)
    x[1] *= -1
    x[2, ::2] = -1e38
    sent = decode(encode(x, codec), codec)
    assert sent.isfinite().all()
    assert ((sent - x).abs().where(sent != 0, 0) <= 0.035 * _HUGE).all()


@given(codec=_codecs, seed=_seeds, numel=st.sampled_from((0, 1, 2, 39, 4095, 4096, 4097, 9000)))
def test_flat_tensors_of_any_length(codec: Codec, seed: int, numel: int) -> None:
    x = _chunks("normal", seed, 3).view(-1)[:numel]
    packets = pack(x, codec)
    assert np.array_equal(packets.numpy(), reference.pack(x.numpy(), codec))
    assert unpack(packets, numel, codec).shape == (numel,)
    if numel <= codec.kept and codec.values is Values.fp32:
        assert torch.equal(unpack(packets, numel, codec), x)


@given(codec=_codecs, seed=_seeds)
def test_packets_add_up_in_a_tensor_that_is_given(codec: Codec, seed: int) -> None:
    packets = [encode(_chunks("heavy", seed + rank), codec) for rank in range(3)]
    total = torch.full((2, CHUNK), 7.0)
    assert decode(packets[0], codec, out=total) is total
    for each in packets[1:]:
        decode(each, codec, out=total, add=True)
    apart = [decode(each, codec) for each in packets]
    assert torch.equal(total, apart[0] + apart[1] + apart[2])


@settings(max_examples=25)
@given(codec=_codecs, seed=_seeds)
def test_a_step_without_loss_is_reached_in_the_end(codec: Codec, seed: int) -> None:
    """What stays behind is sent later: the sum of all packets comes as close as rounding lets it."""
    x = _chunks("few", seed)
    left, total = x.clone(), torch.zeros_like(x, dtype=torch.float64)
    for _ in range(40):
        total += decode(encode_residual(left, codec), codec)
    assert torch.allclose(total.float(), x, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("values", Values)
@pytest.mark.parametrize("kept", [2, 40, CHUNK])
def test_what_is_not_finite_is_flagged_by_encoding_and_refused_where_asked(
    bad: float, values: Values, kept: int
) -> None:
    codec = Codec(kept=kept, values=values)
    x = _chunks("huge", 1)
    assert encode_with_flag(x, codec)[1]
    assert all_finite(x)
    refuse_non_finite(x, "gradients")
    x[1, 1234] = bad
    assert not all_finite(x)
    assert not encode_with_flag(x, codec)[1]
    assert not encode_residual_with_flag(x.clone(), codec)[1]
    with pytest.raises(RunFailed, match=r"base\.q_proj: 1 of 8192 elements are not finite, .* at 5330"):
        pack(x.view(-1), codec, "base.q_proj")


@settings(max_examples=25)
@pytest.mark.parametrize("chunks", [0, 3])
@given(codec=_codecs)
def test_nothing_depends_on_the_data_where_a_device_would_have_to_be_waited_for(chunks: int, codec: Codec) -> None:
    """Tensors without data: an operation that reads some, or whose result's size depends on some, raises on them."""
    x = torch.empty(chunks, CHUNK, device="meta")
    packets, finite = encode_with_flag(x, codec)
    assert (packets.shape, packets.dtype, finite.shape) == ((chunks, codec.chunk_bytes), torch.uint8, ())
    assert encode_residual(x, codec).shape == packets.shape
    assert decode(packets, codec).shape == x.shape
    assert decode(packets, codec, out=x, add=True) is x
    assert all_finite(x).shape == ()
    with pytest.raises(RuntimeError):
        refuse_non_finite(torch.empty(1, CHUNK, device="meta"), "x")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("values", Values)
def test_on_a_gpu_packets_are_the_same_and_nothing_waits(values: Values) -> None:
    codec = Codec(kept=40, values=values)
    x = _chunks_of_many_kinds(3)
    there = x.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        packets, finite = encode_with_flag(there, codec)
        read = decode(packets, codec)
        left = there.clone()
        encode_residual(left, codec)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert finite
    assert torch.equal(packets.cpu(), encode(x, codec))
    assert torch.equal(read.cpu(), decode(encode(x, codec), codec))
    assert torch.equal(left, there - read)


def test_packets_do_not_share_memory_with_what_they_were_made_of() -> None:
    x = _chunks("normal", 0)
    for values in Values:
        codec = Codec(kept=CHUNK, values=values)
        packets = encode(x.clone(), codec)
        spoilt = x.clone()
        early = encode(spoilt, codec)
        spoilt.zero_()
        assert torch.equal(early, packets)
        read = decode(early, codec)
        early.zero_()
        assert torch.equal(read, decode(packets, codec))
