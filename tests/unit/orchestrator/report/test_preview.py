"""Previewed rows as text: brackets without colours, boundaries of documents, what is cut, what learns nothing."""

from __future__ import annotations

import re
from typing import Any

from orchestrator.report.preview import preview_text


def token(text: str, *, trained: bool = False) -> dict[str, Any]:
    return {"id": 1, "text": text, "trained": trained, "special": text.startswith("<")}


def document(*tokens: dict[str, Any], cut: int = 0, source: str = "rows.jsonl") -> dict[str, Any]:
    return {
        "source": source,
        "place": "/data/rows.jsonl, line 7",
        "num_tokens": len(tokens) + cut,
        "trained_tokens": sum(x["trained"] for x in tokens),
        "cut_tokens": cut,
        "cut_trained_tokens": cut,
        "tokens": list(tokens),
    }


def body(*rows: list[dict[str, Any]], packing: bool = False) -> dict[str, Any]:
    return {"seq_len": 16, "packing": packing, "assistant_only": True, "notes": ["a note"], "rows": list(rows)}


TALK = document(
    token("<user>"), token("hi\n"), token("<bot>"), token("yes", trained=True), token("<end>", trained=True)
)


def test_without_colours_what_is_trained_stands_in_brackets() -> None:
    text = preview_text(body([TALK]), colour=False)
    assert "<user>hi\\n\n<bot>[[yes<end>]]" in text
    assert "Row 1: /data/rows.jsonl, line 7, 5 tokens, 2 with loss" in text
    assert "note: a note" in text
    assert "\x1b" not in text
    assert "warning" not in text


def test_with_colours_the_text_is_the_same_and_no_line_runs_on() -> None:
    text = preview_text(body([TALK]), colour=True)
    assert "\x1b[32myes<end>\x1b[0m" in text
    assert "\x1b[2m<user>hi\\n\x1b[0m\n\x1b[2m<bot>\x1b[0m" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert [line.replace("[[", "").replace("]]", "") for line in preview_text(body([TALK]), colour=False).split("\n")][
        2:
    ] == (plain.split("\n")[2:])


def test_blocks_show_where_documents_meet() -> None:
    text = preview_text(body([TALK, TALK], packing=True), colour=False)
    assert "Block 1: 2 documents, 10 of 16 tokens, 4 with loss" in text
    assert text.index("--- document 1 of 2") < text.index("--- document 2 of 2")


def test_cut_rows_and_rows_that_teach_nothing_are_told() -> None:
    text = preview_text(body([document(token("a"), token("b"), cut=3, source="chat")]), colour=False)
    assert "line 7, source chat, 5 tokens, 0 with loss" in text
    assert "... 3 tokens are cut off here, 3 of them with loss" in text
    assert "warning: no token of this row carries loss" in text
    assert "warning: 1 of these rows have no token to learn" in text


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    text = preview_text(body([document(token("a\x1b[2Jb\tc\x07"))]), colour=False)
    assert "a\\x1b[2Jb\\tc\\x07" in text
