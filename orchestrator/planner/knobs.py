"""ZeRO-3 knobs from model, link and layer time, each with its derivation.

DeepSpeed counts ELEMENTS of the stored dtype, not bytes: packed 4-bit weights travel as a 16-bit type, so one element
is four weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Offload, RunConfig
from orchestrator.estimate.base import linear_packed_bytes
from orchestrator.estimate.setting import Machine, Zero3Knobs, storage_bytes
from orchestrator.planner.groups import Group
from orchestrator.planner.strategy import Zero3Extras
from orchestrator.planner.ways import Residency
from orchestrator.planner.world import World
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.model import ModelShape
from topology.units import format_bytes, format_rate, format_seconds

# Below this many parameters a threshold of 10 x hidden would make whole projections persistent.
_SMALL_MODEL_PARAMS = 1_000_000_000
# One reduction message: beyond this many elements a larger bucket gains no bandwidth.
_REDUCE_CAP = 50_000_000
# What is fetched further ahead than this waits in memory that activations could use.
_MOST_LAYERS_AHEAD = 4
_LEAST_NVME_SUB_GROUP = 262_144  # elements: 1 MiB in fp32, what its swapper moves at least
_NVME_SUB_GROUPS = 4
_ADAM_STATES = 4  # master copy, gradient, two moments
_DEFAULT_SUB_GROUP = 1_000_000_000  # DeepSpeed 0.19's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting of the engine, its value in `unit`, and how it was derived."""

    name: str
    value: int
    unit: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the knobs are derived from.

    Attributes:
        world: of the strategy.
        residency: of the strategy.
        machine: of the first rank; links are those of the slowest.
        layer_seconds: of one pass over one decoder layer on the slowest rank.
        compute_dtype: of the passes.
    """

    world: World
    residency: Residency
    machine: Machine
    layer_seconds: float
    compute_dtype: str


def derive(
    config: RunConfig, model: ModelShape, adapter: AdapterShape, ground: Ground
) -> tuple[Zero3Knobs, Zero3Extras, tuple[Knob, ...]]:
    """Derive what the user left open; returns the settings and how each came about."""
    engine, size = config.engine, storage_bytes(config.base.quant, ground.compute_dtype)
    layer = -(-sum(linear_packed_bytes(x, config.base.quant, size) for x in model.linears) // size)
    prefetch = _given("engine.prefetch_bucket_size", engine.prefetch_bucket_size, _prefetch(model, ground, layer, size))
    live = _given(
        "engine.max_live_parameters",
        engine.max_live_parameters,
        _knob(
            "max_live_parameters",
            layer + prefetch.value,
            f"the layer at work ({layer:,}) and what is prefetched ({prefetch.value:,}): prefetching fills what is "
            "left free, and embedding and head are gathered whatever it says",
        ),
    )
    reuse = _given(
        "engine.max_reuse_distance",
        engine.max_reuse_distance,
        _knob(
            "max_reuse_distance",
            layer,
            f"one layer ({layer:,}): the last layer of the forward pass is the first of the backward pass and stays",
        ),
    )
    persistence = _given(
        "engine.param_persistence_threshold", engine.param_persistence_threshold, _persistence(model, ground, size)
    )
    reduce = _given(
        "engine.reduce_bucket_size",
        engine.reduce_bucket_size,
        _knob(
            "reduce_bucket_size",
            max(adapter.largest_tensor, min(adapter.params, _REDUCE_CAP)),
            f"all {adapter.params:,} adapter gradients in one message, at most {_REDUCE_CAP:,} and never less than "
            f"the largest tensor ({adapter.largest_tensor:,})",
        ),
    )
    knobs = Zero3Knobs(
        offload_param=ground.residency.param,
        offload_optimizer=ground.residency.optimizer,
        nvme_path=engine.nvme_path,
        param_persistence_threshold=persistence.value,
        prefetch_bucket_size=prefetch.value,
        max_live_parameters=live.value,
        max_reuse_distance=reuse.value,
        reduce_bucket_size=reduce.value,
    )
    extras, more = _extras(model, adapter, ground, prefetch.value, layer)
    return knobs, extras, (prefetch, live, reuse, persistence, reduce, *more)


def _prefetch(model: ModelShape, ground: Ground, layer: int, size: int) -> Knob:
    """What the link (or the offload target) delivers during one layer, at least one layer, at most four."""
    name = "prefetch_bucket_size"
    if model.total_params < _SMALL_MODEL_PARAMS:
        return _knob(name, layer, f"one layer ({layer:,}): below a billion parameters latency counts, not bandwidth")
    rate, path = ground.machine.gather_bytes_per_second, "the links"
    if ground.residency.param is not Offload.none and ground.machine.is_gpu:
        # Each rank brings in its share while the others bring in theirs.
        feed = ground.machine.h2d_bytes_per_second * ground.world.size
        rate, path = (feed, "host memory") if feed < rate or ground.world.size == 1 else (rate, path)
    delivered = int(rate * ground.layer_seconds / size)
    value = max(layer, min(delivered, _MOST_LAYERS_AHEAD * layer))
    end = ""
    if value == layer:
        end = f"; a whole layer ({layer:,}) is the least that hides its own gather"
    elif value < delivered:
        end = f"; {_MOST_LAYERS_AHEAD} layers are enough, further ahead it only waits ({format_bytes(value * size)})"
    why = (
        f"{format_rate(rate)} over {path} x {format_seconds(ground.layer_seconds)} a layer / {size} bytes = "
        f"{delivered:,}{end}"
    )
    return _knob(name, value, why)


def _persistence(model: ModelShape, ground: Ground, size: int) -> Knob:
    """Keep whole what costs more latency than bytes: norms and biases always, no projection."""
    name = "param_persistence_threshold"
    if model.total_params < _SMALL_MODEL_PARAMS:
        return _knob(name, 0, "0: in a model below a billion parameters whole projections would stay on every rank")
    machine = ground.machine
    alpha = machine.link_alpha_seconds if machine.gather_alpha_seconds is None else machine.gather_alpha_seconds
    even = int(alpha * machine.gather_bytes_per_second / size)
    value = max(model.hidden, min(10 * model.hidden, even))
    why = (
        f"a gather of {even:,} takes as long as its latency ({format_seconds(alpha)}); kept "
        f"between hidden ({model.hidden:,}: norms and biases) and 10 x hidden (no projection)"
    )
    return _knob(name, value, why)


def _extras(
    model: ModelShape, adapter: AdapterShape, ground: Ground, prefetch: int, layer: int
) -> tuple[Zero3Extras, tuple[Knob, ...]]:
    world, residency = ground.world, ground.residency
    share = -(-adapter.params // world.size)
    on_nvme = residency.optimizer is Offload.nvme
    group = (
        max(adapter.largest_tensor, -(-share // _NVME_SUB_GROUPS), _LEAST_NVME_SUB_GROUP)
        if on_nvme
        else _DEFAULT_SUB_GROUP
    )
    why = f"this rank's {share:,} adapter elements are updated in one piece, since they are few"
    if on_nvme:
        why = (
            f"{_NVME_SUB_GROUPS} pieces of this rank's {share:,} elements, so that reading, update and writing overlap"
        )
        if group == _LEAST_NVME_SUB_GROUP:
            why = f"DeepSpeed swaps no piece below {_LEAST_NVME_SUB_GROUP:,}; this rank has {share:,} elements"
    knobs = [_knob("sub_group_size", group, why)]
    count = buffer = 0
    if residency.param is Offload.nvme:
        buffer = -(-max(model.vocab * model.hidden, model.largest_linear) // world.size)
        count = len(model.linears) * (1 + -(-prefetch // layer)) + 2
        why = "the largest parameter's share"
        knobs.append(_knob("offload_param.buffer_size", buffer, why))
        why = f"{len(model.linears)} parameters a layer, for the layer at work and those ahead, and embedding and head"
        knobs.append(Knob(name="offload_param.buffer_count", value=count, unit="buffers", why=why))
    if on_nvme:
        why = "master copy, gradient and two moments of the piece at work"
        knobs.append(Knob(name="offload_optimizer.buffer_count", value=_ADAM_STATES, unit="buffers", why=why))
    hpz = 1 if residency.second_copy is None else residency.second_copy.ranks
    if world.groups:
        knobs += [_hpz(world, residency), _mics(world)]
    extras = Zero3Extras(
        sub_group_size=group,
        hpz_partition_size=hpz,
        param_buffer_count=count,
        param_buffer_size=buffer,
        optimizer_buffer_count=_ADAM_STATES if on_nvme else 0,
    )
    return extras, tuple(knobs)


def _hpz(world: World, residency: Residency) -> Knob:
    """The group of ranks with a second copy of the base among them: an island, or a host without one."""
    name, chosen = "zero_hpz_partition_size", residency.second_copy
    if chosen is None:
        why = f"{_inside(world, world.groups[-1])}; no second copy: offloaded, without room for it, or no faster"
        return Knob(name=name, value=1, unit="ranks", why=why)
    why = f"{_inside(world, chosen)}: a second copy of the base in each {chosen.name} spares them in the backward pass"
    return Knob(name=name, value=chosen.ranks, unit="ranks", why=why)


def _mics(world: World) -> Knob:
    """What the group would be, and why it is not used: the shards would then lie in it alone."""
    group = world.groups[0]
    why = (
        f"not used: the {group.name} would be the group ({group.ranks} ranks), but DeepSpeed 0.19 has removed MiCS and "
        "refuses the setting; zero_hpz_partition_size is what is left of it"
    )
    return Knob(name="mics_shard_size", value=-1, unit="ranks (all)", why=why)


def _inside(world: World, group: Group) -> str:
    rates = f"{format_rate(group.bytes_per_second)}, all {world.size} at {format_rate(world.link_rates[1])}"
    return f"{group.ranks} ranks of an {group.name} gather at {rates}".replace("an host", "a host")


def _knob(name: str, value: int, why: str) -> Knob:
    return Knob(name=name, value=value, unit="elements", why=why)


def _given(key: str, value: int | None, derived: Knob) -> Knob:
    if value is None:
        return derived
    return _knob(derived.name, value, f"{key} was given (derived: {derived.value:,})")
