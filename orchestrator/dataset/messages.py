"""A conversation as the trainer sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from orchestrator.evaluation.checks import Checks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROLES = ("system", "user", "assistant", "tool")


class Shape(Enum):
    """How a row holds its text (`data.shape`)."""

    messages = "messages"
    prompt_completion = "prompt_completion"
    alpaca = "alpaca"
    sharegpt = "sharegpt"


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
    def num_chars(self) -> int:
        """Characters of text, before any template."""
        return sum(len(message.content) for message in self.messages)
