"""Files and folders of any kind, and what is none."""

from __future__ import annotations

import gzip
import json
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from topology.codec import to_json
from topology.errors import TopologyError
from topology.presets import preset
from topology.probe import read_topology

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"


def refused(path: Path) -> str:
    """The reason, found in under two seconds and bounded memory."""
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(TopologyError) as caught:
        read_topology(path)
    seconds, (_, peak_bytes) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 10  # tracing makes it several times slower
    assert peak_bytes < 600 * 2**20
    assert len(str(caught.value)) < 5000
    return caught.value.found


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_texts_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "topo.txt"
    mark = "\ufeff" if encoding == "utf-16-le" else ""
    path.write_bytes((mark + "Größe: 2\n" + MATRIX).encode(encoding))
    assert [pair.kind for pair in read_topology(path).pairs] == ["NV4"]


def test_binary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "topo"
    path.write_bytes(gzip.compress(MATRIX.encode()))
    assert "gzip" in refused(path)
    path.write_bytes(b"GPU0\n\x00\x01")
    assert "line 2: a NUL byte" in refused(path)
    path.write_bytes(os.urandom(5000).replace(b"\x00", b"\x01"))
    assert refused(path)
    path.write_bytes(b"")
    assert "empty" in refused(path)


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no regular file" in refused(pipe)
    assert "no regular file" in refused(Path("/dev/zero"))
    assert refused(Path("a\0b"))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 2_000_000,
        b'{"a":' * 300_000,
        b"[{}," * 1_000_000,
        b'{"schema": "trainmaster.topology/1", "hosts": [' + b"1," * 2_000_000 + b"1]}",
        b'{"schema": "trainmaster.topology/1", "hosts": [' + b'{"devices":[]},' * 100_000 + b'{"devices":[]}]}',
        b'{"schema": "trainmaster.topology/1", "hosts": [{"devices": [' + b'{"id":"a"},' * 200_000 + b"{}]}]}",
        b'{"schema": "trainmaster.topology/1", "warnings": ["' + b'","' * 5_000_000 + b'"], "hosts": []}',
        b'{"schema": "' + b"x" * 20_000_000 + b'"}',
        b'{"hosts": ' + b"9" * 1_000_000 + b"}",
        b"GPU0 " * 4_000_000,
        b"\tGPU0\n" * 1_000_000,
    ],
    ids=[
        "deep",
        "deep-objects",
        "many",
        "many-numbers",
        "many-hosts",
        "many-devices",
        "many-warnings",
        "long-string",
        "long-number",
        "wide",
        "tall",
    ],
)
def test_hostile_content_is_refused_at_once(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "topology.json"
    path.write_bytes(content)
    assert refused(path)


def test_a_file_of_a_hundred_megabytes_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    with path.open("wb") as stream:
        stream.truncate(100 * 2**20)
    start = time.process_time()
    assert "104857600 bytes" in refused(path)
    assert time.process_time() - start < 1


def test_a_folder_has_a_host_for_each_file(tmp_path: Path) -> None:
    (tmp_path / "node10.txt").write_text(MATRIX)
    (tmp_path / "node2.json").write_text(json.dumps(to_json(preset("8xh100"))))
    inside = tmp_path / "node3"
    inside.mkdir()
    (inside / "topo.txt").write_text(MATRIX)
    (tmp_path / ".hidden").write_text("no machine")
    topology = read_topology(tmp_path)
    assert len(topology.hosts) == 3
    assert len(topology.gpus) == 12
    assert {"node10", "node3"} < {host.name for host in topology.hosts}


def test_all_broken_files_of_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(MATRIX)
    (tmp_path / "b.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tPIX")
    (tmp_path / "c.xml").write_text("<system version='1'>")
    with pytest.raises(TopologyError) as caught:
        read_topology(tmp_path)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["b.txt", "c.xml"]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "0 files" in refused(tmp_path)


def test_a_folder_tells_its_network(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(to_json(preset("8xh100"))))
    (tmp_path / "network.json").write_text(json.dumps({"kind": "rail"}))
    topology = read_topology(tmp_path)
    assert len([switch for switch in topology.switches if switch.host is None]) >= 8


def test_a_snapshot_with_pairs_no_tree_has_is_refused(tmp_path: Path) -> None:
    data = to_json(preset("4xv100-16gb"))
    kinds = ["PIX", "PIX", "SYS", "SYS", "PIX", "SYS"]
    for pair, kind in zip(data["pairs"], kinds, strict=True):
        pair["kind"] = kind
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    assert "no PCIe tree has both" in refused(path)


def test_a_link_back_to_the_folder_counts_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "hosts"
    folder.mkdir()
    (folder / "a.txt").write_text(MATRIX)
    (folder / "self").symlink_to(folder)
    (folder / "up").symlink_to(tmp_path)
    assert len(read_topology(folder).hosts) == 1


def test_faults_of_the_network_file_name_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(MATRIX)
    (tmp_path / "network.json").write_text('{"kind": "ring", "rails": -1}')
    with pytest.raises(TopologyError) as caught:
        read_topology(tmp_path)
    assert all(problem.startswith("network.json: ") for problem in caught.value.problems)
    assert len(caught.value.problems) == 2


def test_a_snapshot_by_hand_needs_no_pairs(tmp_path: Path) -> None:
    body = {
        "schema": "trainmaster.topology/1",
        "hosts": [{"devices": [{"id": "a", "name": "G"}, {"id": "b", "name": "G"}]}],
        "links": [{"a": "a", "b": "b", "kind": "NV4", "bytes_per_second": 1e11, "source": "hand"}],
    }
    path = tmp_path / "t.json"
    path.write_text(json.dumps(body))
    assert [pair.kind for pair in read_topology(path).pairs] == ["NV4"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_wide_text_without_its_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "topo.txt"
    path.write_bytes(MATRIX.encode(encoding))
    assert [pair.kind for pair in read_topology(path).pairs] == ["NV4"]


def test_a_driver_that_failed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text("$ nvidia-smi topo -m\nFailed to initialize NVML: Driver/library version mismatch\n")
    assert "another version" in refused(path)
