"""One fully specified way to run: everything that a rank needs to know, nothing left to a library's default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer, Padding
from orchestrator.estimate.recomputed import mode_text
from orchestrator.estimate.setting import Zero3Knobs
from orchestrator.planner.codec import ADDED
from orchestrator.planner.compression import CompressionPlan, Kind
from orchestrator.planner.gradient_route import GradientRoute
from orchestrator.planner.ranks import counts_label, host_of_rank
from orchestrator.planner.streamed_plan import StreamedPlan, TierBytes

__all__ = ["Recomputed", "Strategy", "Zero3Extras", "Zero3Knobs"]


_EVEN = 0.02
_FEW_RANKS = 4
SPARSE_LABEL = ", sparse gradients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero3Extras:
    """DeepSpeed settings that matter with several hosts or with NVMe; sizes count ELEMENTS of the stored dtype.

    Attributes:
        sub_group_size: elements of one optimizer sub-step.
        hpz_partition_size: ranks that hold a second copy of the base among them; 1 for none.
        mics_shard_size: ranks of a shard group that nothing else gathers from; -1 for all ranks.
        param_buffer_count, param_buffer_size: host buffers that stage parameters from NVMe; 0 without NVMe.
        optimizer_buffer_count: host buffers that stage optimizer state from NVMe; 0 without NVMe.
    """

    sub_group_size: int
    hpz_partition_size: int = 1
    mics_shard_size: int = -1
    param_buffer_count: int = 0
    param_buffer_size: int = 0
    optimizer_buffer_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The first `layers` of the model's `of` layers are recomputed, the others keep their activations."""

    layers: int
    of: int

    def __post_init__(self) -> None:
        """Reject what is no part."""
        if not 0 < self.layers < self.of:
            msg = f"{self.layers} of {self.of} layers are no part of them"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How the work is cut and in which types it is done.

    Attributes:
        engine: who shards what.
        world_size: ranks; `num_nodes` times `processes_per_node` where hosts have equally many.
        processes_per_node: ranks of a host, the most of one where hosts differ.
        uneven_ranks: of each host, where they differ; empty elsewhere (`ranks_per_host` tells both).
        device_ids: one per rank, rank order (CPU slots may repeat).
        shares: rows of a global batch per rank; they sum to the global batch.
        micro: most rows of one forward pass, per rank.
        accumulation: forward passes per optimizer step, the same on every rank.
        precision: arithmetic of the passes (`bf16`, `fp16`, `fp32`).
        adapter_dtype, compute_dtype, load_dtype: of adapters, of dequantised products, of unquantised weights.
        quant_storage: dtype name under which packed bytes are stored (`uint8`, `bfloat16`, ...).
        recomputed: the layers that `checkpointing` is for; None for all.
        allocator: value of PYTORCH_ALLOC_CONF; empty leaves torch's default.
        threads_per_process: CPU threads of a rank; the fewest of one where hosts differ.
        uneven_threads: of a rank of each host, where they differ; empty elsewhere.
        zero3: the knobs when `engine` is zero3.
        streamed: the cut of the layers when `engine` is streamed.
        seq_len: tokens a row is cut at.
        part: which part of the machine this is.
        extras: further settings when `engine` is zero3.
        gradient_route: who sums the gradients over the ranks; of the chosen strategy only, and None for one rank.
        compression: whether gradients travel sparse, and why; of those where they do, and of the chosen strategy.
    """

    engine: Engine
    world_size: int
    processes_per_node: int
    num_nodes: int
    device_ids: tuple[str, ...]
    shares: tuple[int, ...]
    micro: tuple[int, ...]
    accumulation: int
    precision: str
    adapter_dtype: str
    compute_dtype: str
    load_dtype: str
    quant_storage: str
    checkpointing: Checkpointing
    allocator: str
    threads_per_process: int
    zero3: Zero3Knobs | None
    optimizer: Optimizer
    packing: bool
    padding: Padding
    seq_len: int
    part: str = ""
    extras: Zero3Extras | None = None
    gradient_route: GradientRoute | None = None
    recomputed: Recomputed | None = None
    compression: CompressionPlan | None = None
    streamed: StreamedPlan | None = None
    uneven_ranks: tuple[int, ...] = field(default=(), metadata=ADDED)
    uneven_threads: tuple[int, ...] = field(default=(), metadata=ADDED)

    def __post_init__(self) -> None:
        """Reject strategies that no world could run."""
        per_rank = (len(self.device_ids), len(self.shares), len(self.micro))
        rules = (
            *self._host_rules(),
            (
                set(per_rank) != {self.world_size},
                f"{per_rank} device ids, shares and micro for {self.world_size} ranks",
            ),
            (min(self.shares, default=0) < 1, f"a rank without rows in shares {self.shares}"),
            (min(self.micro, default=0) < 1, f"a rank without rows in micro {self.micro}"),
            (
                any(m * self.accumulation < share for m, share in zip(self.micro, self.shares, strict=False)),
                f"micro {self.micro} x {self.accumulation} does not cover shares {self.shares}",
            ),
            (
                self.recomputed is not None and self.checkpointing is Checkpointing.none,
                "recomputed layers without checkpointing",
            ),
            ((self.engine is Engine.zero3) != (self.zero3 is not None), "zero3 knobs belong to engine zero3 alone"),
            (
                (self.engine is Engine.streamed) != (self.streamed is not None),
                "a cut of the layers belongs to engine streamed alone",
            ),
            (
                self.streamed is not None and len(self.streamed.shares) != self.world_size,
                "a cut of the layers for other ranks",
            ),
        )
        problems = [found for broken, found in rules if broken]
        if problems:
            msg = "; ".join(problems)
            raise ValueError(msg)

    def _host_rules(self) -> tuple[tuple[bool, str], ...]:
        counts, threads = self.ranks_per_host, self.uneven_threads
        known = (len(counts), max(counts, default=0), min(counts, default=0))
        return (
            (self.world_size != sum(counts), f"{self.world_size} ranks, but {counts} on the hosts"),
            (
                known[:2] != (self.num_nodes, self.processes_per_node) or known[2] < 1,
                f"{counts} ranks for {self.num_nodes} hosts of {self.processes_per_node} or fewer",
            ),
            (len(set(self.uneven_ranks)) == 1, f"equal ranks {self.uneven_ranks} are given as unequal ones"),
            (
                bool(threads)
                and ((len(threads), min(threads)) != (self.num_nodes, self.threads_per_process) or threads[0] < 1),
                f"threads {threads} for {self.num_nodes} hosts of {self.threads_per_process} or more",
            ),
        )

    @property
    def ranks_per_host(self) -> tuple[int, ...]:
        """Ranks of each host, in the order of the ranks."""
        return self.uneven_ranks or (self.processes_per_node,) * self.num_nodes

    def host_of(self, rank: int) -> int:
        """Number of the host that `rank` runs on."""
        return host_of_rank(self.ranks_per_host, rank)

    def threads_of(self, rank: int) -> int:
        """CPU threads of a rank; of one that was not planned for, those that every host has."""
        planned = self.uneven_threads and rank < self.world_size
        return self.uneven_threads[self.host_of(rank)] if planned else self.threads_per_process

    @property
    def global_batch(self) -> int:
        """Rows per optimizer step over all ranks."""
        return sum(self.shares)

    @property
    def label(self) -> str:
        """Short name for tables."""
        copy = 1 if self.extras is None else self.extras.hpz_partition_size
        if self.streamed is not None and self.streamed.islands > 1:
            copy = self.streamed.island_size
        who = ranks_label(self.engine, self.zero3, self.ranks_per_host, copy_ranks=copy)
        who += "" if self.streamed is None else f", {cut_label(self.streamed.shares, self.streamed.window)}"
        micro = micro_label(self.micro, self.accumulation)
        end = options_label(packing=self.packing, optimizer=self.optimizer)
        end += SPARSE_LABEL if self.compression is not None and self.compression.kind is Kind.topk else ""
        return f"{who}, {micro}, {self.mode_label}, {self.precision}{end}"

    @property
    def mode_label(self) -> str:
        """Name what is recomputed."""
        part = self.recomputed
        recomputed, layers = (None, 0) if part is None else (part.layers, part.of)
        return mode_text(self.checkpointing, recomputed, layers)


def ranks_label(engine: Engine, zero3: Zero3Knobs | None, counts: Sequence[int], *, copy_ranks: int = 1) -> str:
    """Name engine, ranks and residency of a way to run.

    Args:
        engine: of the way.
        zero3: its knobs, for that engine.
        counts: ranks of each host.
        copy_ranks: ranks that hold a second copy of the base among them.
    """
    world_size, num_nodes = sum(counts), len(counts)
    ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
    if num_nodes > 1:
        ranks += f" of {num_nodes} hosts{counts_label(counts)}"
    offload = "" if zero3 is None else f", {residency_label(zero3.offload_param, zero3.offload_optimizer)}"
    if copy_ranks > 1:
        host = num_nodes > 1 and {copy_ranks} == set(counts)
        offload += ", a copy in each " + ("host" if host else f"island of {copy_ranks}")
    return f"{engine.value} on {ranks}{offload}"


def cut_label(shares: Sequence[TierBytes], window: int) -> str:
    """Name the window, uneven parts in percent, and what waits off the devices."""
    parts = [share.total for share in shares]
    total, host, drive = sum(parts), sum(share.host for share in shares), sum(share.nvme for share in shares)
    text = f"window {window}"
    if max(parts) - min(parts) > _EVEN * max(parts):
        percent = [round(100 * part / total) for part in parts]
        few = len(parts) <= _FEW_RANKS
        text += f", {'/'.join(map(str, percent))}" if few else f", parts of {min(percent)} to {max(percent)}%"
    for held, where in ((host, "host memory"), (drive, "a drive")):
        text += f", {held / total:.0%} in {where}" if held else ""
    return text


def micro_label(micro: Sequence[int], accumulation: int) -> str:
    """Name rows of a forward pass, from the fewest to the most of a rank, and passes of a step."""
    rows = str(max(micro)) if min(micro) == max(micro) else f"{min(micro)} to {max(micro)}"
    return f"micro-batch {rows} x {accumulation}"


def options_label(*, packing: bool, optimizer: Optimizer) -> str:
    """Name packing and optimizer where they are not the usual ones."""
    return (", packed rows" if packing else "") + ("" if optimizer is Optimizer.adamw else f", {optimizer.value}")


def residency_label(param: Offload, optimizer: Offload) -> str:
    """Name where the base and the optimizer's state live between uses."""
    return f"offload {param.value}" + ("" if param is optimizer else f" (optimizer {optimizer.value})")
