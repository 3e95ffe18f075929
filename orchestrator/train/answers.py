"""The questions of a run's evaluations, made once, and their answers, scored and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import transformers
from torch import nn

from orchestrator.config import RunConfig
from orchestrator.data_inputs import data_source
from orchestrator.dataset.chat import adds_bos, choose_format
from orchestrator.dataset.examples import IGNORED, Example
from orchestrator.dataset.questions import Question
from orchestrator.dataset.samples import load_samples
from orchestrator.dataset.spans import render
from orchestrator.dataset.special import special_tokens
from orchestrator.errors import UserError
from orchestrator.eval_inputs import questions_of, refusals_of
from orchestrator.evaluation.metrics import Answer, chosen, score, score_each
from orchestrator.evaluation.samples import samples_page
from orchestrator.evaluation.scripts import bleu_tokenizer
from orchestrator.train.generate import Decoding, Generated, Tokens, answer_batch, generate
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import append_json_line, keep_steps_until, read_json_lines, sparing_full_disk
from orchestrator.train.settings import TrainSettings

SAMPLES: Final = "samples.jsonl"
PAGE: Final = "samples.md"
_TAIL = 3  # the token that ends a turn may be followed by a line break or two
_ROWS_LOOKED_AT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and its tokens."""

    question: Question
    tokens: Tokens


