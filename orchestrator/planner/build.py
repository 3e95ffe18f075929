"""From configuration, machine, model and data to a plan: a pure function of values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.calibration_file import Chosen
from orchestrator.config import Engine, Optimizer, RunConfig
from orchestrator.config_codec import dump_config
from orchestrator.errors import NothingFits, Problem
from orchestrator.planner.compress_choice import compression_of, offer_of, with_warmup
from orchestrator.planner.cut_lines import cut_lines
from orchestrator.planner.data_report import data_report
from orchestrator.planner.dtypes import Arithmetic, choose_precision
from orchestrator.planner.evaluate import Job, Point, setting_of
from orchestrator.planner.layers import layer_trades
from orchestrator.planner.measured import CalibrationUse, rates_used
from orchestrator.planner.plan import Choice, Plan, Rejection, Workload
from orchestrator.planner.points import derivation_of
from orchestrator.planner.rank_choice import choose_rank
from orchestrator.planner.rates import cores_of, host_share_bytes
from orchestrator.planner.reasons import reasons_for
from orchestrator.planner.solve import Asked, Solution, solve
from orchestrator.planner.stacked_experts import unpacked_experts
from orchestrator.planner.trades import trades_of
from orchestrator.planner.uneven import uneven_shards
from orchestrator.planner.variants import packed_rows, sequence_length
from orchestrator.planner.ways_out import ORDER, TOLD, ways_out
from orchestrator.planner.world import World
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.batch import DataStats
from orchestrator.workload.model import ModelShape
from orchestrator.workload.quant_pattern import kinds_text
from topology.codec import fingerprint
from topology.model import Topology
from topology.units import format_bytes

_SHOWN_HOSTS = 4

__all__ = ["make_plan", "plan_of_solution", "sequence_length"]


def make_plan(
    config: RunConfig,
    topology: Topology,
    model: ModelShape,
    data: DataStats,
    run_id: str,
    calibration: Chosen | None = None,
    counts: tuple[int, ...] = (),
) -> Plan:
    """Plan the run, with what was measured in the place of tables where there is a calibration.

    `counts` are the ranks of each host, where the user's hostfile tells them.

    Raises:
        UserError: what was asked for is not there (devices, module names), or contradicts itself.
        NothingFits: no strategy fits; it carries the reason of every rejection and the cheapest ways out.
    """
    known = calibration or Chosen()
    asked = Asked(
        config=config, topology=topology, model=model, data=data, calibration=known.calibration, counts=counts
    )
    if config.adapter.rank is None:
        settled = choose_rank(asked)
        plan = _planned(settled.asked, settled.solution, run_id, known)
        return replace(plan, reasons=(*plan.reasons, settled.why))
    return _planned(asked, solve(asked), run_id, known)


def _planned(asked: Asked, solution: Solution, run_id: str, known: Chosen) -> Plan:
    if solution.found.best is None:
        raise _nothing_fits(asked, solution)
    return plan_of_solution(asked, solution, run_id, known)


def plan_of_solution(asked: Asked, solution: Solution, run_id: str, known: Chosen) -> Plan:
    """Write out the best of what a search has found, which must have found something."""
    job, found = solution.job, solution.found
    config, settled, model, data = job.config, replace(asked, config=job.config), asked.model, asked.data
    if found.best is None or found.fit is None:
        raise ValueError("a plan of a search that found nothing")
    world, tightest = found.best.place.world, found.fit.ranks
    trades = trades_of(settled, job, found.best, whole_fits=_whole_fits(asked, solution))
    arithmetic = choose_precision(config, world)
    load = _workload(job, data, packed_rows(data, job.seq_len) if config.data.packing else data.rows)
    ranked = _with_compression(job, found.best, found.ranked, load)
    return Plan(
        run_id=run_id,
        config=dump_config(config),
        chosen=ranked[0],
        ranked=ranked,
        rejected=tuple(Rejection(strategy=entry.strategy, reason=entry.reason) for entry in found.refused),
        reasons=reasons_for(asked, solution, arithmetic),
        warnings=(*_warnings(job, found.best, arithmetic, data), *known.warnings),
        workload=load,
        topology_fingerprint=fingerprint(asked.topology),
        device_kind=world.devices[0].kind.value,
        device_name=tightest.device_name,
        device_memory_bytes=tightest.machine.memory_bytes,
        machine=describe_world(world if config.devices else solution.worlds[0]),
        num_fit=found.num_fit,
        trades=trades.single,
        tree=trades.tree,
        layers=layer_trades(model, trades),
        shards=cut_lines(job, found.best) or uneven_shards(job, world if config.devices else solution.worlds[0]),
        knobs=derivation_of(job, found.best),
        calibration=_use_of(known, job, found.best),
        setbacks=asked.setbacks,
        data=data_report(job, found.best, data),
    )


def _whole_fits(asked: Asked, solution: Solution) -> bool | None:
    """Whether a whole copy of the base fits each device, as the search has found; None where it did not look at that.

    Of optimizers that were left open, a copy that fits with one is not looked at with the next.
    """
    if asked.config.engine.name is not Engine.auto or asked.config.optimizer.name is Optimizer.auto:
        return None
    packing = bool(solution.job.config.data.packing)
    found = (choice.strategy for choice in solution.found.ranked)
    return any(one.engine is Engine.ddp and one.packing is packing for one in found)


def _with_compression(job: Job, best: Point, ranked: tuple[Choice, ...], load: Workload) -> tuple[Choice, ...]:
    """Say of the chosen strategy whether its gradients travel sparse, and why; and of all how many steps are dense."""
    config = job.config
    steps = config.batch.max_steps or math.ceil(load.rows_per_epoch * config.batch.epochs / config.batch.global_)
    first = compression_of(job, best, offer_of(job, best.place), steps)
    plans = (first, *(choice.strategy.compression for choice in ranked[1:]))
    ranked = (_with_cut_told(job, best, ranked[0]), *ranked[1:])
    return tuple(
        replace(choice, strategy=replace(choice.strategy, compression=plan and with_warmup(plan, config, steps)))
        for choice, plan in zip(ranked, plans, strict=True)
    )


def _with_cut_told(job: Job, best: Point, choice: Choice) -> Choice:
    streamed = choice.strategy.streamed
    if streamed is None:
        return choice
    return replace(choice, strategy=replace(choice.strategy, streamed=replace(streamed, told=cut_lines(job, best))))


def _use_of(known: Chosen, job: Job, best: Point) -> CalibrationUse | None:
    if known.calibration is None:
        return None
    rates = rates_used(setting_of(job, best, 0))
    return CalibrationUse(file=known.path, made=known.calibration.made, rates=rates)


def describe_world(world: World) -> str:
    """One line about the devices and their hosts."""
    counts = Counter((device.name, device.memory_bytes or 0) for device in world.devices)
    mixed = len(counts) > 1
    named = ", ".join(
        f"{count} x {name}" + (f" ({format_bytes(size)})" if mixed else "") for (name, size), count in counts.items()
    )
    (first, smallest), *_ = counts
    if not world.is_even:
        return _unequal_hosts(world, named)
    hosts = ", ".join(host.name for host in world.hosts[:_SHOWN_HOSTS])
    if len(world.hosts) > _SHOWN_HOSTS:
        hosts = f"{len(world.hosts)} hosts ({hosts}, ...)"
    memory = format_bytes(world.host_bytes_per_rank(0) * world.processes_per_node)
    cores = cores_of(world.hosts[0])
    each = " each" if len(world.hosts) > 1 else ""
    if world.is_gpu:
        cards = named if mixed else f"{named} ({format_bytes(smallest)} each)"
        return f"{hosts}: {cards}, {cores} cores, {memory} of host memory free{each}"
    ranks = "1 CPU rank" if world.size == 1 else f"{world.size} CPU ranks"
    return f"{hosts}: {ranks} on {cores} cores ({first}), {memory} of host memory free"


def _unequal_hosts(world: World, named: str) -> str:
    counts = world.ranks_per_host
    shown = [f"{host.name} ({count})" for host, count in zip(world.hosts, counts, strict=True)][:_SHOWN_HOSTS]
    hosts = ", ".join(shown)
    if len(counts) > len(shown):
        hosts = f"{len(counts)} hosts ({hosts}, ...)"
    cores = sorted({cores_of(host) for host in world.hosts})
    free = sorted({host_share_bytes(host, 1) for host in world.hosts})
    told = f"{_from_to(cores, str)} cores, {_from_to(free, format_bytes)} of host memory free each"
    return f"{hosts}: {named if world.is_gpu else f'{world.size} CPU ranks'}, {told}"


def _from_to(values: Sequence[int], text: Callable[[int], str]) -> str:
    return text(values[0]) if len(values) == 1 else f"{text(values[0])} to {text(values[-1])}"


def _warnings(job: Job, best: Point, arithmetic: Arithmetic, data: DataStats) -> tuple[str, ...]:
    model, world, seq_len = job.model, best.place.world, job.seq_len
    warnings = [*world.warnings, *arithmetic.warnings]
    if model.max_positions and seq_len > model.max_positions:
        warnings.append(f"data.seq_len={seq_len} is beyond the {model.max_positions} positions {model.name} knows")
    if seq_len < data.max_tokens:
        warnings.append(f"the longest row has about {data.max_tokens} tokens and is cut at {seq_len} (data.seq_len)")
    unknown = dict.fromkeys(ranks.device_name for ranks in best.place.classes if not ranks.machine.known)
    warnings += [f"no peak rates are known for {name}: step times are rough" for name in unknown]
    return tuple(warnings)


def _workload(job: Job, data: DataStats, epoch_rows: int) -> Workload:
    model = job.model
    adapter: AdapterShape = job.adapter
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
        text="; ".join(x for x in (model.summary, kinds_text(model, job.config.base.quant)) if x),
    )


def _nothing_fits(asked: Asked, solution: Solution) -> NothingFits:
    config, found = asked.config, solution.found
    outs = ways_out(asked) if found.num_misfits else ()
    remedy = "Use a smaller model, data.seq_len or adapter.rank, more devices, or engine=auto."
    if outs:
        remedy = f"Ways out stand at the end, {ORDER}."
        if len(outs) < TOLD:
            remedy += " No other of the changes that were tried is enough, alone or with a second one."
    elif config.batch.micro is not None:
        remedy = "Leave batch.micro to the planner, or lower it."
    if not found.num_misfits:
        remedy = "Change one of the settings named below, or leave it on auto."
    summary = Problem(where="plan", found=f"no strategy fits {describe_world(solution.worlds[0])}", remedy=remedy)
    return NothingFits(
        summary,
        *(unpacked_experts(asked, solution.worlds[0]) if found.num_misfits else ()),
        *(Problem(where=r.strategy, found=r.reason, remedy="Rejected.") for r in found.refused),
        *outs,
    )
