"""The typed configuration of a run: frozen values, valid when they exist.

Hydra composes plain YAML (`configs/`); `config_codec` turns the result into these values and reports every problem at
once. Nothing here touches disk, clock or environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.config_around import (
    BenchConfig,
    CheckpointConfig,
    CompressConfig,
    ExportConfig,
    FaultsConfig,
    LaunchConfig,
    MonitorConfig,
    NetworkConfig,
    RecoveryConfig,
    ReportConfig,
    RouteConfig,
    SweepConfig,
    TopologyConfig,
)
from orchestrator.config_eval import EvalConfig
from orchestrator.config_mixture import SourceConfig
from orchestrator.config_options import (
    AdapterInit,
    AdapterKind,
    Attention,
    Backend,
    Checkpointing,
    Compress,
    CompressExchange,
    CompressValues,
    Container,
    Dtype,
    Engine,
    ExportFormat,
    ExportOnto,
    Fault,
    FaultPhase,
    GradientRoute,
    NetworkKind,
    Offload,
    OnDrift,
    Optimizer,
    OutputFormat,
    Padding,
    Precision,
    Quant,
    Rehearse,
    ResizeWhen,
    RouteCollective,
    Schedule,
    Shape,
    Stack,
)
from orchestrator.config_resize import ResizeConfig

__all__ = [
    "AdapterConfig",
    "AdapterInit",
    "AdapterKind",
    "Attention",
    "Backend",
    "BaseConfig",
    "BatchConfig",
    "BenchConfig",
    "CheckpointConfig",
    "Checkpointing",
    "Compress",
    "CompressConfig",
    "CompressExchange",
    "CompressValues",
    "Container",
    "DataConfig",
    "Dtype",
    "Engine",
    "EngineConfig",
    "EvalConfig",
    "ExportConfig",
    "ExportFormat",
    "ExportOnto",
    "Fault",
    "FaultPhase",
    "FaultsConfig",
    "GradientRoute",
    "LaunchConfig",
    "ModelConfig",
    "MonitorConfig",
    "NetworkConfig",
    "NetworkKind",
    "Offload",
    "OnDrift",
    "Optimizer",
    "OptimizerConfig",
    "OutputFormat",
    "Padding",
    "Precision",
    "Quant",
    "RecoveryConfig",
    "Rehearse",
    "ReportConfig",
    "ResizeConfig",
    "ResizeWhen",
    "RouteCollective",
    "RouteConfig",
    "RunConfig",
    "Schedule",
    "Shape",
    "SourceConfig",
    "Stack",
    "SweepConfig",
    "TopologyConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The base model. `path` is a local folder or a hub id."""

    path: str
    revision: str = ""
    trust_remote_code: bool = False
    attention: Attention = Attention.auto


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Training and held-out rows. `seq_len` counts tokens; 0 rows mean no limit; packing None leaves it open.

    `path` is empty where there are `sources`.
    """

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
    deduplicate: bool = False
    sources: tuple[SourceConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConfig:
    """Quantisation of the frozen base. `cache` keeps its packed layers on disk for the next start (streamed).

    `quant_pattern` stores modules otherwise, by their names: the first pattern that matches.
    """

    quant: Quant = Quant.nf4
    quant_pattern: tuple[tuple[str, Quant], ...] = ()
    double_quant: bool = True
    cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Adapters: LoRA and its relatives. `targets` is `all-linear` or module names separated by commas.

    Attributes:
        kind: lora, or adalora, whose ranks shrink towards `rank` by masks.
        init: what the low-rank matrices start from.
        rank: of every adapter; None: the largest that fits the plan.
        rslora: the product is multiplied by alpha / sqrt(rank).
        dora: each output feature has a trained magnitude, too.
        rank_pattern, alpha_pattern: by module name, as PEFT matches it: the end of the name, or a regular expression.
        modules_to_save: modules that are trained whole, copies of the frozen ones; `none` for no module.
        rho: EVA: an adapter may get this many times `rank`.
        init_rank: AdaLoRA: rank at the start; None for one and a half times `rank`.
        resize: ranks that change while adapters train.
    """

    kind: AdapterKind = AdapterKind.lora
    init: AdapterInit = AdapterInit.default
    rank: int | None = 16
    alpha: float = 32.0
    rslora: bool = False
    dora: bool = False
    dropout: float = 0.0
    targets: tuple[str, ...] = ("all-linear",)
    rank_pattern: tuple[tuple[str, float], ...] = ()
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    modules_to_save: tuple[str, ...] = ("none",)
    rho: float = 2.0
    init_rank: int | None = None
    dtype: Dtype = Dtype.auto
    resize: ResizeConfig = field(default_factory=ResizeConfig)

    @property
    def settled_rank(self) -> int:
        """The rank, which a plan has settled.

        Raises:
            ValueError: it is still open.
        """
        if self.rank is None:
            raise ValueError("adapter.rank is open: no plan was made")
        return self.rank

    @property
    def saved_modules(self) -> tuple[str, ...]:
        """Names of modules that are trained whole."""
        return tuple(name for name in self.modules_to_save if name != "none")


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
    export: ExportConfig = field(default_factory=ExportConfig)
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
    preview: int = 0
    dry_run: bool = False
    format: OutputFormat = OutputFormat.text
    save: str = ""
    save_readings: str = ""
    picture: str = ""
    load: bool = True
    follow: bool = False
    bench: BenchConfig = field(default_factory=BenchConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    route: RouteConfig = field(default_factory=RouteConfig)
    calibration: str = "auto"
