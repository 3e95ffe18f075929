"""Bytes on the wire, the choice of an exchange, and when sparse gradients are worth it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import (
    BatchConfig,
    Compress,
    CompressConfig,
    CompressExchange,
    Engine,
    EngineConfig,
)
from orchestrator.config_codec import parse_config
from orchestrator.errors import UserError
from orchestrator.planner.compression import (
    CHUNK,
    HEADER_BYTES,
    Codec,
    CompressionPlan,
    Exchange,
    Kind,
    Pattern,
    Values,
    chunks_of,
    codec_of,
    parts_of,
)
from orchestrator.planner.explain import explain
from orchestrator.planner.plan import Plan, dumps, loads

Planner = Callable[..., Plan]
FORCED = CompressConfig(name=Compress.topk)
AUTO = CompressConfig(name=Compress.auto)


def test_bytes_of_a_chunk() -> None:
    assert Codec(kept=40, values=Values.int8).chunk_bytes == 60 + 40 + 4
    assert Codec(kept=40, values=Values.int4).chunk_bytes == 60 + 20 + 4
    assert Codec(kept=40, values=Values.bf16).chunk_bytes == 60 + 80
    assert Codec(kept=CHUNK, values=Values.fp32).chunk_bytes == CHUNK * 4
    assert [chunks_of(n) for n in (0, 1, CHUNK, CHUNK + 1)] == [0, 1, 1, 2]


@pytest.mark.parametrize("kept", [0, 1, 3, CHUNK + 2])
def test_what_has_no_format_is_refused(kept: int) -> None:
    with pytest.raises(ValueError, match="kept values"):
        Codec(kept=kept, values=Values.int8)


@given(st.floats(2 / CHUNK, 1.0))
def test_density_is_kept_as_nearly_as_an_even_count_can(density: float) -> None:
    kept = codec_of(density, Values.int8).kept
    assert kept % 2 == 0
    assert abs(kept - density * CHUNK) <= 1


@pytest.mark.parametrize("density", [0.0, 1.9 / CHUNK, 1.1])
def test_a_density_that_no_count_is_near_is_refused(density: float) -> None:
    with pytest.raises(ValueError, match="density"):
        codec_of(density, Values.int8)


@given(st.integers(1, 9), st.integers(0, 50), st.integers(2, 64).map(lambda n: 2 * n))
def test_split_sends_each_chunk_to_its_owner_and_the_result_to_all(ranks: int, chunks: int, kept: int) -> None:
    """Against a plain count of every message."""
    codec, parts = Codec(kept=kept, values=Values.int8), parts_of(chunks, ranks)
    assert sum(parts) == chunks
    assert max(parts) - min(parts) <= 1
    for rank in range(ranks):
        total = 0
        for other in range(ranks):
            if other != rank:
                total += HEADER_BYTES + parts[other] * codec.chunk_bytes  # to the owner
                total += HEADER_BYTES + parts[rank] * codec.chunk_bytes  # the own result
        sent = Pattern(exchange=Exchange.split, ranks=ranks).sent(codec, chunks, rank)
        assert sent.total_bytes == total


def test_islands_of_all_ranks_or_of_one() -> None:
    codec = codec_of(0.01, Values.int8)
    split = Pattern(exchange=Exchange.split, ranks=4).sent(codec, 100, 1)
    alone = Pattern(exchange=Exchange.hierarchical, ranks=4, island=1).sent(codec, 100, 1)
    assert (alone.inside_bytes, alone.across_bytes) == (0, split.across_bytes)
    whole = Pattern(exchange=Exchange.hierarchical, ranks=4, island=4).sent(codec, 100, 1)
    assert whole.across_bytes == 0
    assert whole.inside_bytes > 75 * CHUNK * 4
    with pytest.raises(ValueError, match="islands of 3"):
        Pattern(exchange=Exchange.hierarchical, ranks=4, island=3)


def test_nvlink_is_too_fast(plan_for: Planner) -> None:
    plan = plan_for("8b", "dgx_h100", devices=8, compress=AUTO)
    found = plan.chosen.strategy.compression
    assert found is not None
    assert found.kind is Kind.none
    assert "3%" in found.why
    assert found.break_even_bytes_per_second is not None
    assert 0 < found.break_even_bytes_per_second < 200e9
    assert "dense gradients of the same ranks take" in found.why
    assert found.why.split("\n")[0] in explain(plan)
    assert loads(dumps(plan)) == plan


def test_forced_it_says_what_it_costs(plan_for: Planner) -> None:
    plan = plan_for("8b", "dgx_h100", devices=8, compress=FORCED)
    found = plan.chosen.strategy.compression
    assert found is not None
    assert found.kind is Kind.topk
    assert found.gain_seconds is not None
    assert found.gain_seconds < 0
    assert "on, as asked" in found.why
    terms = {term.name: term.bytes for term in plan.chosen.estimate.memory.train.terms}
    assert terms["compress_residual"] == found.residual_bytes
    assert loads(dumps(plan)) == plan


def test_terms_add_up_with_sparse_gradients(plan_for: Planner) -> None:
    estimate = plan_for("8b", "dgx_h100", devices=8, compress=FORCED).chosen.estimate
    assert sum(term.seconds for term in estimate.time_terms) == pytest.approx(estimate.step_seconds)
    assert any(term.name == "compression" for term in estimate.time_terms)


def test_zero3_has_no_hook(plan_for: Planner) -> None:
    engine = EngineConfig(name=Engine.zero3)
    plan = plan_for("8b", "dgx_h100", devices=8, engine=engine, compress=AUTO)
    found = plan.chosen.strategy.compression
    assert found is not None
    assert found.kind is Kind.none
    assert "DeepSpeed has no hook" in found.why
    with pytest.raises(UserError, match="DeepSpeed has no hook"):
        plan_for("8b", "dgx_h100", devices=8, engine=engine, compress=FORCED)


def test_one_rank_sends_nothing(plan_for: Planner) -> None:
    assert plan_for("tiny", "dgx_h100", devices=1).chosen.strategy.compression is None
    with pytest.raises(UserError, match="one rank sends no gradients"):
        plan_for("tiny", "dgx_h100", devices=1, compress=FORCED)


def test_warm_up_leaves_most_steps_compressed(plan_for: Planner) -> None:
    plan = plan_for("8b", "dgx_h100", devices=8, compress=FORCED, batch=BatchConfig(max_steps=80))
    found = plan.chosen.strategy.compression
    assert found is not None
    assert found.warmup_steps == 8
    more = replace(FORCED, warmup_fraction=0.0)
    plan = plan_for("8b", "dgx_h100", devices=8, compress=more, batch=BatchConfig(max_steps=80))
    assert plan.chosen.strategy.compression is not None
    assert plan.chosen.strategy.compression.warmup_steps == 0


@pytest.mark.parametrize("density", [0, -0.1, 1.5, 0.0004])
def test_densities_that_are_none(density: float) -> None:
    raw = {"model": {"path": "m"}, "data": {"path": "d"}, "compress": {"name": "topk", "density": density}}
    with pytest.raises(UserError, match=r"compress\.density"):
        parse_config(raw)


@pytest.mark.parametrize("refresh", [-0.1, 1.0])
def test_refreshes_that_are_none(refresh: float) -> None:
    raw = {"model": {"path": "m"}, "data": {"path": "d"}, "compress": {"name": "topk", "refresh": refresh}}
    with pytest.raises(UserError, match=r"compress\.refresh"):
        parse_config(raw)


def _asked(plan_for: Planner, steps: int, **changes: Any) -> CompressionPlan:
    compress = replace(FORCED, exchange=CompressExchange.split, **changes)
    plan = plan_for("8b", "dgx_h100", devices=8, compress=compress, batch=BatchConfig(max_steps=steps))
    found = plan.chosen.strategy.compression
    assert found is not None
    assert loads(dumps(plan)) == plan
    return found


def test_bytes_and_seconds_are_the_mean_with_refreshes(plan_for: Planner) -> None:
    found, without = _asked(plan_for, 80), _asked(plan_for, 80, refresh=0.0)
    count, compressed = found.refreshes(80), 80 - found.warmup_steps
    assert 0 < count < compressed
    assert found.sparse_bytes == round(
        (count * found.refresh_bytes + (compressed - count) * found.topk_bytes) / compressed
    )
    assert without.sparse_bytes == without.topk_bytes == found.topk_bytes
    # 4 bits of each element, to its owner and back, on seven of eight links.
    assert found.refresh_bytes == pytest.approx(2 * 7 / 8 * found.chunks * CHUNK / 2, rel=0.01)
    assert found.seconds is not None
    assert without.seconds is not None
    assert found.seconds.wire > without.seconds.wire
    assert found.seconds.select < without.seconds.select
    assert found.seconds.encode > without.seconds.encode
    assert found.buffer_bytes > 10 * without.buffer_bytes
    assert found.gain_seconds is not None
    assert without.gain_seconds is not None
    assert found.gain_seconds < without.gain_seconds
    assert f"{count} of {compressed} compressed steps send all elements in 4 bits" in found.why
    assert "all elements" not in without.why


def test_long_runs_hardly_pay_for_refreshes(plan_for: Planner) -> None:
    short, long = _asked(plan_for, 80), _asked(plan_for, 100_000)
    assert short.sparse_bytes > 3 * short.topk_bytes
    assert long.sparse_bytes < 1.02 * long.topk_bytes


def test_everything_needs_no_refresh(plan_for: Planner) -> None:
    found = _asked(plan_for, 80, density=1.0)
    assert found.refreshes(80) == 0
    assert found.sparse_bytes == found.topk_bytes
    assert "steps send all" not in found.why
