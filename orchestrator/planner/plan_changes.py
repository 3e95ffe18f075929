"""What differs between two plans of one run, in words."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config import Engine
from orchestrator.planner.plan import Plan
from orchestrator.planner.strategy import Strategy, residency_label
from topology.units import format_bytes


def changes_between(before: Plan, after: Plan) -> tuple[str, ...]:
    """Say what differs, one thing each, what weighs most first; empty where nothing of note does."""
    old, new = before.run_config.adapter.rank, after.run_config.adapter.rank
    found = tuple(_changes(before.chosen.strategy, after.chosen.strategy))
    if old is None or new is None or new >= old:
        return found
    return (f"adapters in rank {new}, not {old} (lossy: what is learnt is cut down to it)", *found)


def _changes(old: Strategy, new: Strategy) -> Iterator[str]:
    if old.seq_len != new.seq_len:
        yield f"rows are cut at {new.seq_len} tokens, not {old.seq_len} (lossy: what lies behind is not learnt)"
    if old.engine is not new.engine:
        yield f"engine {old.engine.value} -> {new.engine.value}{_details(new)}"
    pairs = [
        ("hosts", str(old.num_nodes), str(new.num_nodes)),
        ("ranks", str(old.world_size), str(new.world_size)),
        ("micro-batch", _range(old.micro), _range(new.micro)),
        ("accumulation", str(old.accumulation), str(new.accumulation)),
        ("activations", old.mode_label, new.mode_label),
        ("precision", old.precision, new.precision),
        ("adapters in", old.adapter_dtype, new.adapter_dtype),
        ("padding", old.padding.value, new.padding.value),
    ]
    if old.world_size == new.world_size:
        pairs.append(("rows of each rank", _list(old.shares), _list(new.shares)))
        if old.device_ids != new.device_ids:
            pairs.append(("devices", _names(old), _names(new)))
    if old.engine is new.engine:
        pairs += _engine_pairs(old, new)
    yield from (f"{name} {one} -> {other}" for name, one, other in pairs if one != other)


def _details(new: Strategy) -> str:
    if new.streamed is not None:
        return f", window {new.streamed.window}{_waiting(new)}"
    if new.zero3 is not None:
        return f", {residency_label(new.zero3.offload_param, new.zero3.offload_optimizer)}"
    return ""


def _engine_pairs(old: Strategy, new: Strategy) -> list[tuple[str, str, str]]:
    if new.engine is Engine.streamed and old.streamed is not None and new.streamed is not None:
        one, other = old.streamed, new.streamed
        pairs = [
            ("window", str(one.window), str(other.window)),
            ("layers held whole", format_bytes(one.resident_bytes), format_bytes(other.resident_bytes)),
            ("ranks that share a copy", str(one.island_size), str(other.island_size)),
            ("off the devices", _off(old), _off(new)),
        ]
        if old.world_size == new.world_size:
            pairs.append(("parts of the layers", _parts(old), _parts(new)))
        return pairs
    if old.zero3 is not None and new.zero3 is not None:
        one_z, other_z = old.zero3, new.zero3
        before, after = (residency_label(x.offload_param, x.offload_optimizer) for x in (one_z, other_z))
        pairs = [("residency", before, after)]
        sizes = ("prefetch_bucket_size", "max_live_parameters", "reduce_bucket_size")
        pairs += [(name, f"{getattr(one_z, name):,}", f"{getattr(other_z, name):,}") for name in sizes]
        return pairs
    return []


def _waiting(strategy: Strategy) -> str:
    off = _off(strategy)
    return "" if off == "0%" else f", {off} off the devices"


def _off(strategy: Strategy) -> str:
    """Part of the layers that waits in host memory or on a drive."""
    shares = () if strategy.streamed is None else strategy.streamed.shares
    total = sum(share.total for share in shares)
    return f"{sum(share.host + share.nvme for share in shares) / total:.0%}" if total else "0%"


def _parts(strategy: Strategy) -> str:
    shares = () if strategy.streamed is None else strategy.streamed.shares
    total = sum(share.total for share in shares)
    return _list(tuple(round(100 * share.total / total) for share in shares)) + "%" if total else ""


def _range(values: tuple[int, ...]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _list(values: tuple[int, ...]) -> str:
    return _range(values) if len(values) > _FEW else "/".join(map(str, values))


def _names(strategy: Strategy) -> str:
    ids = strategy.device_ids
    return ", ".join(ids) if len(ids) <= _FEW else f"{ids[0]} and {len(ids) - 1} others"


_FEW = 8
