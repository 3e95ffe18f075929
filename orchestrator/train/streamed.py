"""The streamed engine of a run: its process groups, its cut and its base as planned, and its window between steps."""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import torch
import torch.distributed as dist
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel

from orchestrator.collectives.execute import Executor, Pieces
from orchestrator.config import RunConfig
from orchestrator.engines.gather_route import gather_schedule_of
from orchestrator.engines.streamed import StreamedEngine, cut_of_shares
from orchestrator.errors import Problem, UserError
from orchestrator.estimate.calibration import DEVICE_FILL
from orchestrator.planner.strategy import Strategy
from orchestrator.planner.streamed_plan import StreamedPlan, TierBytes
from orchestrator.train.gradients import TOPOLOGY_FILE, agreed
from orchestrator.train.groups import TIMEOUT, MetricsGroup
from orchestrator.train.model import DTYPES, quantization_config
from orchestrator.train.settings import TrainSettings
from orchestrator.weights.cache import cache_root
from orchestrator.weights.cut import Shares, Tier
from orchestrator.weights.exchange import Team
from orchestrator.weights.gather import Gather, Routed
from orchestrator.weights.load import Loaded
from orchestrator.weights.skeleton import BaseSource
from orchestrator.weights.slots import Pace
from orchestrator.weights.stream import measure_magnitudes
from orchestrator.weights.window import Report, Window, WindowRules, adapt
from topology.probe.cgroup import memory_headroom_bytes
from topology.probe.kernel_values import ReadingAbsentError
from topology.routing.software import Runner

_FILES: Final[list[str]] = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]


