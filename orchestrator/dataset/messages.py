"""A conversation as the trainer sees it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from orchestrator.evaluation.checks import Checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ROLES = ("system", "user", "assistant", "tool")


class Shape(Enum):
    """How a row holds its text (`data.shape`)."""

    messages = "messages"
    prompt_completion = "prompt_completion"
    alpaca = "alpaca"
    sharegpt = "sharegpt"


def _text_of(value: object) -> str:
    """About as templates write it: a text as it is, the rest as JSON; half a surrogate pair as a question mark."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn.

    Attributes:
        role: one of `ROLES`.
        content: the text; may be empty, for an assistant turn that only calls tools.
        extra: what chat templates read besides: tool_calls, name, tool_call_id, reasoning_content.
    """

    role: str
    content: str
    extra: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The form chat templates take."""
        return {"role": self.role, "content": self.content, **self.extra}

    @property
    def texts(self) -> tuple[str, ...]:
        """All that a chat template may write of it."""
        return (self.content, *map(_text_of, self.extra.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One row, read and checked.

    Attributes:
        path: its file.
        line: its line or row number.
        unit: what `line` counts.
        messages: at least one, with at least one assistant turn that says something.
        num_prompt_messages: the first messages never carry loss, whatever their role.
        is_plain: a prompt and a completion to be joined as they are, without a chat template.
        tools: tool descriptions for the chat template.
        checks: what an answer to it must and must not hold, for evaluations.
    """

    path: Path
    line: int
    unit: str = "line"
    messages: tuple[Message, ...]
    num_prompt_messages: int = 0
    is_plain: bool = False
    tools: tuple[object, ...] = ()
    checks: Checks = field(default_factory=Checks)

    @property
    def texts(self) -> Iterator[str]:
        """All texts of the turns, then the tools, before any template."""
        for message in self.messages:
            yield from message.texts
        yield from map(_text_of, self.tools)

    @property
    def num_chars(self) -> int:
        """Characters of `texts`."""
        return sum(map(len, self.texts))
