"""From configuration, machine, model and data to a plan: a pure function of values."""

from __future__ import annotations

from orchestrator.config import Padding, RunConfig
from orchestrator.config_codec import dump_config
from orchestrator.errors import NothingFits, Problem
from orchestrator.planner.dtypes import Arithmetic, choose_precision
from orchestrator.planner.evaluate import Job
from orchestrator.planner.plan import Plan, Workload
from orchestrator.planner.reasons import reasons_for
from orchestrator.planner.search import Found, search
from orchestrator.planner.world import World, choose_world, cores_of, machine_of, memory_of
from orchestrator.workload.adapter import AdapterShape, adapter_shape
from orchestrator.workload.batch import DataStats, batch_shape, rows_per_epoch
from orchestrator.workload.model import ModelShape
from topology.codec import fingerprint
from topology.model import Topology
from topology.units import format_bytes

_USUAL_LENGTH = 2048  # tokens a row is cut at unless the user or the model says otherwise


def make_plan(config: RunConfig, topology: Topology, model: ModelShape, data: DataStats, run_id: str) -> Plan:
    """Plan the run.

    Raises:
        UserError: what was asked for is not there (devices, module names), or contradicts itself.
        NothingFits: no strategy fits; it carries the reason of every rejection.
    """
    world = choose_world(config, topology)
    arithmetic = choose_precision(config, world)
    adapter = adapter_shape(model, config.adapter)
    seq_len = sequence_length(config, model)
    batch = batch_shape(
        data,
        seq_len=seq_len,
        packing=config.data.packing,
        pads_to_seq_len=config.data.seq_len is not None,
        static=config.data.padding is Padding.static,
    )
    job = Job(config=config, model=model, adapter=adapter, batch=batch, world=world)
    found = search(job, arithmetic.precision, seq_len)
    if not found.ranked:
        raise _nothing_fits(config, world, found)
    return Plan(
        run_id=run_id,
        config=dump_config(config),
        chosen=found.ranked[0],
        ranked=found.ranked,
        rejected=found.rejected,
        reasons=reasons_for(job, arithmetic, found),
        warnings=_warnings(job, arithmetic, data, seq_len),
        workload=_workload(model, adapter, data, rows_per_epoch(data, seq_len=seq_len, packing=config.data.packing)),
        topology_fingerprint=fingerprint(topology),
        device_kind=world.devices[0].kind.value,
        device_name=world.devices[0].name,
        device_memory_bytes=min(memory_of(device) for device in world.devices),
        machine=describe_world(world),
    )


def sequence_length(config: RunConfig, model: ModelShape) -> int:
    """Tokens a row is cut at: the user's number, or 2048 where the model takes as many.

    Estimated lengths have no say in it, or a low estimate would cut rows.
    """
    if config.data.seq_len is not None:
        return config.data.seq_len
    return min(_USUAL_LENGTH, model.max_positions or _USUAL_LENGTH)


def describe_world(world: World) -> str:
    """One line about the devices in use and their hosts."""
    names = list(dict.fromkeys(device.name for device in world.devices))
    counts = ", ".join(f"{sum(device.name == name for device in world.devices)} x {name}" for name in names)
    hosts = ", ".join(host.name for host in world.hosts)
    memory = format_bytes(world.host_bytes_per_rank(0) * world.processes_per_node)
    cores = cores_of(world.hosts[0])
    if world.is_gpu:
        size = format_bytes(min(memory_of(device) for device in world.devices))
        return f"{hosts}: {counts} ({size} each), {cores} cores, {memory} of host memory free"
    ranks = "1 CPU rank" if world.size == 1 else f"{world.size} CPU ranks"
    return f"{hosts}: {ranks} on {cores} cores ({names[0]}), {memory} of host memory free"


def _warnings(job: Job, arithmetic: Arithmetic, data: DataStats, seq_len: int) -> tuple[str, ...]:
    model, world = job.model, job.world
    warnings = [*world.warnings, *arithmetic.warnings]
    if model.max_positions and seq_len > model.max_positions:
        warnings.append(f"data.seq_len={seq_len} is beyond the {model.max_positions} positions {model.name} knows")
    if seq_len < data.max_tokens:
        warnings.append(f"the longest row has about {data.max_tokens} tokens and is cut at {seq_len} (data.seq_len)")
    if not machine_of(world, 0, arithmetic.precision).known:
        warnings.append(f"no peak rates are known for {world.devices[0].name}: step times are rough")
    return tuple(warnings)


def _workload(model: ModelShape, adapter: AdapterShape, data: DataStats, epoch_rows: int) -> Workload:
    return Workload(
        model=model.name,
        architecture=model.architecture,
        layers=model.layers,
        hidden=model.hidden,
        total_params=model.total_params,
        linear_params=model.linear_params,
        trainable_params=adapter.params,
        rows=data.rows,
        eval_rows=data.eval_rows,
        mean_tokens=float(data.mean_tokens),
        max_tokens=data.max_tokens,
        rows_per_epoch=epoch_rows,
        data_source=data.source,
        text=model.summary,
    )


def _nothing_fits(config: RunConfig, world: World, found: Found) -> NothingFits:
    remedy = "Use a smaller model, data.seq_len or adapter.rank, more devices, or engine=auto."
    if config.batch.micro is not None:
        remedy = "Leave batch.micro to the planner, or lower it."
    if not found.num_misfits:
        remedy = "Change one of the settings named below, or leave it on auto."
    summary = Problem(where="plan", found=f"no strategy fits {describe_world(world)}", remedy=remedy)
    return NothingFits(
        summary,
        *(Problem(where=r.strategy, found=r.reason, remedy="Rejected.") for r in found.rejected),
    )
