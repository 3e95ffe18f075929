"""The answers that are kept for people: one record an answer, and a table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_CELL_CHARACTERS: Final = 1200


def samples_page(records: Iterable[Mapping[str, Any]]) -> str:
    """Records of `samples.jsonl` as Markdown: each question with its answers, step by step."""
    asked: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        asked.setdefault(str(record["name"]), []).append(record)
    parts = ["# Samples\n\nThe same questions at each evaluation; step 0 is the base before training.\n"]
    for name, answers in sorted(asked.items(), key=lambda item: order_of(item[0])):
        parts.append(f"\n## {name}\n\n{_quoted(answers[-1]['prompt'])}\n")
        if answers[-1].get("reference") is not None:
            parts.append(f"\nReference: {_cell(answers[-1]['reference'])}\n")
        parts.append("\n| step | answer | |\n|--:|:--|:--|\n")
        by_step = {int(answer["step"]): answer for answer in answers}
        parts += [
            f"| {step} | {_cell(by_step[step]['answer'])} | {note_of(by_step[step])} |\n" for step in sorted(by_step)
        ]
    return "".join(parts)


def order_of(name: str) -> tuple[bool, int]:
    """Key to sort questions by: the user's prompts first."""
    kind, _, number = name.partition(" ")
    return kind != "prompt", int(number) if number.isdecimal() else 0


def note_of(record: Mapping[str, Any]) -> str:
    """What is to be said of an answer, in a few words."""
    found = record.get("scores")
    scores: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    words = [] if record.get("ended", True) else [f"cut at {record.get('tokens')} tokens"]
    if "rules" in scores:
        words.append("keeps the rules" if scores["rules"] == 1 else "breaks a rule")
    if scores.get("exact_match") == 1:
        words.append("exact")
    elif isinstance(scores.get("token_f1"), int | float):
        words.append(f"F1 {scores['token_f1']:.2f}")
    if scores.get("refusal_rate") == 1:
        words.append("declines")
    return ", ".join(words)


def _cell(text: object) -> str:
    """A text that stays in one cell and is shown as it is."""
    whole = str(text).strip()
    shown = whole if len(whole) <= _CELL_CHARACTERS else f"{whole[:_CELL_CHARACTERS]} ..."
    for raw, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\r", ""), ("\n", "<br>")):
        shown = shown.replace(raw, safe)
    return shown or "(nothing)"


def _quoted(text: object) -> str:
    lines = str(text).strip().splitlines() or [""]
    return "\n".join(f"> {_safe(line)}" for line in lines)


def _safe(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;")
