from __future__ import annotations

from typing import Any

import pytest

from topology.probe import assemble, visible_gpus
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


def lost(made: Any, at: int) -> Any:
    gone = made.bad("GPU_IS_LOST")
    return made.gpu(at, uuid=gone, name=gone, pci=gone, memory_total_bytes=gone)


@pytest.mark.parametrize(
    ("text", "indices"), [(None, [0, 2, 3]), ("1", [2]), ("2,0", [3, 0]), ("3", []), ("GPU-3", [3]), ("0,3,1", [0])]
)
def test_cuda_does_not_count_a_gpu_that_is_lost(made: Any, text: str | None, indices: list[int]) -> None:
    nvml = made.nvml(made.gpu(0), lost(made, 1), made.gpu(2), made.gpu(3), visible_devices=text)
    chosen, notes = visible_gpus(nvml)
    assert [gpu.index for gpu, _ in chosen] == indices
    topology = assemble(made.machine(nvml))
    assert [device.index for device in topology.gpus] == indices
    assert set(notes) <= set(topology.warnings)
    by_index = text is not None and text[0].isdecimal()
    assert any("UUIDs are safe" in note for note in notes) == by_index


def test_without_a_gpu_there_is_nothing_to_hide(made: Any) -> None:
    assert visible_gpus(made.nvml(visible_devices="1")) == ((), ())


def test_mig_devices_come_with_their_gpu(made: Any) -> None:
    gpu = made.gpu(0, mig_mode=made.ok(1), mig_devices=(made.mig(0), made.mig(1)))
    chosen, _ = visible_gpus(made.nvml(gpu, made.gpu(1), visible_devices="1,MIG-1"))
    assert [(gpu.index, mig and mig.slot) for gpu, mig in chosen] == [(1, None), (0, 1)]
