"""When and how a run evaluates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """When the run evaluates, and how: held-out loss, answers that are scored, the user's own prompts.

    Attributes:
        every: optimizer steps between evaluations; 0: before and after only.
        before: evaluate the base before the first step.
        generate: held-out rows that are answered at each evaluation, spread evenly over them; 0 for none.
        metrics: of the answers; `auto` for all that the rows allow.
        max_new_tokens: of an answer.
        temperature: 0 takes the likeliest token each time; above, tokens are drawn, the same ones at each evaluation.
        batch: answers that a rank makes at a time; None: as many as its rows in a training pass.
        prompts: texts of the user, or one file of them (.txt, .json, .jsonl); `none` for none.
        shown_rows: of the answered held-out rows, how many are kept in the table of samples.
        keywords, must_match, must_not: rules for every answer whose row says none of its own; `none` for none.
        refusals: a file of further phrases that decline; empty for none.
        lm_eval: tasks of the LM evaluation harness, for the adapter once the run is done; `none` for none.
        lm_eval_folder: of the user's own task files; empty for none.
        lm_eval_limit: rows of each task; 0 for all.
    """

    every: int = 0
    before: bool = True
    generate: int = 0
    metrics: tuple[str, ...] = ("auto",)
    max_new_tokens: int = 128
    temperature: float = 0.0
    batch: int | None = None
    prompts: tuple[str, ...] = ("none",)
    shown_rows: int = 5
    keywords: tuple[str, ...] = ("none",)
    must_match: tuple[str, ...] = ("none",)
    must_not: tuple[str, ...] = ("none",)
    refusals: str = ""
    lm_eval: tuple[str, ...] = ("none",)
    lm_eval_folder: str = ""
    lm_eval_limit: int = 0

    @property
    def has_prompts(self) -> bool:
        """Whether the user gave prompts."""
        return self.prompts != ("none",)

    @property
    def generates(self) -> bool:
        """Whether an evaluation makes answers."""
        return self.generate > 0 or self.has_prompts
