"""Packed layers on disk: written once, read in spans, never trusted blindly."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UserError
from orchestrator.weights import cache_write
from orchestrator.weights.cache import BLOCK_BYTES, PORTION_BYTES, BaseCache, cache_root, portions
from orchestrator.weights.cache_write import CacheWriter
from orchestrator.weights.exchange import Team
from orchestrator.weights.layout import BaseLayout, FrozenTensor, Role, extent_of

CPU = torch.device("cpu")
ALONE = Team(members=(0,), me=0)
SIZES = (200_000, 64, 150_000)


def layout_of(*sizes: int) -> BaseLayout:
    return BaseLayout(
        extents=tuple(extent_of([FrozenTensor(name="w", role=Role.plain, dtype="uint8", shape=(n,))]) for n in sizes)
    )


LAYOUT = layout_of(*SIZES)
LAYERS = [torch.randint(0, 256, (n,), dtype=torch.uint8) for n in LAYOUT.layer_bytes]


def cache_in(root: Path, key: str = "key", fingerprint: str = "one") -> BaseCache:
    return BaseCache(root=root, key=key, model="/models/llama", fingerprint=fingerprint)


def fill(writer: CacheWriter) -> None:
    for at, layer in enumerate(LAYERS):
        writer.write(at, 64, layer[64:])
        writer.write(at, 0, layer[:64])


def write(cache: BaseCache) -> list[str]:
    said: list[str] = []
    writer = CacheWriter(cache, LAYOUT, ALONE, CPU, said.append)
    fill(writer)
    writer.finish()
    return said


def read(cache: BaseCache, *spans: tuple[int, int, int]) -> tuple[list[torch.Tensor], int]:
    found = [torch.zeros(n, dtype=torch.uint8) for n in LAYOUT.layer_bytes]

    def put(layer: int, begin: int, data: torch.Tensor) -> None:
        found[layer][begin : begin + data.numel()].copy_(data)

    return found, cache.read(LAYOUT, spans, put, CPU)


def test_what_is_written_is_read_in_any_spans(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    said: list[str] = []
    assert not cache.find(LAYOUT, said.append)
    (told,) = write(cache)
    assert str(cache.folder) in told
    assert "0.00 GiB" in told
    assert cache.find(LAYOUT, said.append)
    assert not said
    found, nbytes = read(cache, *((at, 0, n) for at, n in enumerate(LAYOUT.layer_bytes)))
    assert all(torch.equal(a, b) for a, b in zip(found, LAYERS, strict=True))
    # A rank's share: whole blocks around it, and their checksums.
    found, nbytes = read(cache, (0, 100_032, 160_000))
    assert torch.equal(found[0][100_032:160_000], LAYERS[0][100_032:160_000])
    assert not found[0][:100_032].any()
    assert nbytes == 2 * BLOCK_BYTES + 8


@given(st.integers(0, 10 * BLOCK_BYTES), st.integers(1, 10 * BLOCK_BYTES), st.integers(0, 3 * BLOCK_BYTES))
def test_portions_are_whole_blocks_around_a_span(begin: int, length: int, more: int) -> None:
    file_bytes = begin + length + more
    found = list(portions(begin, begin + length, file_bytes))
    assert found[0][0] <= begin < found[0][0] + BLOCK_BYTES
    assert begin + length <= found[-1][1] < begin + length + BLOCK_BYTES
    assert all(a[1] == b[0] for a, b in pairwise(found))
    assert all(first % BLOCK_BYTES == 0 and last - first <= PORTION_BYTES for first, last in found)
    assert all(last % BLOCK_BYTES == 0 or last == file_bytes for _, last in found)


def test_damage_is_found_where_it_is_read(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    write(cache)
    body = bytearray((cache.folder / "layers.bin").read_bytes())
    body[10] ^= 4
    (cache.folder / "layers.bin").write_bytes(body)
    read(cache, (2, 0, SIZES[2]))
    with pytest.raises(UserError, match="checksum"):
        read(cache, (0, 0, 64))


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("layers.bin", b"short", "its files have"),
        ("layers.crc", b"", "its files have"),
        ("index.json", b"{", "does not parse"),
        ("index.json", b"[]", "describes another"),
        ("index.json", b'{"schema": 99}', "describes another"),
    ],
)
def test_a_copy_that_is_not_good_is_told_and_made_again(tmp_path: Path, name: str, body: bytes, words: str) -> None:
    cache = cache_in(tmp_path)
    write(cache)
    (cache.folder / name).write_bytes(body)
    said: list[str] = []
    assert not cache.find(LAYOUT, said.append)
    assert words in said[0]
    assert "made again" in said[0]
    write(cache)
    assert cache.find(LAYOUT, said.append)


def test_another_layout_does_not_use_it(tmp_path: Path) -> None:
    write(cache_in(tmp_path))
    assert not cache_in(tmp_path).find(layout_of(64, 64), lambda _: None)


def test_two_runs_may_write_at_once(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    one, other = (CacheWriter(cache, LAYOUT, ALONE, CPU, lambda _: None) for _ in range(2))
    fill(one)
    fill(other)
    one.finish()
    assert cache.find(LAYOUT, lambda _: None)
    other.finish()
    assert cache.find(LAYOUT, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_what_a_run_left_half_way_is_swept_but_not_one_that_goes_on(tmp_path: Path) -> None:
    going_on = CacheWriter(cache_in(tmp_path, "going"), LAYOUT, ALONE, CPU, lambda _: None)
    broken = CacheWriter(cache_in(tmp_path, "broken"), LAYOUT, ALONE, CPU, lambda _: None)
    os.close(broken._lock)  # as the system does when a process ends
    write(cache_in(tmp_path))
    names = sorted(path.name.split(".")[1] if path.name.startswith(".") else path.name for path in tmp_path.iterdir())
    assert names == ["going", "key"]
    fill(going_on)
    going_on.finish()
    assert cache_in(tmp_path, "going").find(LAYOUT, lambda _: None)


def test_a_full_disk_ends_the_copy_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_write.os, "pwrite", full)
    (told,) = write(cache_in(tmp_path))
    assert "not kept for the next start: No space left on device" in told
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_or_rights_is_told_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (told,) = write(cache_in(tmp_path / "file" / "bases"))
    assert "not kept for the next start" in told
    monkeypatch.setattr(cache_write.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    (told,) = write(cache_in(tmp_path / "bases"))
    assert "GiB free" in told
    assert list((tmp_path / "bases").iterdir()) == []


def test_a_changed_checkpoint_removes_what_was_made_of_the_old_one(tmp_path: Path) -> None:
    write(cache_in(tmp_path, "old", "one"))
    write(cache_in(tmp_path, "same", "two"))
    said = write(cache_in(tmp_path, "new", "two"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "same"]
    assert len(said) == 1
    other = BaseCache(root=tmp_path, key="other", model="/models/qwen", fingerprint="three")
    write(other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "other", "same"]


def test_where_bases_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/trainmaster/bases")
    monkeypatch.setenv("HOME", "/home/one")
    assert cache_root({"XDG_CACHE_HOME": "relative"}) == Path("/home/one/.cache/trainmaster/bases")
