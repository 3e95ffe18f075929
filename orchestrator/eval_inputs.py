"""What evaluations read besides the rows: the user's prompts and phrases, and whether the harness is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrator.config_eval import EvalConfig
from orchestrator.dataset.disk import expanded, is_folder, reading
from orchestrator.dataset.messages import Sample
from orchestrator.dataset.questions import Question, held_out_questions, prompts_file, user_questions
from orchestrator.errors import Problem, UserError
from orchestrator.evaluation.checks import Checks, pattern_problem
from orchestrator.evaluation.refusals import read_patterns

NONE: Final = ("none",)
HARNESS: Final = "lm_eval"


def check_eval_inputs(config: EvalConfig, samples: Sequence[Sample] | None) -> None:
    """Check before anything is started that every evaluation can be made.

    Args:
        config: of the evaluations.
        samples: held-out rows; None where they could not be read.

    Raises:
        UserError: all that is wrong at once.
    """
    problems: list[Problem] = []
    if config.generate and samples is not None and not len(samples):
        found = f"found {config.generate}, but no rows are held out"
        remedy = "Give data.eval_path or data.eval_fraction, or use eval.generate=0."
        problems.append(Problem(where="eval.generate", found=found, remedy=remedy))
    for read in (lambda: questions_of(config, ()), lambda: refusals_of(config), lambda: _check_harness(config)):
        try:
            read()
        except UserError as error:
            problems.extend(error.problems)
    if problems:
        raise UserError(*problems)


def questions_of(config: EvalConfig, samples: Sequence[Sample]) -> tuple[Question, ...]:
    """The user's prompts, then held-out rows.

    Raises:
        UserError: the prompts cannot be read or used.
    """
    checks = _default_checks(config)
    rows = held_out_questions(samples, config.generate, checks)
    if not config.has_prompts:
        return rows
    is_plain = bool(len(samples)) and samples[0].is_plain
    return (*user_questions(config.prompts, checks, is_plain=is_plain), *rows)


def _default_checks(config: EvalConfig) -> Checks:
    keywords, must_match, must_not = (
        () if told == NONE else told for told in (config.keywords, config.must_match, config.must_not)
    )
    return Checks(keywords=keywords, must_match=must_match, must_not=must_not)


def refusals_of(config: EvalConfig) -> tuple[str, ...]:
    """The user's further phrases that decline.

    Raises:
        UserError: the file cannot be read, or holds what is no regular expression.
    """
    if not config.refusals:
        return ()
    path = expanded(config.refusals)
    with reading(path):
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    patterns = read_patterns(text)
    wrong = [(pattern, why) for pattern in patterns if (why := pattern_problem(pattern))]
    if wrong:
        remedy = "Correct it, or escape special characters."
        raise UserError(
            *(
                Problem(where=str(path), found=f"{pattern!r} is no regular expression: {why}", remedy=remedy)
                for pattern, why in wrong
            )
        )
    return patterns


def _check_harness(config: EvalConfig) -> None:
    if config.lm_eval == NONE:
        return
    problems = []
    if importlib.util.find_spec(HARNESS) is None:
        found = "the LM evaluation harness is not installed"
        remedy = "Install it with `pip install 'trainmaster[harness]'`, or use eval.lm_eval=none."
        problems.append(Problem(where="eval.lm_eval", found=found, remedy=remedy))
    if config.lm_eval_folder and not is_folder(expanded(config.lm_eval_folder)):
        found = f"there is no folder {config.lm_eval_folder}"
        problems.append(Problem(where="eval.lm_eval_folder", found=found, remedy="Name the folder of your task files."))
    if problems:
        raise UserError(*problems)


def located_eval(config: EvalConfig) -> EvalConfig:
    """Make the paths absolute: ranks work in the run directory."""
    name = prompts_file(config.prompts)
    return replace(
        config,
        prompts=config.prompts if name is None else (_absolute(name),),
        refusals=_absolute(config.refusals),
        lm_eval_folder=_absolute(config.lm_eval_folder),
    )


def _absolute(path: str) -> str:
    return str(expanded(path).absolute()) if path else ""
