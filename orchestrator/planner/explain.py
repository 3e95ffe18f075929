"""The plan as text for people."""

from __future__ import annotations

from orchestrator.estimate.values import PhaseMemory, Term
from orchestrator.planner.explain_data import data_text
from orchestrator.planner.explain_tables import derivations, ranking, rates, rejections, trades, tree
from orchestrator.planner.plan import Plan
from topology.units import GIB, format_bytes, format_seconds

_BAR = 24


def explain(plan: Plan) -> str:
    """Return the plan in words and tables: machine, model, choice and why, ranking, rejections, memory."""
    blocks = [
        _head(plan),
        *([data_text(plan.data)] if plan.data else []),
        "\n".join([f"Chosen: {plan.chosen.strategy.label}", *(f"  {reason}" for reason in reasons_of(plan))]),
        ranking(plan),
        *([rejections(plan)] if plan.rejected else []),
        _memory(plan),
        *([trades(plan)] if plan.trades else []),
        *([tree(plan)] if plan.tree else []),
        *([_shards(plan)] if plan.shards else []),
        *([derivations(plan)] if plan.knobs else []),
    ]
    if plan.warnings:
        blocks.append("\n".join(["Warnings", *(f"  {warning}" for warning in plan.warnings)]))
    return "\n\n".join(blocks) + "\n"


def reasons_of(plan: Plan) -> tuple[str, ...]:
    """Why the choice, who brings layers together and sums the gradients, and whether these travel sparse."""
    strategy = plan.chosen.strategy
    sparse = strategy.compression
    gathers = None if strategy.streamed is None else strategy.streamed.gather_route
    told = [route.why for route in (gathers, strategy.gradient_route) if route is not None]
    return (*plan.reasons, *told, *([] if sparse is None else sparse.why.split("\n")))


def _head(plan: Plan) -> str:
    load = plan.workload
    share = load.trainable_params / max(1, load.total_params)
    return "\n".join(
        [
            f"Machine  {plan.machine}",
            f"Model    {load.text}",
            f"Adapter  {load.trainable_params:,} trainable parameters ({share:.2%})",
            (
                f"Data     {load.rows:,} rows of {load.mean_tokens:.0f} tokens on average, {load.max_tokens:,} at most "
                f"({load.data_source}); rows cut at {plan.chosen.strategy.seq_len:,}"
            ),
            *([f"Rates    measured on {plan.calibration.made} ({plan.calibration.file})"] if plan.calibration else []),
        ]
    )


def _shards(plan: Plan) -> str:
    title = "Uneven shards over all devices (as engine=streamed could hold the layers)"
    if plan.chosen.strategy.streamed is not None:
        title = "Cut of the layers"
    return "\n".join([title, *(f"  {line}" for line in plan.shards)])


def explain_estimate(plan: Plan) -> str:
    """Return the chosen strategy's estimate term by term: memory of each phase, and the time of a step."""
    estimate = plan.chosen.estimate
    memory = estimate.memory
    phases = (("loading", memory.load), ("training", memory.train), ("saving", memory.save))
    blocks = [_head(plan), f"Strategy {plan.chosen.strategy.label}"]
    blocks += [_phase_table(plan, name, phase) for name, phase in phases]
    width = max(len(term.name) for term in estimate.time_terms)
    lines = [f"  {t.name:<{width}}  {format_seconds(t.seconds):>10}  {t.why}" for t in estimate.time_terms]
    bounds = f"{format_seconds(estimate.lower_seconds)} to {format_seconds(estimate.upper_seconds)}"
    title = (
        f"Time of a step: {format_seconds(estimate.step_seconds)} ({bounds}), "
        f"{estimate.tokens_per_second:,.0f} tokens/s without padding"
    )
    blocks.append("\n".join([title, *lines]))
    blocks.append(rates(plan))
    if plan.warnings:
        blocks.append("\n".join(["Warnings", *(f"  {warning}" for warning in plan.warnings)]))
    return "\n\n".join(blocks) + "\n"


def _memory(plan: Plan) -> str:
    memory = plan.chosen.estimate.memory
    loading, saving = format_bytes(memory.load.device_bytes), format_bytes(memory.save.device_bytes)
    return _phase_table(plan, "training", memory.train, f" (loading peaks at {loading}, saving at {saving})")


def _phase_table(plan: Plan, name: str, phase: PhaseMemory, others: str = "") -> str:
    terms = _terms(plan, phase)
    most = max(term.bytes for term in terms)
    width = max(len(term.name) for term in terms)
    limit = f" of {format_bytes(plan.device_memory_bytes)}" if plan.device_kind == "gpu" else ""
    host = f", host {format_bytes(phase.host_bytes)}" if plan.device_kind == "gpu" else ""
    # Where ranks differ, the one whose memory is the tightest.
    who = f" on {plan.device_name}" if len(set(plan.chosen.strategy.shares)) > 1 and limit else ""
    lines = [
        f"  {term.name:<{width}}  {_size(term.bytes):>10}  {'#' * max(1, round(_BAR * term.bytes / most)):<{_BAR}}  "
        f"{term.why}"
        for term in terms
    ]
    return "\n".join(
        [f"Memory of a rank{who} while {name}: {format_bytes(phase.device_bytes)}{limit}{host}{others}", *lines]
    )


def _terms(plan: Plan, phase: PhaseMemory) -> tuple[Term, ...]:
    """All addends of the device bytes, the allocator's and the runtime's shares included."""
    slack = phase.reserved_bytes - phase.allocated_bytes
    extra = [Term(name="allocator_slack", bytes=slack, why="held by the allocator, not in use")]
    if plan.device_kind == "gpu":
        context = phase.device_bytes - phase.reserved_bytes
        extra.append(Term(name="cuda_context", bytes=context, why="CUDA context, libraries and communicators"))
    else:
        extra += [term for term in phase.host_terms if term.name != "tensors"]
    return tuple(sorted((*phase.terms, *extra), key=lambda term: -term.bytes))


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes >= GIB else f"{size_bytes / 2**20:.1f} MiB"
