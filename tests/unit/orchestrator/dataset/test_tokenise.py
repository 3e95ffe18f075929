"""Samples -> tokens: loss where the assistant speaks, under any chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import PreTrainedTokenizerFast
from trl import chat_template_utils as trl_templates

from orchestrator.dataset.chat import Source, choose_format
from orchestrator.dataset.errors import DataError, DataErrors
from orchestrator.dataset.examples import IGNORED, Example
from orchestrator.dataset.messages import Sample, Shape
from orchestrator.dataset.rows import Row
from orchestrator.dataset.shapes import to_sample
from orchestrator.dataset.tokenise import check_tokenizer, tokenise
from orchestrator.errors import UserError

MakeTokenizer = Callable[..., PreTrainedTokenizerFast]

MARKED = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
TALK = [
    {"role": "user", "content": "Wie viel?"},
    {"role": "assistant", "content": "Drei → 三."},
    {"role": "user", "content": "Sicher?"},
    {"role": "assistant", "content": "Ja."},
]
CHATML = ("<|im_start|>", "<|im_end|>")
SPECIAL = (*CHATML, "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<end_of_turn>")
# Whole tokens in Phi-3's vocabulary, as turn tokens are everywhere.
SPECIAL += ("<|user|>", "<|assistant|>", "<|end|>")


def sample(fields: dict[str, object], shape: Shape = Shape.messages, line: int = 1) -> Sample:
    return to_sample(Row(path=Path("rows.jsonl"), line=line, fields=fields), shape)


def learned(example: Example, tokenizer: PreTrainedTokenizerFast) -> str:
    return str(tokenizer.decode([token for token in example.labels.tolist() if token != IGNORED]))


def one(tokenizer: PreTrainedTokenizerFast, fields: dict[str, object], shape: Shape = Shape.messages) -> Example:
    example = tokenise([sample(fields, shape)], tokenizer, seq_len=4096).examples[0]
    seen = example.labels != IGNORED
    assert (example.labels[seen] == example.input_ids[seen]).all()
    assert example.input_ids.tolist().count(tokenizer.bos_token_id) <= 1
    return example


@pytest.mark.parametrize(
    ("template", "source", "expected"),
    [
        (MARKED, Source.markers, "Drei → 三.</s>Ja.</s>"),
        (UNMARKED, Source.prefixes, "Drei → 三.</s>Ja.</s>"),
        (trl_templates.llama3_chat_template, Source.markers, "Drei → 三.<|eot_id|>Ja.<|eot_id|>"),
        (trl_templates.gemma_chat_template, Source.markers, "Drei → 三.<end_of_turn>\nJa.<end_of_turn>\n"),
        # No template: plain headings, with the EOS token that the base model knows.
        (None, Source.markers, "Drei → 三.</s>Ja.</s>"),
    ],
)
def test_loss_is_on_what_the_assistant_says(
    make_tokenizer: MakeTokenizer, template: str | None, source: Source, expected: str
) -> None:
    tokenizer = make_tokenizer(template, more_special=SPECIAL[2:])
    assert choose_format(tokenizer).source is source
    example = one(tokenizer, {"messages": TALK})
    assert learned(example, tokenizer) == expected
    assert example.input_ids[0] == tokenizer.bos_token_id


@pytest.mark.parametrize("name", ["llama3", "gemma", "phi3", "qwen2_5", "cohere", "lfm2"])
def test_turn_by_turn_agrees_with_trls_markers(make_tokenizer: MakeTokenizer, name: str) -> None:
    template = getattr(trl_templates, f"{name}_chat_template")
    by_markers = make_tokenizer(template, more_special=SPECIAL)
    # A comment makes the template unknown to TRL without changing what it renders.
    by_prefixes = make_tokenizer(template + "{# other #}", more_special=SPECIAL)
    assert choose_format(by_markers).source is Source.markers
    assert choose_format(by_prefixes).source is Source.prefixes
    a, b = one(by_markers, {"messages": TALK}), one(by_prefixes, {"messages": TALK})
    assert a.input_ids.tolist() == b.input_ids.tolist()
    # A template's line break after the end-of-turn token may count as said, or not.
    assert learned(a, by_markers).replace("\n", "") == learned(b, by_prefixes).replace("\n", "")


def test_text_after_the_last_turn_belongs_to_no_other(make_tokenizer: MakeTokenizer) -> None:
    # "<|im_end|>" closes the conversation, and shares its first characters with the next "<|user|>".
    turns = UNMARKED.replace("[{{ m.role }}]", "<|{{ m.role }}|>").replace("[assistant]", "<|assistant|>")
    ending = turns.removesuffix("{% endif %}") + "{% else %}<|im_end|>{% endif %}"
    tokenizer = make_tokenizer(ending, more_special=SPECIAL)
    assert learned(one(tokenizer, {"messages": TALK}), tokenizer) == "Drei → 三.</s>Ja.</s><|im_end|>"


def test_a_tokenizer_without_template_gets_one_without_new_tokens(make_tokenizer: MakeTokenizer) -> None:
    plain = make_tokenizer()
    result = tokenise([sample({"messages": TALK})], plain, seq_len=999)
    assert result.chat is not None
    assert result.chat.is_new
    assert "no chat template" in result.notes[0]
    text = plain.decode(result.examples[0].input_ids)
    assert text.startswith("<s>### User:\nWie viel?\n\n### Assistant:\nDrei → 三.</s>\n\n### User:")
    chatml = make_tokenizer(more_special=CHATML, adds_bos=False)
    example = one(chatml, {"messages": TALK})
    assert chatml.decode(example.input_ids).startswith("<|im_start|>user\nWie viel?<|im_end|>\n<|im_start|>assist")
    assert chatml.decode(example.input_ids).count("<|im_end|>\n") == len(TALK)
    assert learned(example, chatml) == "Drei → 三.<|im_end|>Ja.<|im_end|>"


@pytest.mark.parametrize("adds_bos", [True, False])
def test_plain_pairs_are_joined_as_they_are(make_tokenizer: MakeTokenizer, adds_bos: bool) -> None:
    tokenizer = make_tokenizer(MARKED, adds_bos=adds_bos)
    for prompt in ("2+2=", "", "<s>2+2="):
        example = one(tokenizer, {"prompt": prompt, "completion": " 4"}, Shape.prompt_completion)
        assert learned(example, tokenizer) == " 4</s>"
        bos = "<s>" if adds_bos and not prompt.startswith("<s>") else ""
        assert tokenizer.decode(example.input_ids) == f"{bos}{prompt} 4</s>"
    ended = one(tokenizer, {"prompt": "a", "completion": "b</s>"}, Shape.prompt_completion)
    assert learned(ended, tokenizer) == "b</s>"


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_assistant_turns_of_a_prompt_carry_no_loss(make_tokenizer: MakeTokenizer, template: str) -> None:
    tokenizer = make_tokenizer(template)
    fields = {"prompt": TALK[:3], "completion": TALK[3:]}
    assert learned(one(tokenizer, fields, Shape.prompt_completion), tokenizer) == "Ja.</s>"
    alpaca = {"instruction": "Add", "input": "1 2", "output": "3"}
    assert learned(one(tokenizer, alpaca, Shape.alpaca), tokenizer) == "3</s>"


def test_without_assistant_only_every_token_is_learned(make_tokenizer: MakeTokenizer) -> None:
    for template in (MARKED, UNMARKED, None):
        result = tokenise([sample({"messages": TALK})], make_tokenizer(template), seq_len=999, assistant_only=False)
        assert result.examples[0].labels.tolist() == result.examples[0].input_ids.tolist()


def test_rows_are_cut_counted_and_dropped(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(MARKED)
    rows = [("q", "a"), ("q", "a" * 90), ("q" * 90, "a")]
    samples = [sample({"prompt": p, "completion": c}, Shape.prompt_completion) for p, c in rows]
    result = tokenise(samples, tokenizer, seq_len=20)
    assert [len(example) for example in result.examples] == [4, 20]
    assert (result.num_truncated, result.num_dropped) == (2, 1)
    assert learned(result.examples[1], tokenizer) == "a" * 18
    with pytest.raises(DataError, match="none of 1 rows has a token to learn in its first 20"):
        tokenise(samples[2:], tokenizer, seq_len=20)
    assert tokenise([], tokenizer, seq_len=20).examples == ()


def test_a_template_that_looks_ahead_is_refused_with_the_remedy(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("({{ messages | length }})" + UNMARKED)
    with pytest.raises(DataErrors) as caught:
        tokenise([sample({"messages": TALK}, line=7)], tokenizer, seq_len=999)
    error = caught.value.errors[0]
    assert error.line == 7
    assert "renders turn 2 differently" in error.problem
    assert "{% generation %}" in error.remedy
    assert "data.assistant_only=false" in error.remedy


def test_what_the_template_refuses_is_reported_by_line(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(trl_templates.gemma_chat_template)
    bad = {"messages": [{"role": "system", "content": "S"}, *TALK]}
    samples = [sample(bad, line=1), sample({"messages": TALK}, line=2), sample(bad, line=3)]
    with pytest.raises(DataErrors, match="System role not supported") as caught:
        tokenise(samples, tokenizer, seq_len=999)
    assert [error.line for error in caught.value.errors] == [1, 3]
    starts = sample({"messages": TALK[1:2]})
    with pytest.raises(DataErrors, match="starts with the assistant"):
        tokenise([starts], make_tokenizer(UNMARKED), seq_len=999)


def test_a_turn_without_stop_token_is_noted(make_tokenizer: MakeTokenizer) -> None:
    endless = make_tokenizer(MARKED.replace("{{ eos_token }}", ""))
    result = tokenise([sample({"messages": TALK})], endless, seq_len=999)
    assert "may not learn to stop" in result.notes[-1]
    assert tokenise([sample({"messages": TALK})], make_tokenizer(MARKED), seq_len=999).notes == ()


def test_slow_tokenizers_are_refused() -> None:
    slow = SimpleNamespace(is_fast=False, name_or_path="m")
    with pytest.raises(UserError, match="tokenizer of m: SimpleNamespace cannot map tokens"):
        tokenise([sample({"messages": TALK})], slow, seq_len=9)


def test_tokenizers_without_pad_and_eos_are_refused(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(MARKED)
    tokenizer.pad_token = None
    check_tokenizer(tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(UserError, match=r"neither a pad nor an eos token. Set one in tokenizer_config.json"):
        check_tokenizer(tokenizer)


@pytest.mark.parametrize("has_file", [True, False])
def test_a_broken_template_is_one_problem_of_the_model(
    make_tokenizer: MakeTokenizer, tmp_path: Path, has_file: bool
) -> None:
    tokenizer = make_tokenizer("{% for m in messages %}\n{{ m.content }")
    tokenizer.name_or_path = str(tmp_path)
    if has_file:
        (tmp_path / "chat_template.jinja").write_text("")
    with pytest.raises(UserError, match=r"not valid Jinja \(its line 2") as caught:
        tokenise([sample({"messages": TALK}, line=i) for i in (1, 2)], tokenizer, seq_len=99)
    (problem,) = caught.value.problems
    place = "chat_template.jinja" if has_file else "tokenizer_config.json, chat_template"
    assert problem.where == f"{tmp_path}/{place}"


def test_whatever_a_template_raises_is_reported_by_line(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{{ 1 // 0 }}")
    with pytest.raises(DataErrors, match=r"rows\.jsonl, line 3: the chat template refuses"):
        tokenise([sample({"messages": TALK}, line=3)], tokenizer, seq_len=99)
