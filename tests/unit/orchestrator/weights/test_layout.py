"""Extents and cuts, by hand and by property."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.weights import cut as cuts
from orchestrator.weights import layout as layouts
from orchestrator.weights.cut import Cut, Piece, Tier
from orchestrator.weights.layout import ALIGNMENT_BYTES, BaseLayout, Extent, FrozenTensor, Item, Role

SIZES = {"uint8": 1, "bfloat16": 2, "float32": 4, "int8": 1, "float16": 2}


def plain(name: str, nbytes: int) -> FrozenTensor:
    return FrozenTensor(name=name, role=Role.plain, dtype="uint8", shape=(nbytes,))


def layout_with(*layer_bytes: int) -> BaseLayout:
    return BaseLayout(extents=tuple(layouts.extent_of([plain("weight", nbytes)]) for nbytes in layer_bytes))


@st.composite
def some_layouts(draw: st.DrawFn) -> BaseLayout:
    dims = st.lists(st.integers(0, 40), max_size=3).map(tuple)
    tensor = st.tuples(st.sampled_from(sorted(SIZES)), dims, st.sampled_from(Role))
    layers = draw(st.lists(st.lists(tensor, min_size=1, max_size=6), min_size=1, max_size=5))
    return BaseLayout(
        extents=tuple(
            layouts.extent_of(
                FrozenTensor(name=f"t{at}", role=role, dtype=dtype, shape=shape)
                for at, (dtype, shape, role) in enumerate(layer)
            )
            for layer in layers
        )
    )


shares = st.lists(st.dictionaries(st.sampled_from(Tier), st.integers(0, 1000)), min_size=1, max_size=5).filter(
    lambda found: any(sum(one.values()) for one in found)
)


def test_tensors_follow_one_another_on_aligned_bytes() -> None:
    extent = layouts.extent_of(
        [
            FrozenTensor(name="q.weight", role=Role.packed, dtype="uint8", shape=(100, 1)),
            FrozenTensor(name="q.weight", role=Role.nested_offset, dtype="float32", shape=()),
            FrozenTensor(name="norm.weight", role=Role.plain, dtype="bfloat16", shape=(33,)),
        ]
    )
    assert [(item.offset, item.nbytes) for item in extent.items] == [(0, 100), (128, 4), (192, 66)]
    assert extent.nbytes == 320
    assert extent.by_key["q.weight", Role.nested_offset].offset == 128


@given(some_layouts())
def test_every_byte_of_a_tensor_has_a_place_of_its_own(layout: BaseLayout) -> None:
    for extent in layout.extents:
        owner = [None] * extent.nbytes
        for item in extent.items:
            assert item.offset % ALIGNMENT_BYTES == 0
            taken = owner[item.offset : item.end]
            assert len(taken) == item.nbytes
            assert not any(taken)
            owner[item.offset : item.end] = [item.name] * item.nbytes  # type: ignore[list-item]


@given(some_layouts(), shares)
def test_both_travel_through_json(layout: BaseLayout, wanted: list[dict[Tier, int]]) -> None:
    again = layouts.from_json(json.loads(json.dumps(layouts.to_json(layout))))
    assert again == layout
    assert again.fingerprint == layout.fingerprint
    cut = cuts.cut_by_bytes(layout, wanted)
    assert cuts.from_json(json.loads(json.dumps(cuts.to_json(cut)))) == cut


@pytest.mark.parametrize("body", [{}, {"extents": 3}, {"extents": [[["a", "plain", "uint8"]]]}])
def test_other_json_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"extents|layout|unpack"):
        layouts.from_json(body)


def test_what_overlaps_is_refused() -> None:
    first = Item(name="a", role=Role.plain, dtype="uint8", shape=(65,), offset=0)
    with pytest.raises(ValueError, match="overlaps"):
        Extent(items=(first, Item(name="b", role=Role.plain, dtype="uint8", shape=(1,), offset=64)))
    with pytest.raises(ValueError, match="twice"):
        Extent(items=(first, Item(name="a", role=Role.plain, dtype="uint8", shape=(1,), offset=128)))
    with pytest.raises(ValueError, match="aligned"):
        Item(name="b", role=Role.plain, dtype="uint8", shape=(1,), offset=65)
    with pytest.raises(ValueError, match="no known type"):
        FrozenTensor(name="a", role=Role.plain, dtype="complex64", shape=(1,))


@given(some_layouts(), shares)
def test_a_cut_gives_each_byte_to_one_rank(layout: BaseLayout, wanted: list[dict[Tier, int]]) -> None:
    cut = cuts.cut_by_bytes(layout, wanted)
    cut.check(layout)  # construction has refused gaps and overlaps
    for rank, tiers in enumerate(wanted):
        for tier in Tier:
            if not tiers.get(tier):
                assert cut.held_bytes(rank, tier) == 0
    assert sum(cut.held_bytes(rank, tier) for rank in range(len(wanted)) for tier in Tier) == layout.total_bytes
    assert all(sum(cut.counts(layer)) == size for layer, size in enumerate(layout.layer_bytes))


@given(st.lists(st.integers(100, 200), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_shares_come_out_as_wanted_whatever_the_number_of_layers(units: list[int], weights: list[int]) -> None:
    if not any(weights):
        weights[0] = 1
    layout = layout_with(*(64 * unit for unit in units))
    cut = cuts.cut_by_weights(layout, weights)
    for rank, weight in enumerate(weights):
        exact = layout.total_bytes * weight / sum(weights)
        assert abs(cut.held_bytes(rank, Tier.device) - exact) <= 2 * ALIGNMENT_BYTES


def test_a_cut_by_hand() -> None:
    layout = layout_with(640, 640)
    cut = cuts.cut_by_bytes(layout, [{Tier.device: 3, Tier.host: 2}, {}, {Tier.nvme: 5}])
    one = (
        Piece(rank=0, tier=Tier.device, begin=0, end=192),
        Piece(rank=0, tier=Tier.host, begin=192, end=320),
        Piece(rank=2, tier=Tier.nvme, begin=320, end=640),
    )
    assert cut.layers == (one, one)
    assert cut.counts(0) == (320, 0, 320)
    assert cuts.even_cut(layout, 4).counts(1) == (128, 192, 128, 192)
    assert [place.at for place in cuts.places(cut, 2, Tier.nvme)] == [0, 4096]
    assert cuts.buffer_bytes(cuts.places(cut, 2, Tier.nvme)) == 4096 + 320
    assert [place.at for place in cuts.places(cut, 0, Tier.host)] == [0, 128]
    assert cuts.buffer_bytes(cuts.places(cut, 1, Tier.device)) == 0


def test_residents_belong_to_nobody() -> None:
    layout = layout_with(640, 640, 640, 640)
    cut = cuts.even_cut(layout, 2, residents=cuts.resident_layers(layout, 1300))
    assert cut.residents == {1, 3}
    assert cut.held_bytes(0, Tier.device) == cut.held_bytes(1, Tier.device) == 640
    assert cut.counts(1) == (0, 0)
    cut.check(layout)
    assert cuts.resident_layers(layout, 639) == ()
    assert cuts.resident_layers(layout, 10_000) == (0, 1, 2, 3)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(0, 20_000))
def test_residents_have_room(units: list[int], room: int) -> None:
    layout = layout_with(*(64 * unit for unit in units))
    assert sum(layout.layer_bytes[at] for at in cuts.resident_layers(layout, room)) <= room


def test_wrong_cuts_are_refused() -> None:
    def piece(rank: int, begin: int, end: int) -> Piece:
        return Piece(rank=rank, tier=Tier.device, begin=begin, end=end)

    with pytest.raises(ValueError, match="gap"):
        Cut(world_size=2, layers=((piece(0, 64, 128),),))
    with pytest.raises(ValueError, match="overlap"):
        Cut(world_size=2, layers=((piece(0, 0, 128), piece(1, 64, 192)),))
    with pytest.raises(ValueError, match="rank 2"):
        Cut(world_size=2, layers=((piece(2, 0, 64),),))
    with pytest.raises(ValueError, match="rank 0 after rank 1"):
        Cut(world_size=2, layers=((piece(1, 0, 64), piece(0, 64, 128)),))
    with pytest.raises(ValueError, match="aligned"):
        piece(0, 0, 65)
    with pytest.raises(ValueError, match="end at byte 64 of 128"):
        Cut(world_size=1, layers=((piece(0, 0, 64),),)).check(layout_with(128))
    with pytest.raises(ValueError, match="1 layers for 2"):
        Cut(world_size=1, layers=((piece(0, 0, 64),),)).check(layout_with(64, 64))
    for wanted in ([{}], [{Tier.device: -1}, {Tier.host: 3}]):
        with pytest.raises(ValueError, match="nobody holds"):
            cuts.cut_by_bytes(layout_with(64), wanted)
