"""Which attention kernel the estimates of a plan assume."""

from __future__ import annotations

import pytest

from orchestrator.config import AdapterConfig, Attention, DataConfig, ModelConfig, RunConfig
from orchestrator.estimate.setting import Setting
from orchestrator.planner import evaluate
from orchestrator.planner.build import make_plan
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.batch import BatchShape, DataStats
from orchestrator.workload.named import preset_shape
from topology.presets import preset


@pytest.mark.parametrize("attention", list(Attention))
def test_the_estimate_is_told_which_kernel_runs(monkeypatch: pytest.MonkeyPatch, attention: Attention) -> None:
    seen: list[Setting] = []
    estimate = evaluate.estimate_memory

    def recorded(setting: Setting) -> object:
        seen.append(setting)
        return estimate(setting)

    monkeypatch.setattr(evaluate, "estimate_memory", recorded)
    config = RunConfig(model=ModelConfig(path="tiny", attention=attention), data=DataConfig(path="rows.jsonl"))
    rows = DataStats(rows=99, eval_rows=0, mean_tokens=64, max_tokens=64, total_tokens=6336, source="counted")
    make_plan(config, preset("1x24gb"), preset_shape("tiny-llama"), rows, "run")
    assert {x.flash_attention for x in seen} == {attention is Attention.flash_attention_2}
    assert {x.eager_attention for x in seen} == {attention is Attention.eager}


@pytest.mark.parametrize(("name", "eager"), [("bloom-7b1", True), ("gpt-oss-20b", True), ("llama-3-8b", False)])
def test_models_without_a_fused_kernel_run_eagerly(name: str, eager: bool) -> None:
    model = preset_shape(name)
    config = RunConfig(model=ModelConfig(path=name), data=DataConfig(path="rows.jsonl"))
    batch = BatchShape(real_tokens_per_row=64.0, longest_tokens=64, fixed=True, padded=False)
    adapter = adapter_shape(model, AdapterConfig())
    job = evaluate.Job(config=config, model=model, adapter=adapter, batch=batch, seq_len=64)
    assert evaluate._is_eager(job) is eager
