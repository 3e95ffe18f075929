"""Renders a conversation and finds, in characters, what the assistant says in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dataset.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from orchestrator.dataset.messages import Message, Sample

_PREFIX_REMEDY = (
    "Put {% generation %} ... {% endgeneration %} around the assistant's text in the chat "
    "template, or set data.assistant_only=false to train on all tokens."
)


def render(
    sample: Sample,
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: Sequence[Message],
    *,
    is_prompt: bool = False,
) -> str:
    """Text of some messages of a sample; `is_prompt` appends the assistant's header.

    Raises:
        DataError: the template refuses the conversation.
    """
    return str(_apply(sample, tokenizer, template, messages, tokenize=False, add_generation_prompt=is_prompt))


def marked_tokens(sample: Sample, tokenizer: PreTrainedTokenizerBase, template: str) -> tuple[list[int], list[int]]:
    """(input ids, 1 where the template's markers say the assistant speaks) of a sample.

    Raises:
        DataError: the template refuses the conversation.
    """
    out = _apply(
        sample,
        tokenizer,
        template,
        sample.messages,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return out["input_ids"], out["assistant_masks"]


def _apply(
    sample: Sample,
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: Sequence[Message],
    **options: bool,
) -> Any:  # noqa: ANN401 - a string or a dict of lists, by the options
    try:
        return tokenizer.apply_chat_template(
            [message.as_dict() for message in messages],
            tools=list(sample.tools) or None,
            chat_template=template,
            **options,
        )
    except Exception as error:  # a template runs code of its own, which can raise anything
        problem = f"the chat template refuses this conversation: {error}"
        remedy = "Change the row (roles, their order, system messages) to what the template allows."
        raise at(sample, problem, remedy) from error


def prefix_spans(sample: Sample, tokenizer: PreTrainedTokenizerBase, template: str, full: str) -> list[tuple[int, int]]:
    """(start, end) characters of assistant turns, by rendering the conversation turn by turn.

    A turn starts where the prompt before it, with the assistant's header, ends; it ends where the
    rendering up to and with it ends, so the end-of-turn token is part of it. Text that the template
    puts after the last turn, whichever that is, belongs to no turn but the last.

    Raises:
        DataError: what the template writes for earlier turns depends on later ones.
    """
    messages = sample.messages
    spans = []
    for i in range(sample.num_prompt_messages, len(messages)):
        if messages[i].role != "assistant":
            continue
        if i == 0:
            remedy = "Put a user turn before it."
            raise at(sample, "the conversation starts with the assistant", remedy)
        before = render(sample, tokenizer, template, messages[:i], is_prompt=True)
        is_last = i == len(messages) - 1
        after = full if is_last else render(sample, tokenizer, template, messages[: i + 1])
        end = _end_of_turn(after, full)
        if end is None or not (full.startswith(before) and len(before) <= end):
            problem = f"the chat template renders turn {i + 1} differently once more turns follow"
            raise at(sample, problem, _PREFIX_REMEDY)
        spans.append((len(before), end))
    return spans


def _end_of_turn(after: str, full: str) -> int | None:
    """Where the rendering up to a turn leaves the whole one.

    None if it does so for another reason than text at the end of every conversation (Phi-3 writes
    its EOS there).

    That text and the next turn may begin alike, so the end can lie a few characters too far: inside
    the next turn's first token, which is therefore not the assistant's.
    """
    if full.startswith(after):
        return len(after)
    pairs = enumerate(zip(after, full, strict=False))
    end = next((i for i, (a, b) in pairs if a != b), min(len(after), len(full)))
    return end if full.endswith(after[end:]) else None


def prompt_chars(sample: Sample, tokenizer: PreTrainedTokenizerBase, template: str) -> int:
    """Characters of the prompt messages, which never carry loss.

    Zero when they hold no assistant turn: then the markers alone do the job.

    Raises:
        DataError: the rendered prompt is not how the rendered conversation starts.
    """
    prompt = sample.messages[: sample.num_prompt_messages]
    if all(message.role != "assistant" for message in prompt):
        return 0
    full = render(sample, tokenizer, template, sample.messages)
    for is_prompt in (True, False):
        text = render(sample, tokenizer, template, prompt, is_prompt=is_prompt)
        if full.startswith(text):
            return len(text)
    problem = "the chat template renders the prompt differently once the completion follows"
    raise at(sample, problem, _PREFIX_REMEDY)


def at(sample: Sample, problem: str, remedy: str) -> DataError:
    """A problem at a sample's place."""
    return DataError(path=sample.path, line=sample.line, unit=sample.unit, problem=problem, remedy=remedy)
