"""Runs on a base of several kinds of storage: 4-bit, 8-bit and unquantised modules, replicated and streamed."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

MIX = (r"base.quant_pattern=down_proj:int8,layers\.0\.:none", "batch.max_steps=4", "devices=2")


@pytest.fixture(scope="module")
def mixed(runs: Any) -> str:
    """A replicated run, from nf4 in the other modules."""
    runs.train("mixed", "engine=ddp", *MIX)
    return "mixed"


def test_the_base_takes_what_was_planned(runs: Any, mixed: str) -> None:
    summary = runs.summary(mixed)
    live, planned = summary["measured"]["live"], summary["predicted"]["live"]
    bases = ("base_packed", "absmax", "base_unquantised")
    assert {name: live[name] for name in bases} == {name: planned[name] for name in bases}
    losses = runs.losses(mixed)
    assert losses[4] < losses[1]


def test_streamed_layers_give_the_same_numbers(runs: Any, mixed: str) -> None:
    runs.train("mixed_streamed", "engine=streamed", "engine.shards=[70,30]", "engine.window=2", *MIX)
    assert runs.losses("mixed_streamed") == runs.losses(mixed)
    ours, plain = runs.summary("mixed_streamed"), runs.summary(mixed)
    assert ours["eval_row_losses"] == plain["eval_row_losses"]
    live, planned = ours["measured"]["live"], ours["predicted"]["live"]
    assert live["base_shard"] == pytest.approx(planned["base_shard"], rel=0.01)
    assert live["window"] == planned["window"]
    assert live["base_unquantised"] == pytest.approx(planned["base_unquantised"], rel=0.01)


def test_another_pattern_does_not_continue_it(runs: Any, mixed: str) -> None:
    folder = runs.copy_at(mixed, "mixed_other", 2)
    other = ("base.quant_pattern=down_proj:int8", "batch.max_steps=4", "devices=2", "engine=ddp")
    done = runs.run(
        *("train", "experiment=demo", "checkpoint.every=2", "data.max_eval_rows=16", *other),
        *(f"run_dir={folder}", "resume=true"),
    )
    assert done.returncode != 0
    assert "base.quant" in done.stdout + done.stderr
