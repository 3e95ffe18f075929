"""How well and how fast machines are read: a table of a folder of real files, and the time of large drawn ones.

    python bench/read_machines.py FOLDER...

Each folder holds `nvidia-smi topo -m` texts or NCCL topology XML, with an `index.yaml` that describes them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from topology.codec import fingerprint, to_json
from topology.errors import TopologyError
from topology.presets import preset
from topology.probe import read_topology

RUNS = 5


def timed(work: Callable[[], Any]) -> str:
    """Median and range of several runs, in seconds."""
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return f"{statistics.median(seconds):.3f} s [{min(seconds):.3f}-{max(seconds):.3f}], {RUNS} runs"


def outcome(path: Path) -> tuple[str, str]:
    """Whether a file is read, and what it is or why not."""
    try:
        found = read_topology(path)
    except TopologyError as error:
        return "refused", error.problems[0]
    kinds = Counter(pair.kind for pair in found.pairs)
    text = " ".join(f"{kind}:{count}" for kind, count in sorted(kinds.items()))
    return "parsed", f"{len(found.gpus)} GPUs, {len(found.nics)} NICs, {text or 'no pairs'}"


def is_described(path: Path, entry: dict[str, Any] | None) -> bool:
    """Whether the outcome is what the index says: read when whole, refused otherwise."""
    result, _ = outcome(path)
    if entry is None:
        return False
    # Search results of NCCL (graphs/) and hand-written examples are no topologies.
    is_other = path.parent.name == "graphs" or path.name.startswith("NEGATIVE")
    bad = not entry.get("complete", True) or "non-nvidia" in entry.get("tags", ()) or is_other
    return (result == "refused") == bad


def main(folders: list[Path]) -> int:
    """Print the tables; returns 1 if a file is not read as its index says."""
    wrong = 0
    for folder in folders:
        entries = yaml.safe_load((folder / "index.yaml").read_text(encoding="utf-8"))
        index = {str(entry.get("file") or f"{int(entry['id']):03d}.txt"): entry for entry in entries}
        files = sorted(path for path in folder.rglob("*") if path.suffix in {".txt", ".xml"})
        counts: Counter[str] = Counter()
        for path in files:
            name = str(path.relative_to(folder))
            result, detail = outcome(path)
            mark = "" if is_described(path, index.get(name)) else "  NOT AS DESCRIBED"
            wrong += bool(mark)
            counts[result] += 1
            print(f"{name:<45} {result:<8} {detail[:110]}{mark}")
        print(f"{folder}: {dict(counts)}, all files in {timed(lambda files=files: [outcome(path) for path in files])}")
    for nodes in (1, 16, 1024):
        print(f"dgx_h100 nodes={nodes}: drawn in {timed(lambda nodes=nodes: preset('dgx_h100', nodes=nodes))}")
    large = preset("dgx_h100", nodes=1024)
    print(f"fingerprint of 1024 hosts: {timed(lambda: fingerprint(large))}")
    print(f"JSON of 1024 hosts: {timed(lambda: to_json(large))}")
    print(f"not as described: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
