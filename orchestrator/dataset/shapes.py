"""Recognises the four usual shapes of training rows and turns rows into samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.dataset.errors import Collector, DataError
from orchestrator.dataset.messages import Message, Sample, Shape
from orchestrator.dataset.turns import chat_turns, sharegpt_turns, text_of
from orchestrator.evaluation.checks import CheckError, Checks, checks_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.dataset.rows import Row

NUM_RECOGNISED_ROWS = 32
# Published data sets use these names for both kinds of turns; the turns' own keys tell which.
TURN_KEYS = ("messages", "conversations", "conversation")
_REQUIRED = {
    Shape.messages: ("messages",),
    Shape.prompt_completion: ("prompt", "completion"),
    Shape.alpaca: ("instruction", "output"),
    Shape.sharegpt: ("conversations",),
}
_KNOWN = (
    "messages (messages: role, content), prompt_completion (prompt, completion), "
    "alpaca (instruction, input, output), sharegpt (conversations: from, value)"
)
_SET_SHAPE = "Rename the keys, or name the shape with data.shape="


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Samples of one shape; `num_chars` is the text before any template."""

    shape: Shape
    samples: tuple[Sample, ...]
    num_chars: int


def parse(rows: Sequence[Row], shape: Shape | None = None) -> Parsed:
    """Check every row; recognise the shape first unless it is given.

    Raises:
        DataError: no shape fits the first rows.
        DataErrors: rows that do not match the shape or hold nothing to learn.
    """
    shape = shape or recognise(rows[:NUM_RECOGNISED_ROWS])
    collector = Collector()
    samples = []
    for row in rows:
        try:
            samples.append(to_sample(row, shape))
        except DataError as error:
            collector.add(error)
    collector.raise_if_any()
    num_chars = sum(sample.num_chars for sample in samples)
    return Parsed(shape=shape, samples=tuple(samples), num_chars=num_chars)


def recognise(rows: Sequence[Row]) -> Shape:
    """The shape most of some first rows have; rows that differ are reported by `parse`.

    Raises:
        DataError: none of the rows has a known shape.
    """
    votes = Counter(shape for row in rows if (shape := _shape_of(row.fields)) is not None)
    if votes:
        return votes.most_common(1)[0][0]
    row = rows[0]
    remedy = f"Shapes known: {_KNOWN}. {_SET_SHAPE}messages (or another)."
    raise row.error(f"unknown shape: {_found(row)}{_nearest(row.fields)}", remedy)


def to_messages(row: Row, shape: Shape) -> tuple[Message, ...]:
    """The conversation of one row.

    Raises:
        DataError: the row has another shape, or holds nothing to learn.
    """
    return to_sample(row, shape).messages


def to_sample(row: Row, shape: Shape) -> Sample:
    """One row, checked.

    Raises:
        DataError: the row has another shape, or holds nothing to learn.
    """
    _check_keys(row, shape)
    prompt: tuple[Message, ...] = ()
    is_plain = False
    if shape is Shape.messages:
        key = _turn_key(row.fields)
        answer = chat_turns(row, key, row.fields[key])
    elif shape is Shape.sharegpt:
        key = _turn_key(row.fields)
        answer = _system(row) + sharegpt_turns(row, key, row.fields[key])
    elif shape is Shape.alpaca:
        prompt, answer = _alpaca(row)
    else:
        prompt, answer, is_plain = _prompt_completion(row)
    _check_learnable(row, answer, shape)
    tools = row.fields.get("tools")
    return Sample(
        path=row.path,
        line=row.line,
        unit=row.unit,
        messages=prompt + answer,
        num_prompt_messages=len(prompt),
        is_plain=is_plain,
        tools=tuple(tools) if isinstance(tools, list) else (),
        checks=row_checks(row),
    )


def row_checks(row: Row) -> Checks:
    """What an answer to the row must and must not hold.

    Raises:
        DataError: they cannot be used.
    """
    try:
        return checks_of(row.fields)
    except CheckError as error:
        raise row.error(str(error), "Correct it, or remove the key.") from error


def _alpaca(row: Row) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    instruction = text_of(row, "instruction", row.fields["instruction"])
    given = row.fields.get("input")
    extra = "" if given is None else text_of(row, "input", given)
    question = f"{instruction}\n\n{extra}" if extra.strip() else instruction
    output = text_of(row, "output", row.fields["output"])
    prompt = (*_system(row), Message(role="user", content=question))
    return prompt, (Message(role="assistant", content=output),)


