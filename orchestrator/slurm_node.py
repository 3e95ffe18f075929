"""One node of a batch job looks at itself: `python -m orchestrator.slurm_node RUN_DIR ATTEMPT`, a task of srun on each.

It writes the same topology as `trainmaster probe save=FILE` into RUN_DIR/launch/nodes.ATTEMPT, under SLURM's name of
the node: host names may be others, and simulated nodes may share one.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from launch.parent_death import die_with_parent
from topology.codec import to_json
from topology.model import Topology
from topology.network.parts import Mould, parts_of
from topology.probe import probe_host

__all__ = ["main", "nodes_folder", "renamed"]


def nodes_folder(run_dir: Path, attempt: int) -> Path:
    """Return where the nodes of an attempt leave what they found; a folder that `topology=` takes."""
    return run_dir / "launch" / f"nodes.{attempt}"


def renamed(found: Topology, name: str) -> Topology:
    """Give a topology of one host another name; ids that begin with the old one follow."""
    old = found.hosts[0].name
    if old == name:
        return found
    own = [*(one.id for one in found.devices), *(one.id for one in found.nics), *(one.id for one in found.switches)]
    ids = {each: name + each[len(old) :] for each in own if each.startswith(f"{old}/")}
    copy = Mould(parts_of(found)).copy({old: name}, ids, {})
    return replace(found, hosts=copy.hosts, links=copy.links, pairs=copy.pairs, switches=copy.switches)


def main(arguments: list[str]) -> int:
    """Probe this node and write what was found, whole or not at all."""
    die_with_parent()
    folder = nodes_folder(Path(arguments[0]), int(arguments[1]))
    folder.mkdir(parents=True, exist_ok=True)
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    # The number in front keeps SLURM's order of the nodes, which is that of its tasks.
    path = folder / f"{int(os.environ.get('SLURM_NODEID', '0')):05d}-{name}.json"
    temporary = folder / f".{path.name}"
    temporary.write_text(json.dumps(to_json(renamed(probe_host(), name))) + "\n", encoding="utf-8")
    temporary.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
