"""What stands around a training: launch, checkpoints, recovery, faults, telemetry, the machine and its network."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config_options import (
    Backend,
    Compress,
    CompressExchange,
    CompressValues,
    Container,
    Dtype,
    ExportFormat,
    ExportOnto,
    Fault,
    FaultPhase,
    NetworkKind,
    OnDrift,
    Rehearse,
    RouteCollective,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """How the ranks are started. Port 0 means a free one.

    torchrun, deepspeed: on the hosts of `hosts` or `hostfile`, each reached through `ssh`. slurm: the rest; `nodes` 0
    takes those of the plan, texts that are empty leave the cluster's default.
    """

    backend: Backend = Backend.torchrun
    master_port: int = 0
    hosts: tuple[str, ...] = ("none",)
    hostfile: str = ""
    ssh: str = ""
    interface: str = "auto"
    join_seconds: int = 120
    nodes: int = 0
    submit: bool = False
    follow: bool = True
    template: str = ""
    max_requeues: int = 20
    signal_seconds: int = 180
    on_drift: OnDrift = OnDrift.replan
    probe_seconds: int = 60
    job_name: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    gres: str = ""
    cpus: int = 0
    memory: str = ""
    time: str = ""
    exclusive: bool = False
    array: str = ""
    mail: str = ""
    mail_on: str = "END,FAIL,REQUEUE"
    extra: tuple[str, ...] = ("none",)
    modules: tuple[str, ...] = ("none",)
    conda: str = ""
    venv: str = ""
    container: str = ""
    container_runtime: Container = Container.pyxis
    mounts: tuple[str, ...] = ("none",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the run saves.

    Attributes:
        every: optimizer steps between checkpoints (0: only at the end); None: as rarely as failures allow.
        keep: how many of the newest are kept.
        mtbf_hours: mean time between failures of the whole job; None: by its devices.
        max_lost_minutes: most work that one failure may lose.
    """

    every: int | None = None
    keep: int = 2
    mtbf_hours: float | None = None
    max_lost_minutes: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """What a run may do to survive.

    Attributes:
        restarts: in a row that bring the run no step further; 0 never starts again.
        backoff_seconds: before the second start in a row without progress; each further one waits twice as long.
        hang_factor: times the expected seconds of a step without progress that count as a hang.
        min_ranks: fewer than these are not worth going on with.
        allow_lossy: whether the longest rows may be cut where nothing else fits in memory.
        rehearse: the longest batch, an evaluation step and a save before the first step. auto: on GPUs.
    """

    restarts: int = 5
    backoff_seconds: float = 1.0
    hang_factor: float = 3.0
    min_ranks: int = 1
    allow_lossy: bool = False
    rehearse: Rehearse = Rehearse.auto


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressConfig:
    """Gradient compression under ddp.

    `density` is the part of each chunk's elements that travels. The first `warmup_fraction` of the steps, at most
    `max_warmup_steps`, stay dense. Each time the run has grown by `refresh`, all elements travel (0: never).
    """

    name: Compress = Compress.auto
    density: float = 0.01
    values: CompressValues = CompressValues.int8
    exchange: CompressExchange = CompressExchange.auto
    warmup_fraction: float = 0.1
    max_warmup_steps: int = 100
    refresh: float = 0.125


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsConfig:
    """The fault that a run is given, and which of them `faults run` tries.

    Attributes:
        name: of the fault.
        step: optimizer step at whose begin it comes, counted from 1.
        rank: that it comes to; None: the last one.
        every: it comes again each so many steps; 0: once, however often the run starts again.
        attempt: number of the only attempt that it comes in; 0: whichever is first at the step.
        phase: that it comes in, at or after that step.
        factor: how many times slower a slow rank or link becomes.
        seconds: after which a link that was cut is whole again; 0: never.
        partition: of SLURM that preempts the run's.
        only: faults that `faults run` tries; `all`: each that can run here.
        limit_seconds: that a run may take before it counts as hung; None: by the run without a fault.
    """

    name: Fault = Fault.none
    step: int = 5
    rank: int | None = None
    every: int = 0
    attempt: int = 0
    phase: FaultPhase = FaultPhase.training
    factor: float = 3.0
    seconds: float = 0.0
    partition: str = ""
    only: tuple[str, ...] = ("all",)
    limit_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """Which parts `bench` measures: `all`, or names separated by commas."""

    only: tuple[str, ...] = ("all",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """How a sweep of `train` runs. `parallel` is how many trials may run at once; None: as many as have own devices."""

    parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What `report` shows besides the run: `against`, another run to compare it with (empty: none)."""

    against: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfig:
    """What `route` shows.

    `collective` is one or `all`; `sizes` are bytes (with KiB, MiB, GiB), `auto` for a table from 1 KiB to 1 GiB;
    `group` names the devices by index or id (`auto`: all, or the best `devices` of them); `pair` two of which the path
    is explained; `export` a folder for files of experts (empty: none).
    """

    collective: RouteCollective = RouteCollective.all
    sizes: tuple[str, ...] = ("auto",)
    group: tuple[str, ...] = ("auto",)
    pair: tuple[str, ...] = ("none",)
    export: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyConfig:
    """Where the machine comes from: a file, a drawn one by its name, or (both empty) a probe of this host.

    `matrix` chooses among several matrices of a text, from 1 on; 0 takes the first.
    """

    path: str = ""
    preset: str = ""
    matrix: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """How the hosts of a described machine are joined; zeros leave a value to the description's default."""

    kind: NetworkKind = NetworkKind.auto
    port_gbit: float = 0.0
    hosts_per_leaf: int = 0
    oversubscription: float = 1.0
    rails: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """What is recorded of a run while it goes on.

    Attributes:
        every_seconds: between readings of devices and hosts; ranks record each step.
        tensorboard: whether scalars for TensorBoard are written, too.
        prometheus_port: of each host, where the newest readings are served as text; 0 for none.
        prometheus_address: that it listens on.
        replay: a file of device readings that are played back from the start of the run; empty for none.
        report_to: trackers that are told of the run: tensorboard, wandb, mlflow; `none` for no tracker.
        project: of W&B, and experiment of MLflow; empty: by the library's own variable, else `trainmaster`.
    """

    enabled: bool = True
    every_seconds: float = 1.0
    tensorboard: bool = False
    prometheus_port: int = 0
    prometheus_address: str = "127.0.0.1"
    replay: str = ""
    report_to: tuple[str, ...] = ("none",)
    project: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """What `export` writes of a run.

    Attributes:
        to: folder that is made; empty: RUN_DIR/export/FORMAT.
        dtype: of what is written; auto: adapters as they were trained, merged weights in the base's 16-bit type.
        shard_gib: most of one file.
        checkpoint: `newest`, `best`, or a step.
        onto: which values of the base a merged model is made from.
    """

    to: str = ""
    format: ExportFormat = ExportFormat.peft
    dtype: Dtype = Dtype.auto
    shard_gib: float = 5.0
    checkpoint: str = "newest"
    onto: ExportOnto = ExportOnto.auto
