"""Ways to run, as a table: each engine with its modes, residencies, and what it cannot be combined with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Final

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer, Quant, RunConfig
from orchestrator.config_rules_adapter import engine_conflict
from orchestrator.config_rules_base import ZERO3_CONFLICT
from orchestrator.planner.dtypes import adapter_dtype, swap_conflict, type_conflict
from orchestrator.planner.groups import Group
from orchestrator.planner.world import World
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.adapter_names import in_layers
from orchestrator.workload.model import ModelShape

_NEAREST_FIRST: Final = (Offload.none, Offload.cpu, Offload.nvme)
_MODES: Final = (Checkpointing.none, Checkpointing.full, Checkpointing.selective)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Where the base and the optimizer's state live between uses.

    `second_copy` keeps the whole base once in every host or island (DeepSpeed's hpZ), so that only the forward pass
    gathers over the slow links; None for no such copy. `island` ranks share one copy of layers that stream; None: all.
    """

    param: Offload
    optimizer: Offload
    second_copy: Group | None = None
    island: Group | None = None


def nearer_residencies(residency: Residency | None) -> Iterator[Residency]:
    """Yield what keeps base or optimizer's state nearer to the device, and neither of them farther away."""
    if residency is None:
        return
    params = _NEAREST_FIRST[: _NEAREST_FIRST.index(residency.param) + 1]
    optimizers = _NEAREST_FIRST[: _NEAREST_FIRST.index(residency.optimizer) + 1]
    for param, optimizer in product(params, optimizers):
        if (param, optimizer) != (residency.param, residency.optimizer):
            yield replace(residency, param=param, optimizer=optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An engine and its modes, without micro-batch and devices.

    `recomputed` layers, from the first on, are what `checkpointing` is for; None for all of them.
    """

    engine: Engine
    checkpointing: Checkpointing
    residency: Residency | None = None
    recomputed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """What the planner must know of an engine to enumerate it.

    Attributes:
        modes: checkpointing to try where the user leaves it open.
        residencies: where it can keep its bytes, for this configuration and world.
        conflict: why a way cannot be combined with the rest, whatever the memory; None where it can.
        handicap: it must be faster than a simpler engine by this factor, since it has more that can go wrong.
    """

    modes: tuple[Checkpointing, ...]
    residencies: Callable[[RunConfig, World], tuple[Residency | None, ...]]
    conflict: Callable[[RunConfig, World, Way], str | None]
    handicap: float = 1.0


def _nowhere_else(_config: RunConfig, _world: World) -> tuple[Residency | None, ...]:
    return (None,)


def _no_conflict(_config: RunConfig, _world: World, _way: Way) -> str | None:
    return None


def _zero3_residencies(config: RunConfig, world: World) -> tuple[Residency | None, ...]:
    """All open places of base and optimizer; on a CPU device and host are one memory, so nothing is open."""
    engine = config.engine
    known = (Offload.none, Offload.cpu, *((Offload.nvme,) if engine.nvme_path else ()))
    open_ones = known if world.is_gpu else (Offload.cpu,)
    params = open_ones if engine.offload_param is Offload.auto else (engine.offload_param,)
    optimizers = open_ones if engine.offload_optimizer is Offload.auto else (engine.offload_optimizer,)
    found = [Residency(param=param, optimizer=optimizer) for param in params for optimizer in optimizers]
    copies = [replace(place, second_copy=group) for group in world.groups for place in found]
    return (*found, *(place for place in copies if place.param is Offload.none))


def _zero3_conflict(config: RunConfig, world: World, way: Way) -> str | None:
    if way.checkpointing is Checkpointing.selective:
        return "ZeRO-3 with frozen parameters needs reentrant checkpointing, which cannot be selective"
    if config.base.quant is Quant.int8:
        return "int8 weights lose their scales when ZeRO-3 partitions them: use base.quant=nf4"
    if config.base.quant_pattern:
        return ZERO3_CONFLICT
    if config.optimizer.name is not Optimizer.adamw:
        return "ZeRO-3 flattens the adapters, which 8-bit optimizers cannot checkpoint: use optimizer=adamw"
    offloads = way.residency is not None and way.residency.param is not Offload.none
    if world.size == 1 and not (world.is_gpu and offloads):
        # Forced, it still runs (a test of the engine); chosen freely, it is overhead alone.
        return None if config.engine.name is Engine.zero3 else "one rank and no offload: nothing to partition"
    return None


def _streamed_residencies(config: RunConfig, world: World) -> tuple[Residency | None, ...]:
    """A copy in each island, or one for all ranks; what devices have no room for goes to host memory by itself."""
    wanted = config.engine.island
    islands: tuple[Group | None, ...] = (*world.groups, None)
    if wanted is not None:
        unknown = Group(ranks=wanted, name="island", bytes_per_second=0.0, alpha_seconds=0.0)
        known = next((group for group in world.groups if group.ranks == wanted), unknown)
        islands = (None if wanted == world.size else known,)
    return tuple(Residency(param=Offload.none, optimizer=Offload.none, island=island) for island in islands)


def _streamed_conflict(config: RunConfig, world: World, way: Way) -> str | None:
    wanted = config.engine.island
    if config.model.trust_remote_code:
        return "code that comes with the weights may use its layers in another order than a decoder's: use engine=ddp"
    if wanted is not None and world.size % wanted:
        return f"{world.size} ranks cannot be cut into islands of {wanted} (engine.island)"
    alone = world.size == 1 or (way.residency is not None and way.residency.island is not None and wanted == 1)
    if alone and not world.is_gpu and config.engine.name is not Engine.streamed:
        return "one rank, and no other memory than its own: nothing to stream"
    return None


# The order in which the planner prefers engines that take the same time: no base traffic comes first.
ENGINES: Final[Mapping[Engine, EngineRules]] = MappingProxyType(
    {
        Engine.ddp: EngineRules(modes=_MODES, residencies=_nowhere_else, conflict=_no_conflict),
        # Its kernels are those of ddp, so what their estimate errs by counts for both. What it adds are gathers and
        # copies, over links that were mostly not measured: those that are waited for are told to 15% at best.
        Engine.streamed: EngineRules(
            modes=_MODES[:2], residencies=_streamed_residencies, conflict=_streamed_conflict, handicap=1.15
        ),
        # Selective is out of the question under ZeRO-3, so it is not even listed unless asked for. Its gathers, hooks
        # and host copies depend on links and hosts that were not measured: not sharding is preferred unless it loses by
        # more than two estimates may err. Most published runs that shard are told to 15%; 1.15 / 0.85 is 1.35.
        Engine.zero3: EngineRules(
            modes=_MODES[:2], residencies=_zero3_residencies, conflict=_zero3_conflict, handicap=1.35
        ),
    }
)
# Selective checkpointing is the most fragile of the three: it must beat the others by this much.
MODE_HANDICAP: Final[Mapping[Checkpointing, float]] = MappingProxyType({Checkpointing.selective: 1.03})


def ways_for(config: RunConfig, world: World, layers: int) -> Iterator[Way]:
    """Yield every way that the configuration leaves open in this world, for a model of so many layers."""
    wanted, recomputed = config.engine.name, recomputed_of(config, layers)
    for engine in ENGINES if wanted is Engine.auto else (wanted,):
        rules = ENGINES[engine]
        mode = config.checkpointing
        modes = rules.modes if mode is Checkpointing.auto else (mode,)
        if config.checkpointing_layers is not None:
            modes = tuple(mode for mode in modes if mode is not Checkpointing.none)
        for checkpointing in modes:
            for residency in rules.residencies(config, world):
                yield Way(engine=engine, checkpointing=checkpointing, residency=residency, recomputed=recomputed)


def recomputed_of(config: RunConfig, layers: int) -> int | None:
    """How many layers the user wants recomputed; None where that is all of them, or left open."""
    wanted = config.checkpointing_layers
    return None if wanted is None or wanted >= layers else wanted


def tells_layers(config: RunConfig) -> bool:
    """Whether layers are known to be recomputed one by one: code that comes with the weights need not do so."""
    return not config.model.trust_remote_code


def conflict_of(config: RunConfig, world: World, way: Way, precision: str) -> str | None:
    """Say why the pieces cannot be combined, whatever the memory."""
    dtype = adapter_dtype(config, way.engine, precision)
    param = Offload.none if way.residency is None else way.residency.param
    return (
        engine_conflict(config.adapter, way.engine)
        or type_conflict(way.engine, precision, dtype, is_gpu=world.is_gpu)
        or swap_conflict(config.base.quant, precision, param)
        or _resize_conflict(config, way.engine)
        or ENGINES[way.engine].conflict(config, world, way)
    )


def _resize_conflict(config: RunConfig, engine: Engine) -> str | None:
    if engine is Engine.zero3 and config.adapter.resize.in_training:
        return "adapter.resize changes ranks in training, which ZeRO-3's flat buffers cannot"
    return None


def adapter_conflict(model: ModelShape, adapter: AdapterShape, engine: Engine) -> str | None:
    """Say why an engine cannot train these adapters of this model, if so."""
    if engine is Engine.streamed and in_layers(model, adapter.saved):
        return "adapter.modules_to_save names modules of the layers, which are copied whole and so cannot stream"
    return None


def handicap_of(way: Way) -> float:
    """Factor on a step's time when ways are ranked."""
    return ENGINES[way.engine].handicap * MODE_HANDICAP.get(way.checkpointing, 1.0)
