"""One rank of `bench/route_predictions.py`: predicts collectives from a calibration, and times them.

torchrun ... bench/route_predictions_worker.py SETTINGS.json CALIBRATION.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from launch.parent_death import die_with_parent
from orchestrator.calibration_file import Calibration, loads
from orchestrator.measure.collectives import executor_of, library
from orchestrator.measure.team import TIMEOUT, Team
from orchestrator.measure.use import measured_graph, measured_software
from topology.collectives import Collective
from topology.graph import Graph
from topology.probe import read_topology
from topology.routing.choose import Offer, choose
from topology.routing.duration import duration
from topology.routing.menu import menu
from topology.routing.software import Runner

_KINDS: Final = (Collective.all_reduce, Collective.all_gather, Collective.all_to_all)
_ELEMENT_BYTES: Final = 4


def main() -> None:
    """Predict and time."""
    die_with_parent()
    settings = json.loads(Path(sys.argv[1]).read_text())
    calibration = loads(Path(sys.argv[2]).read_text(), sys.argv[2])
    topology = read_topology(Path(settings["topology"]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    team = Team(torch.device("cpu"))
    measured, plain = measured_graph(topology, (), calibration), measured_graph(topology, (), None)
    rows = []
    for size in settings["sizes"]:
        for kind in _KINDS:
            rows += list(_rows(team, kind, size, settings["runs"], (measured, plain), calibration))
    if team.rank == 0:
        Path(settings["answer"]).write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def _rows(
    team: Team, kind: Collective, size: int, runs: int, graphs: tuple[Graph, Graph], calibration: Calibration
) -> Iterator[dict[str, Any]]:
    """The library's way and the best of the executor's."""
    graph, plain = graphs
    route = choose(graph, kind, size, software=measured_software(graph, calibration))
    offers = (route.chosen, *route.alternatives)
    by_tables = {entry.algorithm: duration(entry, size).seconds for entry in menu(plain, kind)}
    for runner in (Runner.builtin, Runner.executor):
        offer = next(offer for offer in offers if offer.runner is runner)
        yield {
            "collective": kind.value,
            "size_bytes": size,
            "way": "gloo" if runner is Runner.builtin else offer.algorithm,
            "pieces": offer.pieces,
            "chosen": offer is route.chosen,
            "predicted": offer.seconds,
            "by_tables": by_tables[offer.algorithm],
            "seconds": _timed(team, kind, size, offer, runs),
        }


def _timed(team: Team, kind: Collective, size: int, offer: Offer, runs: int) -> tuple[float, ...]:
    elements = size // _ELEMENT_BYTES
    if offer.runner is Runner.builtin:
        return team.seconds(*library(team, kind, elements), runs)
    executor = executor_of(offer.entry, size, offer.pieces)
    data = torch.zeros(elements)
    result = torch.empty_like(data) if kind is Collective.all_to_all else None
    try:
        return team.seconds(data.zero_, lambda: executor.run(data, result), runs)
    finally:
        executor.close()


if __name__ == "__main__":
    main()
