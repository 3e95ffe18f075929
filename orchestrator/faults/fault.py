"""The faults: what each does, who does it, and when one is due. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from orchestrator.config import Backend, Fault, FaultPhase, FaultsConfig, RunConfig


class Who(Enum):
    """Who does it."""

    rank = "rank"
    readings = "readings"
    scheduler = "scheduler"


class End(Enum):
    """How a run that has such a fault must end."""

    recovers = "recovers"
    stops = "stops"
    either = "either"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One fault.

    Attributes:
        fault: its name.
        text: what is really done, in one line.
        who: does it: the rank itself; the rank by readings of its device; or the cluster's scheduler.
        end: how the run must end.
        waits: it may come at a later step than it was asked for, since it needs a checkpoint.
        lasts: it is still there after the run has started again.
    """

    fault: Fault
    text: str
    who: Who = Who.rank
    end: End = End.recovers
    waits: bool = False
    lasts: bool = False


KINDS: Final[Mapping[Fault, Kind]] = {
    kind.fault: kind
    for kind in (
        Kind(fault=Fault.kill_rank, text="SIGKILL of a rank"),
        Kind(fault=Fault.stop_rank, text="SIGSTOP of a rank: it lives and does nothing"),
        Kind(
            fault=Fault.kill_launcher, text="SIGKILL of the process that started a rank (torchrun's agent on its host)"
        ),
        Kind(
            fault=Fault.stop_launcher,
            text="SIGSTOP of the process that started a rank: it notices neither failures nor the end",
        ),
        Kind(
            fault=Fault.kill_supervisor,
            text="SIGKILL of `trainmaster train` itself; `faults run` starts it again with resume=RUN_DIR",
        ),
        Kind(
            fault=Fault.hang,
            text="a rank waits for ever in C and keeps Python's interpreter lock: none of its Python threads or signal "
            "handlers runs",
        ),
        Kind(
            fault=Fault.slow_rank,
            text="a rank sleeps after each micro-step until it took faults.factor times as long",
            lasts=True,
        ),
        Kind(
            fault=Fault.out_of_memory,
            text="a rank allocates until it is refused: by the GPU, or on a CPU by RLIMIT_AS, a bit above what it has",
        ),
        Kind(fault=Fault.nan_gradients, text="all gradients of a rank are NaN in one step, before they are summed"),
        Kind(
            fault=Fault.corrupt_checkpoint,
            text="a bit of the newest checkpoint is flipped, then a rank gets SIGKILL",
            waits=True,
        ),
        Kind(
            fault=Fault.truncate_checkpoint,
            text="the newest checkpoint is cut to half, then a rank gets SIGKILL",
            waits=True,
        ),
        Kind(
            fault=Fault.disk_full,
            text="the file system of the checkpoints is filled to the last byte (a small one: `faults run` mounts it)",
            end=End.either,
            lasts=True,
        ),
        Kind(
            fault=Fault.slow_link,
            text="the link of a rank's host is shaped down to 1/faults.factor (tc tbf, in a network namespace)",
            end=End.either,
            lasts=True,
        ),
        Kind(
            fault=Fault.cut_link,
            text="the link of a rank's host goes down (in a network namespace), for faults.seconds or for ever",
            end=End.either,
            lasts=True,
        ),
        Kind(
            fault=Fault.thermal,
            text="readings of a hot GPU: thermal slowdown and falling clocks, for good",
            who=Who.readings,
            end=End.either,
            lasts=True,
        ),
        Kind(
            fault=Fault.pcie_gen2,
            text="readings of a GPU whose slot runs at Gen2 under load, with replays",
            who=Who.readings,
            end=End.either,
            lasts=True,
        ),
        Kind(
            fault=Fault.xid_79,
            text="readings of XID 79: the GPU has fallen off the bus",
            who=Who.readings,
            end=End.either,
            lasts=True,
        ),
        Kind(fault=Fault.xid_94, text="readings of XID 94: a contained ECC error", who=Who.readings, end=End.either),
        Kind(
            fault=Fault.xid_48_63,
            text="readings of XID 48, then 63: a double-bit ECC error, and its row is remapped",
            who=Who.readings,
            end=End.either,
        ),
        Kind(
            fault=Fault.xid_154,
            text="readings of XID 154 with the recovery action `drain and reset`",
            who=Who.readings,
            end=End.either,
            lasts=True,
        ),
        Kind(
            fault=Fault.slurm_preempt,
            text="a job of more priority takes the run's node (launch=slurm, faults.partition)",
            who=Who.scheduler,
        ),
        Kind(
            fault=Fault.slurm_node_down,
            text="`scontrol update state=down` of a node of the run (launch=slurm)",
            who=Who.scheduler,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where a rank is.

    Attributes:
        phase: what it does.
        step: optimizer step that it works on, from 1; while it evaluates or saves, the one it has done.
        micro: micro-steps of that step that are done.
    """

    phase: FaultPhase
    step: int
    micro: int = 0


def due(config: FaultsConfig, moment: Moment, attempt: int, fired: Collection[int]) -> int | None:
    """Return the step for which a fault is due now; None where none is.

    Args:
        config: what was asked.
        moment: where the rank is.
        attempt: of the run.
        fired: steps for which it has come already, in this attempt or one before. A step that is done again after a
            restart is no new one.
    """
    if config.name is Fault.none or moment.phase is not config.phase or (config.attempt and attempt != config.attempt):
        return None
    if moment.phase is FaultPhase.loading:  # happens once an attempt, before any step
        return None if fired and not config.every else attempt
    if moment.step < config.step:
        return None
    late = moment.step - config.step
    waits = KINDS[config.name].waits or moment.phase is not FaultPhase.training
    if config.every:
        wanted = moment.step - late % config.every
        return wanted if wanted not in fired and (waits or wanted == moment.step) else None
    return config.step if not fired and (waits or not late) else None


def rank_of(config: FaultsConfig, world_size: int) -> int:
    """Return the rank that a fault comes to; one that does not exist is the last one."""
    last = world_size - 1
    return last if config.rank is None else min(config.rank, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What `faults run` knows of this machine and of the run.

    Attributes:
        can_mount: it may mount a file system in a namespace of its own.
        has_network_namespaces: the hosts of the run are namespaces of their own, so that links may be cut.
        is_monitored: device readings are looked at.
        commands: of SLURM, that were found.
    """

    can_mount: bool = False
    has_network_namespaces: bool = False
    is_monitored: bool = True
    commands: frozenset[str] = frozenset()


def why_not(fault: Fault, config: RunConfig, facts: Facts) -> str:
    """Say why a fault cannot be tried here; empty where it can."""
    kind, is_slurm = KINDS[fault], config.launch.backend is Backend.slurm
    by_slurm = kind.who is Who.scheduler
    missing = {"sbatch", "scontrol"} - facts.commands
    links = {Fault.slow_link, Fault.cut_link}
    launchers = {Fault.kill_launcher, Fault.stop_launcher}
    obstacles = {
        "needs launch=slurm": by_slurm and not is_slurm,
        f"needs SLURM: no {' and '.join(sorted(missing))} here": by_slurm and bool(missing),
        "needs faults.partition: one whose jobs preempt this one": fault is Fault.slurm_preempt
        and not config.faults.partition,
        "with launch=slurm only the scheduler's own faults are tried": is_slurm and not by_slurm,
        "needs a launcher between the run and its ranks: launch=torchrun or launch=deepspeed": fault in launchers
        and config.launch.backend is Backend.local,
        "needs monitor.enabled=true": kind.who is Who.readings and not facts.is_monitored,
        "needs a small file system of its own, and `unshare` may not make one here": fault is Fault.disk_full
        and not facts.can_mount,
        "needs launch.hosts whose network namespaces are not this machine's own": fault in links
        and not facts.has_network_namespaces,
    }
    return next((why for why, stands in obstacles.items() if stands), "")


def listing() -> list[dict[str, Any]]:
    """Return all faults as plain values, for `faults list`."""
    return [
        {"fault": kind.fault.value, "text": kind.text, "by": kind.who.value, "end": kind.end.value}
        for kind in KINDS.values()
    ]
