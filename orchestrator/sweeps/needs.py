"""What a sweep finds out before trials start: the room on this machine, and the devices of each trial's plan."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.compose import compose
from orchestrator.config import Backend, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.inputs import gather, located
from orchestrator.machine import machine_to_plan_for
from orchestrator.sweeps.allot import Need, Room, core_groups
from topology.model import DeviceKind, Topology

_AUTO = "auto"
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z]")


def parallel_of(text: str) -> int | None:
    """Read `sweep.parallel`: None for auto.

    Raises:
        UserError: it is neither auto nor a positive number.
    """
    if text.strip().lower() == _AUTO:
        return None
    if text.strip().isdecimal() and int(text) > 0:
        return int(text)
    remedy = "Write auto (as many as have devices of their own), or how many trials may run at once."
    raise UserError(Problem(where="sweep.parallel", found=f"found {text}", remedy=remedy))


def room_for(parallel: int | None, overrides: Sequence[str]) -> Room:
    """Return the room for trials like this one: several at once only on this host, on devices or cores of their own."""
    if parallel == 1:
        return Room()
    try:
        config = _composed(overrides)
        machine = machine_to_plan_for(config) if _is_here(config) else None
    except UserError:
        machine = None  # the trial will say it
    return Room() if machine is None else room_on(machine, parallel)


def room_on(machine: Topology, parallel: int | None) -> Room:
    """Return the room on this host for at most so many trials at once (None: as many as have devices of their own)."""
    if any(device.kind is DeviceKind.gpu for device in machine.devices):
        # CUDA can be told a trial's devices by UUID alone: an index means another one elsewhere.
        named = all(_UUID.match(device.id) for device in machine.devices)
        host = machine.hosts[0]
        free = host.available_memory_bytes or host.memory_limit_bytes or host.memory_bytes
        return Room(limit=parallel or len(machine.devices), machine=machine, host_bytes=free) if named else Room()
    if parallel is None:
        return Room()
    groups = core_groups(sorted(os.sched_getaffinity(0)), parallel)
    return Room(limit=len(groups), core_groups=groups)


def _composed(overrides: Sequence[str]) -> RunConfig:
    """Compose a trial's configuration inside Hydra's own run, which it takes for the only one."""
    from hydra.core.global_hydra import GlobalHydra

    outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        return located(compose(overrides)[0])
    finally:
        GlobalHydra.instance().hydra = outer


def _is_here(config: RunConfig) -> bool:
    launch = config.launch
    remote = launch.backend is Backend.slurm or bool(launch.hostfile) or launch.hosts != ("none",)
    # A described machine is planned for whatever devices a trial may see.
    described = bool(config.topology.path or config.topology.preset)
    return config.nodes == 1 and not remote and not described and not config.dry_run


@dataclass(slots=True)
class Needs:
    """What each trial's plan uses of the machine, as it was before any trial began; found when first asked for."""

    machine: Topology | None
    _known: dict[tuple[str, ...], Need] = field(default_factory=dict)

    def of(self, overrides: tuple[str, ...]) -> Need:
        """Return what the plan uses; nothing in particular where there is no plan, or no choice."""
        if self.machine is None:
            return Need()
        if overrides not in self._known:
            self._known[overrides] = _planned(overrides, self.machine)
        return self._known[overrides]


def _planned(overrides: Sequence[str], machine: Topology) -> Need:
    from orchestrator.calibration_store import choose_calibration
    from orchestrator.planner.build import make_plan

    try:
        config = _composed(overrides)
        inputs = gather(config, by_name=True)
        calibration = choose_calibration(config.calibration, machine, os.environ)
        chosen = make_plan(config, machine, inputs.model, inputs.data, "sweep", calibration).chosen
    except UserError:
        return Need()
    return Need(
        devices=chosen.strategy.device_ids, host_bytes=chosen.estimate.memory.host_bytes * chosen.strategy.world_size
    )
