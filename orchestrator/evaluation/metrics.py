"""Metrics of generated answers against references and rules: strings in, numbers out.

ROUGE is by Google's `rouge-score`, BLEU and chrF by `sacrebleu`, both offline and imported when asked for.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

from orchestrator.evaluation.checks import Checks
from orchestrator.evaluation.refusals import is_refusal
from orchestrator.evaluation.scripts import bleu_tokenizer, pieces, words

AUTO: Final = "auto"
_ROUGE: Final = ("rouge1", "rouge2", "rougeL")
_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a metric is called, what it needs, and how it reads.

    Attributes:
        name: in configuration and records.
        title: for people.
        needs: what an answer must come with: a `reference`, `keywords`, `checks` or nothing.
        percent: from 0 to 1, shown in percent; else from 0 to 100, as the library reports it.
    """

    name: str
    title: str
    needs: str = "reference"
    percent: bool = True


METRICS: Final = (
    Metric(name="exact_match", title="exact match"),
    Metric(name="token_f1", title="token F1"),
    Metric(name="rouge1", title="ROUGE-1"),
    Metric(name="rouge2", title="ROUGE-2"),
    Metric(name="rougeL", title="ROUGE-L"),
    Metric(name="bleu", title="BLEU", percent=False),
    Metric(name="chrf", title="chrF", percent=False),
    Metric(name="keywords", title="keywords found", needs="keywords"),
    Metric(name="rules", title="rules kept", needs="checks"),
    Metric(name="refusal_rate", title="refusals", needs=""),
)
NAMES: Final = tuple(metric.name for metric in METRICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer and what it is measured by; `reference` None where there is none."""

    prediction: str
    reference: str | None = None
    checks: Checks = field(default_factory=Checks)

    def has(self, needed: str) -> bool:
        """Whether it comes with what a metric needs."""
        return {
            "reference": self.reference is not None,
            "keywords": bool(self.checks.keywords),
            "checks": bool(self.checks),
        }.get(needed, True)


def chosen(names: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of these names, in the order of the table; `auto` stands for all."""
    wanted = {name.lower() for name in names}
    return tuple(metric for metric in METRICS if AUTO in wanted or metric.name.lower() in wanted)


def score(
    answers: Sequence[Answer],
    metrics: Iterable[Metric],
    refusals: Sequence[str] = (),
    beat: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Each metric over the answers that come with what it needs; one that no answer can be measured by is left out.

    The mean over answers, but for BLEU and chrF, which are of the whole corpus. `beat` is told before each answer: a
    user's pattern may take two seconds.
    """
    found: dict[str, float] = {}
    for metric in metrics:
        own = [answer for answer in answers if answer.has(metric.needs)]
        if not own:
            continue
        if metric.name in {"bleu", "chrf"}:
            found[metric.name] = _corpus(metric.name, own)
        else:
            found[metric.name] = math.fsum(_beaten(own, _one(metric.name, refusals), beat)) / len(own)
    return found


def _beaten(answers: Iterable[Answer], each: Callable[[Answer], float], beat: Callable[[], None]) -> Iterator[float]:
    for answer in answers:
        beat()
        yield each(answer)


def score_each(
    answer: Answer,
    metrics: Iterable[Metric],
    refusals: Sequence[str] = (),
    beat: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The metrics of a single answer, without those of a corpus."""
    return score([answer], (metric for metric in metrics if metric.percent), refusals, beat)


def perplexity(loss: float) -> float:
    """Exponential of a mean negative log-likelihood in nats; infinite where that is too much for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def normalised(text: str) -> str:
    """As SQuAD's evaluation does: lower case, without ASCII punctuation and English articles, single spaces.

    Punctuation of other scripts, which SQuAD leaves, parts words. Source: Rajpurkar et al. 2016, arXiv 1606.05250.
    """
    kept = "".join(_without_mark(character) for character in text.lower())
    return " ".join(_ARTICLES.sub(" ", kept).split())


def _without_mark(character: str) -> str:
    if character in string.punctuation:
        return ""
    return " " if unicodedata.category(character).startswith("P") else character


def exact_match(prediction: str, reference: str) -> float:
    """1 where both are the same once normalised, else 0. Texts of nothing but marks and articles are compared whole."""
    one, other = normalised(prediction), normalised(reference)
    if not one and not other:
        one, other = prediction.strip().lower(), reference.strip().lower()
    return float(one == other)


def token_f1(prediction: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the normalised words, as bags; 1 for two empty texts.

    Of scripts without spaces every character counts as a word, as in the evaluation of CMRC (Cui et al. 2019, arXiv
    1810.07366).
    """
    one, other = pieces(normalised(prediction)), pieces(normalised(reference))
    if not one or not other:
        return float(one == other)
    shared = sum((Counter(one) & Counter(other)).values())
    return 2 * shared / (len(one) + len(other))


def _one(name: str, refusals: Sequence[str]) -> Callable[[Answer], float]:
    if name in _ROUGE:
        return partial(_rouge, name)
    return {
        "exact_match": lambda answer: exact_match(answer.prediction, answer.reference or ""),
        "token_f1": lambda answer: token_f1(answer.prediction, answer.reference or ""),
        "keywords": lambda answer: answer.checks.found_keywords(answer.prediction),
        "rules": lambda answer: float(answer.checks.holds(answer.prediction)),
        "refusal_rate": lambda answer: float(is_refusal(answer.prediction, refusals)),
    }[name]


def _rouge(name: str, answer: Answer) -> float:
    """F-measure without stemming."""
    found: Mapping[str, Any] = _rouge_scorer().score(answer.reference or "", answer.prediction)
    return float(found[name].fmeasure)


@cache
def _rouge_scorer() -> Any:  # noqa: ANN401 - the library has no types
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(list(_ROUGE), tokenizer=_Words())


class _Words:
    """Words for ROUGE: the library's own for ASCII text, and those of other scripts, which it would drop."""

    def tokenize(self, text: str) -> list[str]:
        return words(text.lower())


def _corpus(name: str, answers: Sequence[Answer]) -> float:
    """BLEU (13a tokens; others where the references have no spaces) or chrF2 of the corpus, from 0 to 100."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    predictions, references = [answer.prediction for answer in answers], [answer.reference or "" for answer in answers]
    scorer: Any = BLEU(tokenize=bleu_tokenizer(references)) if name == "bleu" else CHRF()
    return float(scorer.corpus_score(predictions, [references]).score)
