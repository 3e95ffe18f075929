from __future__ import annotations

import pytest

from topology.probe.visible import Slice, select_visible

UUIDS = ["GPU-aaaa1111-x", "GPU-aaaa2222-x", "GPU-bbbb3333-x", None]


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        (None, (0, 1, 2, 3)),
        ("0", (0,)),
        ("2,0", (2, 0)),
        (" 1 , 3 ", (1, 3)),
        ("GPU-bbbb3333-x", (2,)),
        ("GPU-b,GPU-aaaa1", (2, 0)),
        ("GPU-BBBB", (2,)),
        ("1,-1,2", (1,)),
        ("", ()),
        ("-1", ()),
        ("1,,2", (1,)),
    ],
)
def test_forms_that_need_no_explanation(text: str | None, positions: tuple[int, ...]) -> None:
    found = select_visible(UUIDS, text)
    assert found.positions == positions
    assert bool(found.notes) == (not positions)


@pytest.mark.parametrize(
    ("text", "positions", "note"),
    [
        ("0,7,1", (0,), "'7' is no index below 4"),
        ("GPU-aaaa", (), "'GPU-aaaa' fits 2 GPUs"),
        ("0,GPU-zz", (0,), "'GPU-zz' fits no GPU"),
        ("NoDevFiles", (), "neither an index nor the UUID"),
        ("MIG-1234", (), "fits no MIG device"),
        ("1,1", (), "a second time"),
        ("1,GPU-aaaa2", (), "a second time"),
    ],
)
def test_entries_that_cannot_be_resolved_are_told(text: str, positions: tuple[int, ...], note: str) -> None:
    found = select_visible(UUIDS, text)
    assert found.positions == positions
    assert note in " ".join(found.notes)


def test_hiding_all_is_told_only_where_there_is_something_to_hide() -> None:
    assert select_visible(UUIDS, "").notes == ("CUDA_VISIBLE_DEVICES='' hides all 4 GPU(s) of this host",)
    assert select_visible([], "").notes == ()


CUT = [[Slice(uuid="MIG-aa-1", instances="1/0"), Slice(uuid="MIG-ab-2", instances="2/0")], [], [Slice(uuid=None)], []]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (None, ((0, 0), (0, 1), (1, None), (2, 0), (3, None))),
        ("MIG-ab", ((0, 1),)),
        ("mig-ab-2", ()),
        ("MIG-AB-2,1", ((0, 1), (1, None))),
        ("MIG-a", ()),
        ("MIG-GPU-aaaa1111-x/2/0", ((0, 1),)),
        ("MIG-GPU-aaaa1111-x/3/0", ()),
        ("MIG-GPU-aaaa2222-x/1/0", ()),
        # A GPU that is cut stands for its first MIG device.
        ("GPU-aaaa1", ((0, 0),)),
        ("2,0", ((2, 0), (0, 0))),
        ("0,MIG-aa-1", ()),
    ],
)
def test_mig_devices_are_named_or_stood_for(text: str | None, chosen: tuple[tuple[int, int | None], ...]) -> None:
    assert select_visible(UUIDS, text, CUT).chosen == chosen


@pytest.mark.parametrize("text", ["9" * 5000, "\u0663", "0x1", "1e3", "+1", ",", "GPU-", "MIG-", "MIG-/", "\0"])
def test_strange_texts_are_no_index(text: str) -> None:
    assert select_visible(UUIDS, text, CUT).positions == ()
