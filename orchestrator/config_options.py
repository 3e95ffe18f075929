"""The words that a configuration may choose from."""

from __future__ import annotations

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


class ExportFormat(Enum):
    """What `export` writes."""

    peft = "peft"
    merged = "merged"


class ExportOnto(Enum):
    """Which values of the base an adapter is merged into."""

    auto = "auto"
    original = "original"
    dequantised = "dequantised"


class AdapterKind(Enum):
    """How adapters are shaped while they train."""

    lora = "lora"
    adalora = "adalora"


class AdapterInit(Enum):
    """What adapters start from."""

    default = "default"  # A random, B zero
    pissa = "pissa"
    loftq = "loftq"
    eva = "eva"


class ResizeWhen(Enum):
    """What changes the ranks of adapters while they train."""

    none = "none"
    plateau = "plateau"
    gradient_norm = "gradient_norm"


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
    stop_launcher = "stop_launcher"
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


class Rehearse(Enum):
    """Whether the longest batch, an evaluation step and a save are tried before the first step."""

    auto = "auto"
    true = "true"
    false = "false"