def plan_for(planned: StreamedPlan, world_size: int) -> StreamedPlan:
    """The plan, or one of equal shares over all ranks where another number of them runs than was planned."""
    if len(planned.shares) == world_size:
        return planned
    whole = [sum(getattr(share, tier.value) for share in planned.shares[: planned.island_size]) for tier in Tier]
    each = TierBytes(**{tier.value: -(-nbytes // world_size) for tier, nbytes in zip(Tier, whole, strict=True)})
    return StreamedPlan(
        shares=(each,) * world_size,
        island_size=world_size,
        resident_bytes=planned.resident_bytes,
        window=planned.window,
        most_window=planned.most_window,
        chunk_bytes=planned.chunk_bytes,
        gather_window_bytes=planned.gather_window_bytes,
        nvme_path=planned.nvme_path,
    )


def make_streamed(
    plan: StreamedPlan, strategy: Strategy, settings: TrainSettings, metrics: MetricsGroup
) -> StreamedEngine:
    """Return the engine with a process group for its gathers; all ranks call this.

    Args:
        plan: how layers are held by the ranks that run.
        strategy: as planned.
        settings: of this rank.
        metrics: a group of all ranks.

    Raises:
        UserError: on all ranks, if one of them cannot build the plan's schedule.
    """
    rank = settings.rank
    island = plan.island_of(rank)
    group = _island_group(plan, settings)
    gather: Gather | None = None
    if plan.gather_route is not None and plan.gather_route.runner is Runner.executor:
        build = partial(gather_schedule_of, strategy, rank=rank)
        path = settings.run_dir / TOPOLOGY_FILE
        schedule = agreed(build, path, metrics, "engine.gather_route")
        # A group of its own: other collectives must not come between the sends of a schedule.
        own = _island_group(plan, settings)
        if own is not None:
            gather = Routed(Executor(schedule, own, Pieces(piece_bytes=plan.gather_route.piece_bytes)))
    pace = Pace(
        chunk_bytes=plan.chunk_bytes,
        gather_window_bytes=plan.gather_window_bytes,
        window_bytes=plan.window_bytes[rank] if plan.window_bytes else None,
    )
    return StreamedEngine(
        cut_of_shares(_shares(plan, island), plan.resident_bytes),
        plan.window,
        device=settings.device,
        group=group,
        gather=gather,
        pace=pace,
        nvme_folder=Path(plan.nvme_path) if plan.nvme_path else None,
    )


def _island_group(plan: StreamedPlan, settings: TrainSettings) -> dist.ProcessGroup | None:
    """A new group of this rank's island; all ranks call this. None for an island of one."""
    own = None
    for first in range(0, settings.world_size, plan.island_size):
        ranks = list(plan.island_of(first))
        made = dist.new_group(ranks, timeout=TIMEOUT) if len(ranks) > 1 else None
        own = made if settings.rank in ranks else own
    return own


def _shares(plan: StreamedPlan, island: range) -> Shares:
    return tuple({tier: getattr(plan.shares[rank], tier.value) for tier in Tier} for rank in island)


def local_folder(config: RunConfig) -> Path:
    """Folder of the model; one from the hub is downloaded first.

    Raises:
        UserError: there is none.
    """
    path = Path(config.model.path)
    if path.is_dir():
        return path
    try:
        found = snapshot_download(config.model.path, revision=config.model.revision or None, allow_patterns=_FILES)
    except Exception as error:  # the hub's client raises all kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            Problem(
                where=f"model {config.model.path}",
                found=f"no such folder here, and the hub did not give it ({reason})",
                remedy="Give the path of a folder, or check the id and the network.",
            )
        ) from error
    return Path(found)


def _team(plan: StreamedPlan, settings: TrainSettings, group: MetricsGroup) -> Team:
    """Ranks of this rank's island and host, which read the checkpoint together."""
    hosts: list[str] = group.gather(os.environ.get("GROUP_RANK") or socket.gethostname())
    teams: dict[tuple[int, str], list[int]] = {}
    for rank, host in enumerate(hosts):
        teams.setdefault((rank // plan.island_size, host), []).append(rank)
    own: Team | None = None
    for (island, _), ranks in teams.items():
        made = dist.new_group(ranks, timeout=TIMEOUT) if len(ranks) > 1 else None
        if settings.rank in ranks:
            members = tuple(rank - island * plan.island_size for rank in ranks)
            own = Team(members=members, me=ranks.index(settings.rank), group=made)
    if own is None:
        raise RuntimeError(f"rank {settings.rank} is in none of the teams {teams}")
    return own


class Stream:
    """What a run with streamed layers does besides: loading, the window between steps, and what is told of it."""

    def __init__(
        self, engine: StreamedEngine, planned: StreamedPlan, settings: TrainSettings, group: MetricsGroup
    ) -> None:
        """Take the engine, without a model yet; all ranks call this."""
        self._engine, self._settings, self._group = engine, settings, group
        self._plan = plan_for(planned, settings.world_size)
        self._team = _team(self._plan, settings, group)
        self._loaded: Loaded | None = None
        self._rules: WindowRules | None = None
        self._window = Window(layers=self._plan.window)
        self._waits: list[float] = []
        self.own_wait_seconds: float | None = None

    def load(self, config: RunConfig, say: Callable[[str], None]) -> PreTrainedModel:
        """Load the base straight into its shards; all ranks call this.

        Raises:
            UserError: a base that cannot be streamed or read.
        """
        source = BaseSource(
            folder=local_folder(config),
            dtype=DTYPES[self._settings.precision],
            quantization=quantization_config(config.base, self._settings),
            device=self._settings.device,
            attention="" if config.model.attention.value == "auto" else config.model.attention.value,
            trust_remote_code=config.model.trust_remote_code,
        )
        kept = cache_root(os.environ) if config.base.cache else None
        model, self._loaded = self._engine.load(source, self._team, say, kept)
        layers = self._engine.attached.store.layout.layer_bytes
        self._rules = WindowRules(
            least=1,
            most=min(self._plan.most_window, max(1, len(layers))),
            layer_bytes=max(layers, default=0),
            reserve_bytes=round(_total_bytes(self._settings.device) * (1 - DEVICE_FILL.value)),
        )
        return model

    def measure_adapters(self, model: torch.nn.Module) -> None:
        """Give DoRA adapters the magnitudes of the base, which PEFT read where there was none; all ranks call this."""
        if any("lora_magnitude_vector" in name for name, _ in model.named_parameters()):
            self._engine.attached.visit(measure_magnitudes)

    def visit(self, act: Callable[[torch.nn.Module], None]) -> None:
        """Let something see each layer while its bytes are there; all ranks call this."""
        self._engine.attached.visit(act)

    def step(self, step_seconds: float) -> dict[str, float]:
        """End a step: all ranks settle on a window, by what all of them measured; all ranks call this.

        Returns:
            What the step's line in the metrics says besides.
        """
        own = self.own_wait_seconds = self._engine.exposed_seconds()
        share = own / step_seconds if step_seconds > 0 else 0.0
        free = _free_bytes(self._settings.device)
        exposed, worst, used = self._group.max([own, share, -float(free)])
        self._waits.append(exposed)
        report = Report(step_seconds=1.0, exposed_seconds=min(1.0, worst), free_bytes=round(-used))
        if self._rules is not None:
            self._window = adapt(self._rules, self._window, [report])
            self._engine.set_window(self._window.layers)
        return {"exposed_wait_seconds": exposed, "window": self._window.layers}

    def discard(self) -> None:
        """Leave the waits of a pause out of the step that follows."""
        self._engine.exposed_seconds()

    def summary(self) -> dict[str, Any]:
        """What is told of shards, window, waits and loading; all ranks call this."""
        tiers, loaded = self._engine.tier_bytes(), self._loaded
        own = {tier.value: tiers.get(tier, 0) for tier in Tier}
        read = {} if loaded is None else {"file_bytes": loaded.read_bytes, "cache_bytes": loaded.cached_bytes}
        return {
            "island_size": self._plan.island_size,
            "gather": "" if self._plan.gather_route is None else self._plan.gather_route.why,
            "planned_window": self._plan.window,
            "window": self._window.layers,
            "exposed_wait_seconds": statistics.median(self._waits) if self._waits else None,
            "ranks": self._group.gather({"shard_bytes": own, "read": read}),
        }

    def close(self) -> None:
        """End threads, files and hooks, after the last pass."""
        self._engine.close()


def _total_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def _free_bytes(device: torch.device) -> int:
    """Device memory that nobody used at the peak so far; on a CPU this rank's part of what the host has left."""
    if device.type != "cuda":
        return _free_host_bytes() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)


def _free_host_bytes() -> int:
    free = int(psutil.virtual_memory().available)
    try:
        return min(free, memory_headroom_bytes(Path("/")))
    except ReadingAbsentError:
        return free
