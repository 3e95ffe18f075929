"""The typed configuration of a run: frozen values, valid when they exist.

Hydra composes plain YAML (`configs/`); this module turns the result into typed values and reports
every problem at once. Nothing here touches disk, clock or environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Quant(Enum):
    """How the frozen base is stored."""

    nf4 = "nf4"
    fp4 = "fp4"
    int8 = "int8"
    none = "none"


class Precision(Enum):
    """Arithmetic of the forward and backward pass."""

    auto = "auto"
    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


class Dtype(Enum):
    """Storage type of the adapters (and so of their gradients and moments)."""

    auto = "auto"
    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


class Checkpointing(Enum):
    """Which activations are recomputed in the backward pass."""

    auto = "auto"
    full = "full"
    selective = "selective"
    none = "none"


class Engine(Enum):
    """Who shards what."""

    auto = "auto"
    ddp = "ddp"
    streamed = "streamed"
    zero3 = "zero3"


class GradientRoute(Enum):
    """Who may sum the gradients of `ddp` over the ranks."""

    auto = "auto"
    builtin = "library"
    executor = "executor"


class Compress(Enum):
    """Whether gradients travel sparse."""

    auto = "auto"
    none = "none"
    topk = "topk"


class CompressValues(Enum):
    """How the kept values of a chunk travel."""

    bf16 = "bf16"
    int8 = "int8"
    int4 = "int4"
    fp32 = "fp32"


class CompressExchange(Enum):
    """How sparse gradients are summed over the ranks."""

    auto = "auto"
    gather = "gather"
    split = "split"
    hierarchical = "hierarchical"
    threshold = "threshold"


class NetworkKind(Enum):
    """Shape of the network between hosts."""

    auto = "auto"
    flat = "flat"
    rail = "rail"
    leaf_spine = "leaf_spine"


class RouteCollective(Enum):
    """Which collectives `route` shows."""

    all = "all"
    all_reduce = "all_reduce"
    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_to_all = "all_to_all"


class Backend(Enum):
    """Who starts the ranks."""

    torchrun = "torchrun"
    deepspeed = "deepspeed"
    local = "local"
    slurm = "slurm"


class OnDrift(Enum):
    """What a batch job does whose nodes are not those of the plan."""

    replan = "replan"
    stop = "stop"


class Container(Enum):
    """What runs the ranks of a batch job in a container."""

    pyxis = "pyxis"
    apptainer = "apptainer"


class Shape(Enum):
    """Shape of a data row."""

    auto = "auto"
    messages = "messages"
    prompt_completion = "prompt_completion"
    alpaca = "alpaca"
    sharegpt = "sharegpt"


class Padding(Enum):
    """Length rows of a micro-batch are padded to."""

    longest = "longest"
    static = "static"


class Offload(Enum):
    """Where ZeRO-3 keeps a partition between uses; `auto` leaves it to the planner."""

    auto = "auto"
    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class Attention(Enum):
    """Attention kernel of transformers."""

    auto = "auto"
    sdpa = "sdpa"
    eager = "eager"
    flash_attention_2 = "flash_attention_2"


class Schedule(Enum):
    """Learning-rate schedule after warm-up."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"


class Optimizer(Enum):
    """Optimizer of the adapters; `auto` leaves it to the planner."""

    auto = "auto"
    adamw = "adamw"
    adamw_8bit = "adamw_8bit"
    paged_adamw_8bit = "paged_adamw_8bit"


class Stack(Enum):
    """Whose kernels the estimate assumes."""

    trl = "trl"
    hf_plain = "hf_plain"


class Fault(Enum):
    """What can be done to a run on purpose, to see that it survives."""

    none = "none"
    kill_rank = "kill_rank"
    stop_rank = "stop_rank"
    kill_launcher = "kill_launcher"
    kill_supervisor = "kill_supervisor"
    hang = "hang"
    slow_rank = "slow_rank"
    out_of_memory = "out_of_memory"
    nan_gradients = "nan_gradients"
    corrupt_checkpoint = "corrupt_checkpoint"
    truncate_checkpoint = "truncate_checkpoint"
    disk_full = "disk_full"
    slow_link = "slow_link"
    cut_link = "cut_link"
    thermal = "thermal"
    pcie_gen2 = "pcie_gen2"
    xid_79 = "xid_79"
    xid_94 = "xid_94"
    xid_48_63 = "xid_48_63"
    xid_154 = "xid_154"
    slurm_preempt = "slurm_preempt"
    slurm_node_down = "slurm_node_down"


class FaultPhase(Enum):
    """What a rank does when a fault of its own comes."""

    loading = "loading"
    evaluating = "evaluating"
    training = "training"
    saving = "saving"


