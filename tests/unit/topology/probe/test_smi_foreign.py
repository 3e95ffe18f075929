"""What is no matrix: other tools, failures of the driver, and hostile text."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from topology.errors import TopologyError
from topology.model import Topology
from topology.probe.smi import failure_of, parse_smi, recognises

DATA = Path(__file__).parent / "data"
PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
GOOD = PAIR + "GPU0\t X \tNV4\t0-7\t0\t\tN/A\nGPU1\tNV4\t X \t8-15\t1\t\tN/A\n"


def kinds(topology: Topology) -> dict[str, str]:
    return {f"{pair.a} {pair.b}": pair.kind for pair in topology.pairs}


def numa(topology: Topology) -> list[int | None]:
    return [device.numa for device in topology.gpus]


def refusal(text: str) -> str:
    with pytest.raises(TopologyError) as caught:
        parse_smi(text, host="box")
    assert all("line" in problem for problem in caught.value.problems if not problem.endswith(" more"))
    return caught.value.found


def matrix(*rows: str, names: str = "") -> str:
    names = names or " ".join(f"GPU{at}" for at in range(len(rows)))
    return "\n".join([f"  {names}", *(f"{name} {row}" for name, row in zip(names.split(), rows, strict=True))])


def test_recognises_damaged_and_foreign_matrices_but_no_other_text() -> None:
    assert recognises(matrix("X HT", "HT X"))
    assert recognises("GPU0 X NV4\n")
    assert recognises("GPU0\nX NV4\n")
    assert recognises("==== Link Type between two GPUs ====")
    assert not recognises("GPU0 and GPU1 are far apart")
    assert not recognises('<system version="1"/>')
    assert not recognises("")


FAILED = {
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183": "another version",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that": "no NVIDIA driver",
    "NVIDIA-SMI has failed because it couldn\u2019t communicate with the NVIDIA driver.": "no NVIDIA driver",
    "Failed to initialize NVML: Driver Not Loaded": "no NVIDIA driver",
    "Failed to initialize NVML: Unknown Error": "could not start",
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.": "library is missing",
    "No devices were found": "no GPU there",
    "Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error": "no longer answers",
    "bash: line 1: nvidia-smi: command not found": "not installed",
    "zsh: command not found: nvidia-smi": "not installed",
    "sh: 1: nvidia-smi: not found": "not installed",
    "'nvidia-smi' is not recognized as an internal or external command": "not installed",
}


@pytest.mark.parametrize("message", FAILED)
def test_a_failure_in_place_of_a_matrix_is_named(message: str) -> None:
    text = f"$ nvidia-smi topo -m\r\n\x1b[31m{message}\n"
    told = failure_of(text)
    assert told is not None
    assert told.startswith("line 2: ")
    assert FAILED[message] in told
    assert told.isprintable()
    assert refusal(text) == told


def test_other_text_is_no_failure() -> None:
    for text in ("", GOOD, "found nothing", "{}", "No" + " devices" * 100, "\x00" * 1000):
        assert failure_of(text) is None
    text = matrix("X PIX", "PIX") + "\nNo devices were found"
    assert "row GPU1 has 1 labels" in refusal(text)
    assert "no GPU there" not in refusal(text)


WIDE = "  " + " ".join(f"GPU{at}" for at in range(10_000))
HOSTILE = {
    "100 MB": lambda: "GPU0 X\n" * 15_000_000,
    "NULs": lambda: "\0" * 1_000_000,
    "binary": lambda: bytes(range(1, 256)).decode("latin-1") * 2_000,
    "10,000 columns": lambda: f"{WIDE}\nGPU0 X{' SYS' * 9_999}\n",
    "one long line": lambda: "GPU0 " * 200_000,
    "rows without end": lambda: "GPU0 X NV4\n" * 90_000,
    "headers without end": lambda: "GPU0\n" * 200_000,
    "a header of many lines": lambda: "GPU0\n" + "".join(f"NIC{at}\n" for at in range(9_999)),
    "escapes": lambda: "\x1b[" * 500_000,
    "brackets": lambda: "[0;" * 340_000,
    "glued": lambda: "GPU1" * 250_000 + "!",
    "blanks": lambda: "GPU0" + " " * 1_000_000 + "X",
    "affinities": lambda: "CPU NUMA GPU " * 75_000,
    "digits": lambda: f"  GPU0 NUMA Affinity\nGPU0 X {'1' * 1_000_000}",
    "commas": lambda: f"  GPU0 NUMA Affinity\nGPU0 X {'1,' * 500_000}",
    "legends": lambda: "  GPU0\nGPU0 X\n" + ("NIC0:" * 10_000 + "\n") * 20,
    "one line of 30 MB": lambda: "GPU0 X " * 4_500_000,
    "a million lines": lambda: "a\n" * 1_000_000,
    "returns": lambda: "\r" * 1_000_000,
    "titles": lambda: "\x1b]" * 500_000,
    "backspaces": lambda: "ab\b\b\b" * 200_000,
    "entities": lambda: "&amp;" * 200_000,
    "tags": lambda: "<td " * 250_000,
    "letters for lines": lambda: "\\n" * 500_000,
    "letters for lines, short": lambda: ("\\nGPU0" * 5_000 + "\n") * 6,
    "rows in rows": lambda: ("mlx5_0 X " * 5_000 + "\n") * 6,
    "headers in rows": lambda: ("GPU0 GPU1 X " * 5_000 + "\n") * 5,
    "hosts": lambda: "".join(f"n{at}: GPU0 GPU1\nn{at}: GPU0 X\n" for at in range(3_000)),
    "hosts without end": lambda: "----\nn[1-2000]\n----\n" * 3_000,
    "files": lambda: ("==> " + "a/" * 140 + " <==\n") * 3_500,
    "prompts": lambda: ("srun " + "-wa " * 18 + "b" * 90 + " nvidia-smi\n") * 3_000,
    "users": lambda: ("(a) [a@" + "b." * 49 + " " + "c" * 90 + "\n") * 5_000,
    "signs": lambda: ("+" + " " * 32 + "\n") * 19_000,
    "glued labels": lambda: ("GPU0 X " + "PIX" * 120 + "q\n") * 1_500,
    "tables": lambda: ("| 0 A On " * 5_000 + "\n") * 6,
    "lists": lambda: ("GPU 0: a (UUID: " * 3_500 + "\n") * 5,
    "full": lambda: matrix(*(" ".join("X" if a == b else "NODE" for b in range(257)) for a in range(257))),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_is_refused_in_time_and_memory(case: str) -> None:
    text = HOSTILE[case]()
    start = time.process_time()
    recognises(text)
    failure_of(text)
    if case == "legends":
        parse_smi(text, host="box")
    else:
        assert len(refusal(text)) < 5_000
    assert time.process_time() - start < 2


def test_hostile_text_takes_bounded_memory() -> None:
    text = HOSTILE["100 MB"]()
    tracemalloc.start()
    with pytest.raises(TopologyError):
        parse_smi(text, host="box")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_the_largest_matrix_is_read_in_time() -> None:
    rows = [
        " ".join("X" if a == b else "SYS" if a // 128 != b // 128 else "NODE" for b in range(256)) for a in range(256)
    ]
    start = time.process_time()
    assert len(parse_smi(matrix(*rows), host="box").pairs) == 256 * 255 // 2
    assert time.process_time() - start < 5
