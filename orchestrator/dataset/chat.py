"""Which chat template is used, and how its assistant tokens are found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from orchestrator.errors import Problem, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Line breaks after a block tag are written as expressions: transformers renders with trim_blocks.
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Plain words, since a base model has never been trained on reserved or new tokens.
_PLAIN = (
    "{% for message in messages %}### {{ message['role'] | capitalize }}:\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}{{ '\\n\\n' }}"
    "{% else %}{{ message['content'] }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)


class Source(Enum):
    """How assistant tokens are told from the others."""

    markers = "markers"  # {% generation %} in the template
    prefixes = "prefixes"  # rendering the conversation turn by turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """The template rows are rendered with.

    Attributes:
        template: Jinja source; to be saved with the adapter when `is_new`.
        source: how assistant tokens are found in it.
        is_new: the tokenizer had no template of its own.
        notes: what the user should know.
    """

    template: str
    source: Source
    is_new: bool = False
    notes: tuple[str, ...] = ()


def choose_format(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """The tokenizer's own template if possible, TRL's training variant of it, or a default.

    Raises:
        UserError: the template is no valid Jinja.
    """
    own = tokenizer.chat_template
    if isinstance(own, dict):
        own = own.get("default")
    if not own:
        return _default_format(tokenizer)
    _check_syntax(tokenizer, own)
    if has_generation_markers(own):
        return ChatFormat(template=own, source=Source.markers)
    variant = _training_variant(tokenizer)
    if variant is not None and has_generation_markers(variant):
        note = "assistant tokens are marked by TRL's training variant of this chat template"
        return ChatFormat(template=variant, source=Source.markers, notes=(note,))
    note = "assistant tokens are found by rendering turn by turn: the template has no markers"
    return ChatFormat(template=own, source=Source.prefixes, notes=(note,))


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer itself puts its BOS token before a text."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a")["input_ids"][:1] == [bos]


def _check_syntax(tokenizer: PreTrainedTokenizerBase, template: str) -> None:
    """Compile the template once, so that a mistake in it is not reported for every row."""
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], chat_template=template, tokenize=False)
    except jinja2.TemplateSyntaxError as error:
        reason = (error.message or "syntax error").rstrip(". ")
        raise UserError(
            Problem(
                where=_template_place(tokenizer),
                found=f"the chat template is not valid Jinja (its line {error.lineno}: {reason})",
                remedy="Correct it, or take the file from the model's own folder.",
            )
        ) from error
    except Exception:  # noqa: BLE001 - a template may refuse this conversation; rows tell more
        return


def _template_place(tokenizer: PreTrainedTokenizerBase) -> str:
    folder = Path(str(tokenizer.name_or_path))
    own_file = folder / "chat_template.jinja"
    return str(own_file) if own_file.is_file() else f"{folder / 'tokenizer_config.json'}, chat_template"


def _training_variant(tokenizer: PreTrainedTokenizerBase) -> str | None:
    try:
        variant: str | None = get_training_chat_template(tokenizer)
    except Exception:  # noqa: BLE001 - a template runs code of its own, which can raise anything
        # Unknown to TRL, or a template that its probing with tool calls breaks.
        return None
    return variant


def _default_format(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    has_chatml = {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.get_vocab())
    body, name = (_CHATML, "ChatML") if has_chatml else (_PLAIN, "plain '### User:' headings")
    bos = "{{ bos_token }}" if adds_bos(tokenizer) else ""
    note = f"the tokenizer has no chat template; using {name}, which needs no new tokens"
    notes = [note]
    if not has_chatml and tokenizer.eos_token is None:
        body = body.replace("{{ eos_token }}", "")
        notes.append("the tokenizer has no EOS token, so the model will not learn to stop")
    return ChatFormat(template=bos + body, source=Source.markers, is_new=True, notes=tuple(notes))