class OutputFormat(Enum):
    """How a verb prints its result."""

    text = "text"
    json = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The base model. `path` is a local folder or a hub id."""

    path: str
    revision: str = ""
    trust_remote_code: bool = False
    attention: Attention = Attention.auto


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Training and held-out rows. `seq_len` counts tokens; 0 rows mean no limit; packing None leaves it open."""

    path: str
    eval_path: str = ""
    eval_fraction: float = 0.05
    shape: Shape = Shape.auto
    seq_len: int | None = None
    packing: bool | None = False
    group_by_length: bool = False
    padding: Padding = Padding.longest
    assistant_only: bool = True
    max_rows: int = 0
    max_eval_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConfig:
    """Quantisation of the frozen base. `cache` keeps its packed layers on disk for the next start (streamed)."""

    quant: Quant = Quant.nf4
    double_quant: bool = True
    cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """LoRA adapters. `targets` is `all-linear` or module names separated by commas."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("all-linear",)
    dtype: Dtype = Dtype.auto


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Rows per optimizer step over all ranks, and how long to train.

    `micro` is rows per rank and forward pass (None: the planner chooses). `max_steps` 0 means
    `epochs` decides.
    """

    global_: int = 16
    micro: int | None = None
    epochs: float = 1.0
    max_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Optimizer and learning-rate schedule."""

    name: Optimizer = Optimizer.adamw
    lr: float = 2e-4
    schedule: Schedule = Schedule.cosine
    warmup_fraction: float = 0.05
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine and its knobs; None, or an empty list, lets the planner derive one from the model and the topology.

    `gradient_route` is for ddp and streamed. ZeRO-3's buckets and windows count elements of the stored dtype, not
    bytes. Of streamed:

    Attributes:
        window: decoder layers whole on a device at once, the one at work included.
        shards: of each rank, relative weights of its part of the layers.
        budgets_gib: of each rank, the device memory that a plan may fill, whatever the engine. On CPU ranks it counts
            tensors, without what Python and its libraries take.
        speeds: of each rank, how fast it computes by what the machine's description says: below 1 for a throttled card
            or a CPU quota. For all engines.
        host_share: part of the layers that waits in pinned host memory, from 0 to 1.
        island: ranks that hold one copy of the layers between them.
        chunk_mib: MiB of one transfer.
        gather_route: who brings the shards of a layer together.
    """

    name: Engine = Engine.auto
    gradient_route: GradientRoute = GradientRoute.auto
    offload_param: Offload = Offload.auto
    offload_optimizer: Offload = Offload.auto
    nvme_path: str = ""
    param_persistence_threshold: int | None = None
    prefetch_bucket_size: int | None = None
    max_live_parameters: int | None = None
    max_reuse_distance: int | None = None
    reduce_bucket_size: int | None = None
    window: int | None = None
    shards: tuple[float, ...] = ()
    budgets_gib: tuple[float, ...] = ()
    speeds: tuple[float, ...] = ()
    host_share: float | None = None
    island: int | None = None
    chunk_mib: int = 16
    gather_route: GradientRoute = GradientRoute.auto


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


class Rehearse(Enum):
    """Whether the longest batch, an evaluation step and a save are tried before the first step."""

    auto = "auto"
    true = "true"
    false = "false"


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
class EvalConfig:
    """When the run evaluates. `every` counts optimizer steps (0: before and after only)."""

    every: int = 0
    before: bool = True


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
    """

    enabled: bool = True
    every_seconds: float = 1.0
    tensorboard: bool = False
    prometheus_port: int = 0
    prometheus_address: str = "127.0.0.1"
    replay: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything one verb needs. `devices` 0 uses all; `allocator` empty lets the planner choose.

    `checkpointing_layers` recomputes the first ones alone; None: all, or with checkpointing=auto what memory asks for.
    `calibration` is a file of `bench`, `auto` (the stored one of this machine, if there is one) or `none` (tables).
    """

    model: ModelConfig
    data: DataConfig
    base: BaseConfig = field(default_factory=BaseConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    compress: CompressConfig = field(default_factory=CompressConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    precision: Precision = Precision.auto
    checkpointing: Checkpointing = Checkpointing.auto
    checkpointing_layers: int | None = None
    stack: Stack = Stack.trl
    devices: int = 0
    nodes: int = 1
    allocator: str = ""
    seed: int = 0
    run_dir: str = ""
    resume: str = ""
    dry_run: bool = False
    format: OutputFormat = OutputFormat.text
    save: str = ""
    save_readings: str = ""
    picture: str = ""
    load: bool = True
    follow: bool = False
    bench: BenchConfig = field(default_factory=BenchConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    route: RouteConfig = field(default_factory=RouteConfig)
    calibration: str = "auto"
