"""Routes of the topology for packets of sparse gradients, for engine.gradient_route=executor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from orchestrator.compress.build import TransportOf
from orchestrator.compress.transport import Library, Scheduled, routed
from orchestrator.config import GradientRoute as Wanted
from orchestrator.engines.gradient_route import graph_for
from orchestrator.planner.compression import Kind
from orchestrator.planner.gradient_route import GradientRoute
from orchestrator.planner.plan import Plan
from orchestrator.train.gradients import TOPOLOGY_FILE, agreed
from orchestrator.train.groups import MetricsGroup
from topology.model import Topology
from topology.routing.software import Runner


def packet_transport(plan: Plan, run_dir: Path, group: MetricsGroup) -> TransportOf:
    """What moves packets among ranks: the library, or along routes of the topology if asked for; all ranks call this.

    Raises:
        UserError: on all ranks, if one of them cannot read the run's topology.
    """
    strategy = plan.chosen.strategy
    sparse = strategy.compression
    wanted = plan.run_config.engine.gradient_route is Wanted.executor
    if not wanted or sparse is None or sparse.kind is not Kind.topk or group.world_size != strategy.world_size:
        return Library
    return agreed(
        lambda topology: along_routes(topology, strategy.device_ids, sparse.sparse_bytes),
        run_dir / TOPOLOGY_FILE,
        group,
        "engine.gradient_route",
    )


def along_routes(topology: Topology, device_ids: Sequence[str], sent_bytes: int) -> TransportOf:
    """What makes a transport for a group of ranks.

    Args:
        topology: of all ranks.
        device_ids: of each rank.
        sent_bytes: by a rank in a step, about.

    Raises:
        TopologyError: the topology does not join the devices.
    """
    bare = GradientRoute(runner=Runner.builtin, why="")
    graph_for(bare, topology, device_ids)

    def make(group: dist.ProcessGroup) -> Scheduled | Library:
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) == 1:
            return Library(group)
        graph = graph_for(bare, topology, [device_ids[rank] for rank in ranks])
        return routed(graph, sent_bytes * len(ranks))(group)

    return make
