"""Answers of a small random model in this process: the library's own, whatever the batch, and no trace left."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from orchestrator.train import rng
from orchestrator.train.generate import Decoding, Generated, batches_of, generate
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.settings import TrainSettings

PROMPTS = ((5, 6, 7), (8,), (9, 10, 11, 12, 13), (14, 15))
GREEDY = Decoding(batch=3, max_new_tokens=6, temperature=0.0, stops=(2,), pad=0)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).train()


@pytest.fixture
def settings(tmp_path: Path) -> TrainSettings:
    return TrainSettings(
        run_dir=tmp_path,
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cpu"),
        engine="ddp",
        precision="fp32",
        adapter_dtype="fp32",
        quant_storage="uint8",
        checkpointing="none",
        shares=(4,),
        micro=(4,),
        accumulation=1,
    )


def _made(model: LlamaForCausalLM, settings: TrainSettings, decoding: Decoding = GREEDY) -> list[tuple[int, ...]]:
    return [one.tokens for one in generate(model, PROMPTS, decoding, settings, MetricsGroup(settings))]


def test_batches_hold_the_longest_first_and_everything_once() -> None:
    assert batches_of([3, 1, 5, 2], 3) == [[2, 0, 3], [1]]
    assert batches_of([2, 2, 2], 2) == [[0, 1], [2]]
    assert batches_of([], 2) == []


def test_greedy_answers_are_those_of_each_prompt_alone(model: LlamaForCausalLM, settings: TrainSettings) -> None:
    """Worked out token by token, without a cache, padding or the library's loop."""
    model.eval()
    expected = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(6):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] == 2:
                break
        new = tokens[len(prompt) :]
        expected.append(tuple(new[:-1] if new[-1] == 2 else new))
    assert _made(model, settings) == expected
    assert _made(model, settings, Decoding(batch=1, max_new_tokens=6, temperature=0.0, stops=(2,), pad=0)) == expected


def test_an_answer_ends_at_each_of_its_stops(model: LlamaForCausalLM, settings: TrainSettings) -> None:
    free = _made(model, settings, Decoding(batch=4, max_new_tokens=6, temperature=0.0, stops=(), pad=0))
    assert [len(tokens) for tokens in free] == [6] * 4
    stop = free[0][2]
    decoding = Decoding(batch=4, max_new_tokens=6, temperature=0.0, stops=(stop, 1), pad=0)
    made = generate(model, PROMPTS, decoding, settings, MetricsGroup(settings))
    cut = free[0].index(stop)
    assert made[0].tokens == free[0][:cut]
    assert made[0].ended
    assert all(stop not in one.tokens for one in made)


def test_nothing_of_the_training_is_changed(model: LlamaForCausalLM, settings: TrainSettings) -> None:
    model.train()
    before = rng.capture()
    drawn = Decoding(batch=2, max_new_tokens=6, temperature=1.5, stops=(), pad=0, seed=3)
    first = _made(model, settings, drawn)
    after = rng.capture()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.training
    torch.rand(7)  # wherever training stands, the same answers are drawn
    assert _made(model, settings, drawn) == first
    assert _made(model, settings, Decoding(batch=2, max_new_tokens=6, temperature=1.5, stops=(), pad=0)) != first


def test_positions_that_the_model_has_not_are_not_asked_for(model: LlamaForCausalLM, settings: TrainSettings) -> None:
    decoding = Decoding(batch=1, max_new_tokens=50, temperature=0.0, stops=(), pad=0, max_positions=8)
    assert [len(tokens) for tokens in _made(model, settings, decoding)] == [5, 7, 3, 6]


def test_ranks_that_pass_together_have_the_room_of_the_widest_batch(
    model: LlamaForCausalLM, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def noted(prompts: list[tuple[int, ...]], _: object, limit: Decoding, *more: object) -> list[Generated]:
        asked.append((len(prompts[0]), limit.max_new_tokens))
        return [Generated(tokens=(), ended=True)] * len(prompts)

    class Group:
        def gather(self, found: list[tuple[int, Generated]]) -> list[list[tuple[int, Generated]]]:
            return [[(at, Generated(tokens=(), ended=True)) for at in range(len(PROMPTS))], found]

    monkeypatch.setattr("orchestrator.train.generate.answer_batch", noted)
    decoding = Decoding(batch=1, max_new_tokens=50, temperature=0.0, stops=(), pad=0, max_positions=8)
    second = replace(settings, world_size=2, rank=1, engine="zero3", shares=(2, 2), micro=(2, 2))
    generate(model, PROMPTS, decoding, second, cast("MetricsGroup", Group()))
    assert asked == [(3, 3), (1, 6)]  # beside prompts of 5 and 2 tokens


def test_there_is_a_beat_for_every_token(model: LlamaForCausalLM, settings: TrainSettings) -> None:
    beats: list[int] = []
    decoding = Decoding(batch=3, max_new_tokens=4, temperature=0.0, stops=(), pad=0)
    generate(model, PROMPTS, decoding, settings, MetricsGroup(settings), beats.append)
    assert beats == [0] * 4 + [3] * 4
    assert generate(model, (), decoding, settings, MetricsGroup(settings)) == ()


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_models_own_settings_decide_nothing_and_are_as_before(
    model: LlamaForCausalLM, settings: TrainSettings, wrapped: bool
) -> None:
    expected = _made(model, settings)
    sampled = replace(GREEDY, temperature=1.0)
    drawn = _made(model, settings, sampled)
    own = GenerationConfig(
        min_p=0.9,
        typical_p=0.1,
        min_new_tokens=6,
        suppress_tokens=[token for token in range(32) if token not in {3, 4}],
        forced_eos_token_id=4,
        sequence_bias={(7,): 50.0},
    )
    held = copy.deepcopy(model)
    held.generation_config = own
    asked: Any = get_peft_model(held, LoraConfig(target_modules=["q_proj"])) if wrapped else held
    assert _made(asked, settings) == expected
    assert _made(asked, settings, sampled) == drawn
    assert held.generation_config is own

    def fails(*_: object, **__: object) -> None:
        assert held.generation_config.min_p is None
        raise RuntimeError("out of memory")

    held.generate = fails
    with pytest.raises(RuntimeError, match="out of memory"):
        _made(asked, settings)
    assert held.generation_config is own
