"""What a model is asked in an evaluation: held-out rows up to their last answer, and prompts of the user."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.dataset.disk import exists, expanded, reading
from orchestrator.dataset.errors import Collector, DataError
from orchestrator.dataset.messages import Message, Sample
from orchestrator.dataset.rows import Row
from orchestrator.dataset.shapes import row_checks
from orchestrator.dataset.turns import chat_turns, text_of
from orchestrator.errors import Problem, UserError

if TYPE_CHECKING:
    from orchestrator.evaluation.checks import Checks

FILES: Final = (".txt", ".json", ".jsonl")
_REMEDY: Final = 'Give a text, or an object with "prompt" or "messages", and perhaps "reference".'


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation that waits for an answer.

    Attributes:
        name: for tables: `row 3` or `prompt 1`, counted from 1.
        is_own: a prompt of the user; else a held-out row.
        sample: the conversation, without the answer.
        reference: what the row says; None where there is none.
        checks: rules for the answer.
    """

    name: str
    is_own: bool
    sample: Sample
    reference: str | None
    checks: Checks

    @property
    def text(self) -> str:
        """What is asked last."""
        return self.sample.messages[-1].content


def held_out_questions(samples: Sequence[Sample], count: int, checks: Checks) -> tuple[Question, ...]:
    """Questions of rows spread evenly over the held-out ones, so that each source of a mixture has its part.

    Rows whose last turn says nothing (a call of tools) have no answer to compare with, and are passed over.

    Args:
        samples: held-out rows.
        count: of questions, at most.
        checks: for rows without checks of their own.
    """
    wanted = min(count, len(samples))
    chosen = {at * len(samples) // wanted for at in range(wanted)} if wanted else set()
    found = []
    for at, sample in enumerate(samples):  # in order: rows may be read from a file as they come
        if at in chosen and (asked := _asked(sample, f"row {at + 1}", checks)) is not None:
            found.append(asked)
    return tuple(found)


def _asked(sample: Sample, name: str, checks: Checks, *, is_own: bool = False) -> Question | None:
    turns = [at for at, message in enumerate(sample.messages) if message.role == "assistant"]
    last = turns[-1] if turns else 0
    if last == 0 or not sample.messages[last].content.strip():
        return None
    return Question(
        name=name,
        is_own=is_own,
        sample=replace(sample, messages=sample.messages[:last]),
        reference=sample.messages[last].content,
        checks=sample.checks or checks,
    )


def prompts_file(prompts: Sequence[str]) -> str | None:
    """The file that `eval.prompts` names; None where it holds the prompts themselves.

    One text that ends like a file is a file, where it has no spaces or is an absolute path.
    """
    if len(prompts) != 1 or not prompts[0].lower().endswith(FILES):
        return None
    is_path = prompts[0].startswith("/") or prompts[0] == "".join(prompts[0].split())
    return prompts[0] if is_path else None


def user_questions(prompts: Sequence[str], checks: Checks, *, is_plain: bool = False) -> tuple[Question, ...]:
    """Questions of the user's prompts.

    Args:
        prompts: as configured: texts, or one file.
        checks: for prompts without checks of their own.
        is_plain: texts are continued as they are, without a chat template.

    Raises:
        UserError: the file cannot be read, or prompts in it cannot be used; all of them at once.
    """
    name = prompts_file(prompts)
    collector = Collector()
    rows = _inline(prompts) if name is None else _read(expanded(name), collector)
    found: list[Question] = []
    for number, row in enumerate(rows, start=1):
        try:
            found.append(_prompt(row, f"prompt {number}", checks, is_plain=is_plain))
        except DataError as error:
            collector.add(error)
    collector.raise_if_any()
    if not found:
        path = Path(name or "eval.prompts")
        raise DataError(path=path, line=None, problem="there is no prompt in it", remedy="Write one, or use none.")
    return tuple(found)


def _prompt(row: Row, name: str, checks: Checks, *, is_plain: bool) -> Question:
    fields = row.fields
    given, messages = fields.get("prompt"), fields.get("messages")
    own = row_checks(row)
    if messages is not None:
        turns = chat_turns(row, "messages", messages)
        is_plain = False
    elif given is not None:
        turns = (Message(role="user", content=text_of(row, "prompt", given)),)
    else:
        raise row.error(f"no prompt: keys found: {', '.join(map(str, fields)) or 'none'}", _REMEDY)
    if not any(turn.content.strip() for turn in turns):
        raise row.error("the prompt is empty", "Fill it, or remove it.")
    sample = Sample(path=row.path, line=row.line, unit=row.unit, messages=turns, is_plain=is_plain, checks=own)
    if turns[-1].role == "assistant":
        asked = _asked(sample, name, checks, is_own=True)
        if asked is None:
            raise row.error("the conversation starts with the assistant, or its answer is empty", _REMEDY)
        return asked
    reference = fields.get("reference")
    return Question(
        name=name,
        is_own=True,
        sample=sample,
        reference=None if reference is None else text_of(row, "reference", reference),
        checks=own or checks,
    )


def _inline(prompts: Sequence[str]) -> Iterator[Row]:
    for number, text in enumerate(prompts, start=1):
        yield Row(path=Path("eval.prompts"), line=number, unit="prompt", fields={"prompt": text})


def _read(path: Path, collector: Collector) -> Iterator[Row]:
    """Rows of a file of prompts; `collector` gets the problems of single ones.

    Raises:
        UserError: it cannot be read.
    """
    if not exists(path):
        remedy = "Give the path of a file, or a prompt as a text with spaces: eval.prompts=['What is it for?']."
        raise UserError(Problem(where="eval.prompts", found=f"there is no file {path}", remedy=remedy))
    with reading(path):
        data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
        yield from _rows(path, text, collector)
    except UnicodeDecodeError as error:
        problem = f"it is no UTF-8 text (byte {error.start})"
        raise DataError(path=path, line=None, problem=problem, remedy="Save it as UTF-8.") from error


def _rows(path: Path, text: str, collector: Collector) -> Iterator[Row]:
    kind = path.suffix.lower()
    if kind == ".json":
        body = _json(path, None, text)
        items = [(at, item) for at, item in enumerate(body if isinstance(body, list) else [body], start=1)]
    else:
        items = [(at, line.strip()) for at, line in enumerate(text.split("\n"), start=1) if line.strip()]
    for at, item in items:
        try:
            value = _json(path, at, str(item)) if kind == ".jsonl" else item
            yield _row(path, at, "prompt" if kind == ".json" else "line", value)
        except DataError as error:
            collector.add(error)


def _json(path: Path, line: int | None, text: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise DataError(path=path, line=line, problem=f"it is no JSON: {error}", remedy=_REMEDY) from error
    return found


def _row(path: Path, line: int, unit: str, value: object) -> Row:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, Mapping):
        raise DataError(path=path, line=line, unit=unit, problem=f"found {value!r}", remedy=_REMEDY)
    return Row(path=path, line=line, unit=unit, fields=value)
