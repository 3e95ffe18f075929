"""Rules of the evaluation's keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from orchestrator.config_eval import EvalConfig
from orchestrator.errors import Problem
from orchestrator.evaluation.checks import pattern_problem
from orchestrator.evaluation.metrics import AUTO, NAMES

NONE = ("none",)


def check_eval(config: EvalConfig) -> Iterator[Problem]:
    """Yield one problem for each rule that the keys of `eval` break."""
    least = {
        "generate": (config.generate, 0),
        "shown_rows": (config.shown_rows, 0),
        "lm_eval_limit": (config.lm_eval_limit, 0),
        "temperature": (config.temperature, 0),
        "max_new_tokens": (config.max_new_tokens, 1),
        "batch": (1 if config.batch is None else config.batch, 1),
    }
    for key, (value, limit) in least.items():
        if value < limit:
            yield Problem(where=f"eval.{key}", found=f"found {value}", remedy=f"Give {limit} or more.")
    for name in config.metrics:
        if name.lower() not in {AUTO, *(known.lower() for known in NAMES)}:
            yield Problem(where="eval.metrics", found=f"no metric {name!r}", remedy=_nearest(name))
    for key, words in (("keywords", config.keywords), ("must_match", config.must_match), ("must_not", config.must_not)):
        if any(not word.strip() for word in words):
            remedy = f"Leave it out, or set eval.{key}=[none]."
            yield Problem(where=f"eval.{key}", found="one of them is empty", remedy=remedy)
    for key, patterns in (("must_match", config.must_match), ("must_not", config.must_not)):
        for pattern in patterns if patterns != NONE else ():
            wrong = pattern_problem(pattern)
            if wrong:
                found = f"{pattern!r} is no regular expression: {wrong}"
                yield Problem(where=f"eval.{key}", found=found, remedy="Correct it, or escape special characters.")
    yield from _check_use(config)


def _check_use(config: EvalConfig) -> Iterator[Problem]:
    """Keys of answers are of no use where no answer is made."""
    if config.generates or config.generate < 0:
        return
    default = EvalConfig()
    keys = ("metrics", "keywords", "must_match", "must_not", "refusals", "temperature")
    told = [f"eval.{key}" for key in keys if getattr(config, key) != getattr(default, key)]
    if told:
        yield Problem(
            where=", ".join(told),
            found="no answer is made that it could be of use for",
            remedy="Set eval.generate=32 (held-out rows), or give eval.prompts.",
        )


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in NAMES], n=1, cutoff=0.5)
    found = next((known for known in NAMES if [known.lower()] == near), None)
    return f"Did you mean {found!r}?" if found else f"Known: {', '.join(NAMES)}, or auto."
