"""JSON values of a row -> checked messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.dataset.messages import ROLES, Message

if TYPE_CHECKING:
    from orchestrator.dataset.rows import Row

_CHAT_ALIASES = {"developer": "system", "function": "tool"}
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "system": "system",
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bot", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}
_EXTRA_KEYS = ("tool_calls", "name", "tool_call_id", "reasoning_content")
_LIST_REMEDY = 'Write it as a list such as [{"role": "user", "content": "..."}, ...].'


def text_of(row: Row, where: str, value: object) -> str:
    """A text, given as a string or as a list of text parts.

    Raises:
        DataError: it is neither, or holds characters that no encoding can represent.
    """
    if isinstance(value, str):
        return _encodable(row, where, value)
    if isinstance(value, Sequence):
        return "".join(_part_text(row, where, part) for part in value)
    remedy = 'Give a string, or a list of {"type": "text", "text": "..."} parts.'
    raise row.error(f"{where} is {_kind(value)}, not text", remedy)


def chat_turns(row: Row, where: str, value: object) -> tuple[Message, ...]:
    """Messages from a list of {role, content}."""
    return tuple(_chat_turn(row, f"{where}[{i}]", turn) for i, turn in enumerate(_turns(row, where, value)))


def sharegpt_turns(row: Row, where: str, value: object) -> tuple[Message, ...]:
    """Messages from a list of {from, value}."""
    return tuple(_sharegpt_turn(row, f"{where}[{i}]", turn) for i, turn in enumerate(_turns(row, where, value)))


def _turns(row: Row, where: str, value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        raise row.error(f"{where} is {_kind(value)}, not a list of messages", _LIST_REMEDY)
    if not value:
        raise row.error(f"{where} is an empty list", "Remove the row, or fill it.")
    for i, turn in enumerate(value):
        if not isinstance(turn, dict):
            raise row.error(f"{where}[{i}] is {_kind(turn)}, not a message", _LIST_REMEDY)
    return value


def _chat_turn(row: Row, where: str, turn: dict[str, object]) -> Message:
    if "role" not in turn:
        raise row.error(f"{where} has no role; its keys: {', '.join(turn)}", _LIST_REMEDY)
    given = turn["role"]
    role = _CHAT_ALIASES.get(str(given), given)
    if role not in ROLES:
        remedy = f"Roles: {', '.join(ROLES)}. For human/gpt turns use from/value (ShareGPT)."
        raise row.error(f"{where} has role {given!r}", remedy)
    # Parquet fills the keys a message lacks with nulls: None is the same as absent.
    extra = {key: turn[key] for key in _EXTRA_KEYS if turn.get(key) is not None}
    content = turn.get("content")
    if content is None and "tool_calls" in extra:
        content = ""
    text = text_of(row, f"{where}.content", content)
    return Message(role=str(role), content=text, extra=extra)


def _sharegpt_turn(row: Row, where: str, turn: dict[str, object]) -> Message:
    if "from" not in turn:
        remedy = 'ShareGPT turns look like {"from": "human", "value": "..."}.'
        raise row.error(f"{where} has no 'from'; its keys: {', '.join(turn)}", remedy)
    role = _SHAREGPT_ROLES.get(str(turn["from"]).lower())
    if role is None:
        remedy = f"Known: {', '.join(_SHAREGPT_ROLES)}."
        raise row.error(f"{where} is from {turn['from']!r}", remedy)
    return Message(role=role, content=text_of(row, f"{where}.value", turn.get("value")))


def _part_text(row: Row, where: str, part: object) -> str:
    if isinstance(part, str):
        return _encodable(row, where, part)
    if isinstance(part, dict) and part.get("type", "text") == "text":
        return text_of(row, f"{where}.text", part.get("text"))
    kind = part.get("type") if isinstance(part, dict) else _kind(part)
    raise row.error(f"{where} has a part of type {kind}", "Only text can be trained on here.")


def _encodable(row: Row, where: str, text: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            remedy = "Remove the half of a surrogate pair (a \\ud8xx escape without its partner)."
            problem = f"{where} has an invalid character at position {error.start + 1}"
            raise row.error(problem, remedy) from error
    return text


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