class Answers:
    """Asks the model, scores what it answers, and keeps samples in the run directory."""

    def __init__(
        self,
        config: RunConfig,
        settings: TrainSettings,
        group: MetricsGroup,
        tokenizer: transformers.PreTrainedTokenizerBase,
        *,
        seq_len: int,
        rows: Sequence[Example],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what is known before the model is there; nothing is read yet.

        Args:
            config: of the run.
            settings: of this rank.
            group: of all ranks.
            tokenizer: with the chat template of the run.
            seq_len: most tokens of a question, and of a row.
            rows: token rows, which tell how a turn ends: held out, or learned from where none are.
            beat: told while the questions are read, which may take minutes.
        """
        self._config, self._settings, self._group, self._tokenizer = config, settings, group, tokenizer
        self._seq_len, self._rows, self._beat = seq_len, rows, beat
        self._asked: tuple[Asked, ...] | None = None
        self._refusals: tuple[str, ...] = ()
        self._told: set[str] = set()
        self.too_long = 0

    @property
    def is_wanted(self) -> bool:
        """Whether an evaluation makes answers."""
        return self._config.eval.generates

    def asked(self) -> tuple[Asked, ...]:
        """The questions, read and tokenised by rank 0 for all; collective at the first call.

        Raises:
            UserError: on all ranks, what is wrong with rows, prompts or the file of refusals.
        """
        if self._asked is None:
            made: tuple[tuple[Asked, ...], int, tuple[str, ...]] | None = None
            problems: tuple[Any, ...] = ()
            if self._settings.is_main:
                try:
                    made = self._read()
                except UserError as error:
                    problems = error.problems
            problems, made = self._group.from_main((problems, made))
            if made is None:
                raise UserError(*problems)
            self._asked, self.too_long, self._refusals = made
        return self._asked

    def _read(self) -> tuple[tuple[Asked, ...], int, tuple[str, ...]]:
        config = self._config.eval
        samples = load_samples(data_source(self._config.data, self._config.seed), self._beat).eval
        questions = questions_of(config, samples)
        asked = [Asked(question=each, tokens=question_tokens(each, self._tokenizer)) for each in questions]
        fitting = tuple(each for each in asked if 0 < len(each.tokens) <= self._seq_len)
        return fitting, len(asked) - len(fitting), refusals_of(config)

    def decoding(self, model: nn.Module) -> Decoding:
        """How answers are made."""
        config, settings, inner = self._config.eval, self._settings, getattr(model, "config", None)
        tokenizer: Any = self._tokenizer
        return Decoding(
            batch=config.batch or min(settings.micro),
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            stops=stop_tokens(tokenizer, model, self._rows, self._seq_len),
            pad=tokenizer.pad_token_id,
            max_positions=int(getattr(inner, "max_position_embeddings", 0) or 0),
            seed=self._config.seed,
        )

    def rehearse(self, model: nn.Module) -> None:
        """Hold as many keys and values as the longest answers will, in one pass; collective as a forward pass is."""
        asked = self.asked()
        if not asked:
            return
        decoding, longest = self.decoding(model), max((each.tokens for each in asked), key=len)
        tokens = len(longest) + decoding.max_new_tokens - 1
        if decoding.max_positions:
            tokens = max(1, min(tokens, decoding.max_positions - 1))
        filled = (longest * (tokens // len(longest) + 1))[:tokens]
        rows = min(decoding.batch, len(asked))
        model.eval()
        answer_batch([filled] * rows, model, replace(decoding, max_new_tokens=1), self._settings)

    def evaluate(self, model: nn.Module, step: int, beat: Callable[[int], None]) -> dict[str, float]:
        """Answer every question, keep samples, and return the metrics by their names in `metrics.jsonl`; collective.

        Metrics of held-out rows begin with `eval_`, those of the user's prompts with `prompts_`.
        """
        began = time.perf_counter()
        asked = self.asked()
        made = generate(model, [each.tokens for each in asked], self.decoding(model), self._settings, self._group, beat)
        if not self._settings.is_main:
            return {}
        answers = [self._answer(each.question, one) for each, one in zip(asked, made, strict=True)]
        scoring = partial(beat, len(asked))
        self._keep(step, asked, made, answers, scoring)
        found: dict[str, float] = {}
        for prefix, is_own in (("eval_", False), ("prompts_", True)):
            places = [at for at, each in enumerate(asked) if each.question.is_own is is_own]
            if not places:
                continue
            own, metrics = [answers[at] for at in places], chosen(self._config.eval.metrics)
            scores = score(own, metrics, self._refusals, scoring)
            if "bleu" in scores:
                self._tell_tokens("prompts" if is_own else "held-out rows", own)
            found |= {f"{prefix}{name}": value for name, value in scores.items()}
            found[f"{prefix}answers"] = len(places)
            found[f"{prefix}answer_tokens"] = sum(len(made[at].tokens) for at in places) / len(places)
            found[f"{prefix}ended"] = sum(made[at].ended for at in places) / len(places)
        return {**found, "answer_seconds": time.perf_counter() - began}

    def _tell_tokens(self, what: str, answers: Sequence[Answer]) -> None:
        """Say once which tokens BLEU counts, where it is not words."""
        name = bleu_tokenizer(answer.reference for answer in answers if answer.reference is not None)
        if name != "13a" and what not in self._told:
            self._told.add(what)
            print(f"BLEU of {what} counts characters (sacrebleu's tokenizer {name})", flush=True)

    def _answer(self, question: Question, made: Generated) -> Answer:
        tokenizer: Any = self._tokenizer
        text: str = tokenizer.decode(list(made.tokens), skip_special_tokens=True)
        return Answer(prediction=text.strip(), reference=question.reference, checks=question.checks)

    def _keep(
        self,
        step: int,
        asked: Sequence[Asked],
        made: Sequence[Generated],
        answers: Sequence[Answer],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        path = self._settings.run_dir / SAMPLES
        if any(record.get("step") == step for record in read_json_lines(path)):
            with sparing_full_disk(path):
                keep_steps_until(path, step - 1)  # the same step once more, after a restart
        left = self._config.eval.shown_rows
        metrics = chosen(self._config.eval.metrics)
        for each, one, answer in zip(asked, made, answers, strict=True):
            if not each.question.is_own:
                left -= 1
                if left < 0:
                    continue
            record = {
                "step": step,
                "name": each.question.name,
                "prompt": each.question.text,
                "answer": answer.prediction,
                "reference": answer.reference,
                "tokens": len(one.tokens),
                "ended": one.ended,
                "scores": score_each(answer, metrics, self._refusals, beat),
            }
            append_json_line(path, record)
        with sparing_full_disk(path.with_name(PAGE)):
            write_page(self._settings.run_dir)


def write_page(run_dir: Path) -> None:
    """Draw `samples.md` anew from `samples.jsonl`."""
    temporary = run_dir / f".{PAGE}"
    temporary.write_text(samples_page(read_json_lines(run_dir / SAMPLES)), encoding="utf-8")
    temporary.replace(run_dir / PAGE)


def keep_samples_until(run_dir: Path, step: int) -> None:
    """Drop samples of later steps, which are about to be run again; below 0 all of them."""
    path = run_dir / SAMPLES
    if path.exists():
        keep_steps_until(path, step)
        write_page(run_dir)


def question_tokens(question: Question, tokenizer: transformers.PreTrainedTokenizerBase) -> Tokens:
    """Tokens of a question, up to where the answer begins, as the training rows have them.

    Raises:
        DataError: the chat template refuses the conversation.
    """
    untyped: Any = tokenizer
    sample = question.sample
    if sample.is_plain:
        ids = untyped(sample.messages[-1].content, add_special_tokens=False)["input_ids"]
        bos = untyped.bos_token_id
        return tuple([bos, *ids] if adds_bos(tokenizer) and ids[:1] != [bos] else ids)
    text = render(sample, tokenizer, choose_format(tokenizer).template, sample.messages, is_prompt=True)
    return tuple(untyped(text, add_special_tokens=False)["input_ids"])


def stop_tokens(
    tokenizer: Any,  # noqa: ANN401 - untyped
    model: nn.Module,
    rows: Sequence[Example],
    seq_len: int,
) -> Tokens:
    """What ends an answer: EOS, what the model's own settings name, and the special token that ends learned turns.

    A document of `seq_len` tokens may have been cut, and tells nothing of how turns end.
    """
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    found = {tokenizer.eos_token_id, *(own if isinstance(own, (list, tuple)) else [own])}
    special = special_tokens(tokenizer)
    looked_at = min(len(rows), _ROWS_LOOKED_AT)
    for row in (rows[at * len(rows) // looked_at] for at in range(looked_at)):  # of each source of a mixture
        if row.seq_lengths[-1] < seq_len:
            learned = row.labels[row.labels != IGNORED][-_TAIL:].tolist()
            found.add(_last_word(tokenizer, learned, special))
    return tuple(sorted(int(token) for token in found if token is not None))


def _last_word(tokenizer: Any, learned: Sequence[int], special: frozenset[int]) -> int | None:  # noqa: ANN401 - untyped
    """The special token that comes last, with nothing but white space behind it."""
    for token in reversed(learned):
        if token in special:
            return token
        if tokenizer.decode([token]).strip():
            return None
    return None
