"""Answers to prompts, by any engine and any number of ranks, without a trace in the training.

Prompts are sorted by length, cut into batches, and the batches dealt out to the ranks: the same batches whatever the
number of ranks, so greedy answers do not depend on it. Where a forward pass is collective (ZeRO-3 and streamed layers
fetch weights of each other) every rank makes as many passes as the longest one needs, and the room that the widest
batch of a round has for answers is that of all its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from orchestrator.train import rng
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.settings import TrainSettings
from orchestrator.train.trainer import autocast

Tokens = tuple[int, ...]
_SETTINGS = "generation_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How answers are made.

    Attributes:
        batch: prompts at a time.
        max_new_tokens: of an answer.
        temperature: 0 takes the likeliest token each time.
        stops: tokens that end an answer.
        pad: token that fills up shorter prompts.
        max_positions: that the model takes; 0 for no limit.
        seed: of the draws, where the temperature is above 0.
    """

    batch: int
    max_new_tokens: int
    temperature: float
    stops: Tokens
    pad: int
    max_positions: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The tokens of an answer, without the one that ended it, and whether one did."""

    tokens: Tokens
    ended: bool


class _Beats(StoppingCriteria):  # type: ignore[misc]
    """Ends nothing: says after each token that there is progress."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        self._beat()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def passes_are_collective(settings: TrainSettings) -> bool:
    """Whether a forward pass fetches weights of other ranks."""
    return settings.world_size > 1 and settings.engine in {"zero3", "streamed"}


def batches_of(lengths: Sequence[int], batch: int) -> list[list[int]]:
    """Numbers of prompts by batch: the longest first, so that a batch has few fillers and memory runs out early."""
    order = sorted(range(len(lengths)), key=lambda at: (-lengths[at], at))
    return [order[start : start + batch] for start in range(0, len(order), batch)]


def generate(
    model: nn.Module,
    prompts: Sequence[Tokens],
    decoding: Decoding,
    settings: TrainSettings,
    group: MetricsGroup,
    beat: Callable[[int], None] = lambda _: None,
) -> tuple[Generated, ...]:
    """Answer every prompt once; collective. Returns the answers in the order of the prompts, on every rank.

    Args:
        model: with its adapters; its mode and all generators are afterwards as before.
        prompts: tokens of each, at least one; the same on every rank.
        decoding: how.
        settings: of this rank.
        group: of all ranks.
        beat: told after each token how many prompts this rank has answered.
    """
    if not prompts:
        return ()
    batches = batches_of([len(prompt) for prompt in prompts], decoding.batch)
    own: list[list[int] | None] = list(batches[settings.rank :: settings.world_size])
    if passes_are_collective(settings):
        own += [None] * (-(-len(batches) // settings.world_size) - len(own))
    states, was_training = rng.capture(), model.training
    model.eval()
    found: list[tuple[int, Generated]] = []
    try:
        for at, chosen in enumerate(own):
            rng.seed_rank(decoding.seed, at * settings.world_size + settings.rank)
            # Without a batch of its own a rank answers the shortest prompt once more, for the others' sake.
            asked = [prompts[i] for i in chosen] if chosen is not None else [min(prompts, key=len)]
            limit = decoding
            if passes_are_collective(settings):  # a rank that is done goes on with passes until the slowest is
                widest = max(len(prompts[i]) for i in batches[at * settings.world_size])
                limit = replace(decoding, max_new_tokens=_new_tokens(widest, decoding))
            made = answer_batch(asked, model, limit, settings, partial(beat, len(found)))
            found += zip(chosen or (), made, strict=False)
    finally:
        model.train(was_training)
        rng.restore(states)
    everything = dict(item for part in group.gather(found) for item in part)
    return tuple(everything[i] for i in range(len(prompts)))


def answer_batch(
    prompts: Sequence[Tokens],
    model: nn.Module,
    decoding: Decoding,
    settings: TrainSettings,
    beat: Callable[[], None] = lambda: None,
) -> list[Generated]:
    """Answer one batch in evaluation mode; where weights are fetched of other ranks, all make as many passes."""
    together = passes_are_collective(settings)
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), decoding.pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    generator: Any = model
    with torch.no_grad(), autocast(settings), bare_defaults(model):
        out = generator.generate(
            input_ids=ids.to(settings.device),
            attention_mask=mask.to(settings.device),
            generation_config=_generation(decoding, _new_tokens(width, decoding)),
            stopping_criteria=StoppingCriteriaList([_Beats(beat)]),
            synced_gpus=together,
        )
    return [_cut(row, decoding.stops) for row in out[:, width:].tolist()]


@contextmanager
def bare_defaults(model: nn.Module) -> Iterator[None]:
    """Leave the model without generation settings of its own: the library takes from them what was not asked for.

    They are afterwards as before. PEFT hands them from one module to the other, so all that hold any are emptied.
    """
    holders = [each for each in model.modules() if isinstance(vars(each).get(_SETTINGS), GenerationConfig)]
    before = [(each, getattr(each, _SETTINGS)) for each in holders]
    try:
        for each in holders:
            setattr(each, _SETTINGS, GenerationConfig())
        yield
    finally:
        for each, settings in before:
            setattr(each, _SETTINGS, settings)


def _new_tokens(width: int, decoding: Decoding) -> int:
    """Tokens of an answer, at least one, for which there are positions behind prompts of this width."""
    room = decoding.max_positions - width if decoding.max_positions else decoding.max_new_tokens
    return max(1, min(decoding.max_new_tokens, room))


def _generation(decoding: Decoding, new_tokens: int) -> GenerationConfig:
    """All that decides; the model's own settings are out of reach meanwhile (`bare_defaults`)."""
    draws = {"do_sample": True, "temperature": decoding.temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        max_new_tokens=new_tokens,
        eos_token_id=list(decoding.stops) or None,
        pad_token_id=decoding.pad,
        use_cache=True,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        **(draws if decoding.temperature > 0 else {"do_sample": False}),
    )


def _cut(tokens: Sequence[int], stops: Tokens) -> Generated:
    """The tokens before the first one that ends an answer."""
    end = next((at for at, token in enumerate(tokens) if token in stops), None)
    return Generated(tokens=tuple(tokens if end is None else tokens[:end]), ended=end is not None)
