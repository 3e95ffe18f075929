"""The cut of the layers in words: who holds what, how long a layer takes to fetch, and what may be fetched at once."""

from __future__ import annotations

from collections import Counter

from orchestrator.planner.evaluate import Job, Point
from orchestrator.planner.fits import usable_bytes
from orchestrator.planner.streamed_plan import TierBytes
from orchestrator.planner.streaming_cut import Streaming
from orchestrator.planner.streaming_plan import HEADROOM, shares_of, streamed_plan
from topology.units import MIB, format_bytes, format_seconds

_MOST_LINES = 16


def cut_lines(job: Job, point: Point) -> tuple[str, ...]:
    """Tell a point of engine streamed; nothing for other engines."""
    streaming = point.streaming
    if streaming is None:
        return ()
    shares = shares_of(point.place, streaming)
    total = sum(share.total for share in shares[: streaming.island])
    return (
        _head(job, streaming, total),
        *_ranks(point, shares, total),
        *_fetching(streaming, total, is_gpu=point.place.world.is_gpu),
        *_pace(job, point, streaming),
    )


def _head(job: Job, streaming: Streaming, total: int) -> str:
    streams = job.model.layers - streaming.residents
    ranks = "1 rank" if streaming.island == 1 else f"{streaming.island} ranks"
    text = f"{_size(total)} of {streams} layers over {ranks}"
    if streaming.residents:
        text += f", and {streaming.residents} layers whole on every rank, so that the others arrive in time"
    window = f"{streaming.window} layers of up to {_size(streaming.largest_bytes)}, {streaming.most_window} at most"
    return f"{text}; a window of {window}"


def _ranks(point: Point, shares: tuple[TierBytes, ...], total: int) -> list[str]:
    """Ranks that hold alike, to a byte or two, in one line; as many lines as are read."""
    place = point.place
    kinds: Counter[tuple[str, TierBytes]] = Counter()
    known: dict[tuple[str, int, int, int], TierBytes] = {}
    for share, at in zip(shares, place.class_of_ranks, strict=True):
        ranks = place.classes[at]
        limit = usable_bytes(ranks) if ranks.machine.is_gpu else ranks.budget_bytes
        name = ranks.device_name + (f" ({format_bytes(limit)} to fill)" if limit else "")
        rounded = (name, share.device >> 10, share.host >> 10, share.nvme >> 10)
        kinds[name, known.setdefault(rounded, share)] += 1
    lines = [_line(name, count, share, total) for (name, share), count in kinds.items()]
    more = len(lines) - _MOST_LINES
    return lines[:_MOST_LINES] + ([f"  and {more} more kinds of ranks"] if more > 0 else [])


def _line(name: str, count: int, share: TierBytes, total: int) -> str:
    parts = [
        f"{_size(held)} {where}"
        for held, where in (
            (share.device, "on the device"),
            (share.host, "in pinned host memory"),
            (share.nvme, "on the drive"),
        )
        if held
    ]
    return (
        f"  {count} x {name}: {', '.join(parts) or 'nothing'} ({share.total / total if total else 0:.1%} of each layer)"
    )


def _fetching(streaming: Streaming, total: int, *, is_gpu: bool) -> list[str]:
    own = streaming.classes[0]
    if not total or not (own.gather_seconds or own.copy_seconds):
        return []
    both = [own.gather_seconds, own.copy_seconds]
    fetch = sum(both) if own.shares_path else max(both)
    how = [
        f"{format_seconds(x)} {what}" for x, what in zip(both, ("over the links", "from the host"), strict=True) if x
    ]
    joined = (" and then " if own.shares_path else " beside ").join(how)
    layer = format_seconds(streaming.layer_seconds)
    if not is_gpu:
        return [f"  A layer takes {joined} to fetch, and {layer} to compute, on the same cores."]
    if fetch <= streaming.layer_seconds:
        return [f"  A layer takes {joined} to fetch, and {layer} to compute: fetching hides behind computing."]
    late = format_seconds(fetch - streaming.layer_seconds)
    return [f"  A layer takes {joined} to fetch, and {layer} to compute: a forward pass waits {late} for each."]


def _pace(job: Job, point: Point, streaming: Streaming) -> list[str]:
    plan = streamed_plan(point.place, streaming, job.config.engine)
    if plan.gather_window_bytes is None:
        return []
    most, chunk = _size(plan.gather_window_bytes), _size(plan.chunk_bytes)
    why = f"{HEADROOM:.0%} of the memory's rate, at least the next layer"
    return [f"  While one layer computes {most} may be fetched, in pieces of {chunk}: {why}."]


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes >= 1 << 30 else f"{size_bytes / MIB:,.1f} MiB"