def _prompt_completion(row: Row) -> tuple[tuple[Message, ...], tuple[Message, ...], bool]:
    prompt, completion = row.fields["prompt"], row.fields["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return _turn(row, "user", "prompt"), _turn(row, "assistant", "completion"), True
    # One of the two as a list makes a conversation; a string beside it is one turn of it.
    is_text = isinstance(prompt, str)
    before = _turn(row, "user", "prompt") if is_text else chat_turns(row, "prompt", prompt)
    if isinstance(completion, str):
        return before, _turn(row, "assistant", "completion"), False
    return before, chat_turns(row, "completion", completion), False


def _turn(row: Row, role: str, key: str) -> tuple[Message, ...]:
    return (Message(role=role, content=text_of(row, key, row.fields[key])),)


def _system(row: Row) -> tuple[Message, ...]:
    system = row.fields.get("system")
    if not isinstance(system, str) or not system.strip():
        return ()
    return (Message(role="system", content=text_of(row, "system", system)),)


def _check_keys(row: Row, shape: Shape) -> None:
    missing = _missing(row.fields, shape)
    if not missing:
        return
    other = _shape_of(row.fields)
    hint = f"; it looks like {other.value}" if other else _nearest(row.fields, unlike=shape)
    problem = f"not of shape {shape.value}: {' and '.join(missing)} missing, {_found(row)}{hint}"
    raise row.error(problem, f"Give every row of the file one shape. {_SET_SHAPE}{(other or shape).value}.")


def _check_learnable(row: Row, answer: tuple[Message, ...], shape: Shape) -> None:
    spoken = (m for m in answer if m.role == "assistant")
    if any(m.content.strip() or "tool_calls" in m.extra for m in spoken):
        return
    if shape in (Shape.alpaca, Shape.prompt_completion):
        key = "output" if shape is Shape.alpaca else "completion"
        raise row.error(f"the {key} is empty", "Fill it, or remove the row.")
    roles = ", ".join(dict.fromkeys(message.role for message in answer))
    remedy = "Add what the assistant should answer, or remove the row."
    raise row.error(f"no assistant turn with content; roles found: {roles}", remedy)


def _shape_of(fields: Mapping[str, object]) -> Shape | None:
    if not _missing(fields, Shape.messages):
        return Shape.messages
    shapes = (Shape.sharegpt, Shape.prompt_completion, Shape.alpaca)
    return next((shape for shape in shapes if not _missing(fields, shape)), None)


def _missing(fields: Mapping[str, object], shape: Shape) -> tuple[str, ...]:
    """Required keys a row lacks; a null counts as lacking, since tables fill gaps with nulls."""
    if shape in (Shape.messages, Shape.sharegpt):
        key = _turn_key(fields)
        turns = fields.get(key)
        if turns is None:
            return _REQUIRED[shape]
        inner = "role" if shape is Shape.messages else "from"
        foreign = "from" if shape is Shape.messages else "role"
        first = turns[0] if isinstance(turns, list) and turns else None
        if isinstance(first, dict) and first.get(inner) is None and first.get(foreign) is not None:
            return (f"{key}[0].{inner}",)
        return ()
    return tuple(key for key in _REQUIRED[shape] if fields.get(key) is None)


def _turn_key(fields: Mapping[str, object]) -> str:
    return next((key for key in TURN_KEYS if fields.get(key) is not None), TURN_KEYS[0])


def _found(row: Row) -> str:
    return f"keys found: {', '.join(map(str, list(row.fields)[:8])) or 'none'}"


def _nearest(fields: Mapping[str, object], unlike: Shape | None = None) -> str:
    """The shape that lacks least, if the row has any of its keys."""
    lacking = {
        shape: missing
        for shape in (Shape.prompt_completion, Shape.alpaca)
        if shape is not unlike and len(missing := _missing(fields, shape)) < len(_REQUIRED[shape])
    }
    if not lacking:
        return ""
    shape = min(lacking, key=lambda s: len(lacking[s]))
    return f"; nearest shape {shape.value}, which also needs {', '.join(lacking[shape])}"
