"""Previewed rows for people: tokens in colour, or in brackets where there are no colours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from orchestrator.terminal import Style, paint

_OPEN, _CLOSE = "[[", "]]"


def preview_text(body: Mapping[str, Any], *, colour: bool) -> str:
    """Return the rows of a preview (`train.preview`)."""
    unit = "block" if body["packing"] else "row"
    lines = [_legend(body, colour=colour), *(f"note: {note}" for note in body["notes"])]
    for number, row in enumerate(body["rows"], start=1):
        lines += ["", *_row(f"{unit.capitalize()} {number}", row, body, colour=colour)]
    warned = sum(document["trained_tokens"] == 0 for row in body["rows"] for document in row)
    if warned:
        text = f"{warned} of these rows have no token to learn: the run leaves them out."
        lines += ["", paint(f"warning: {text}", Style.warning, colour=colour)]
    return "\n".join(lines) + "\n"


def _legend(body: Mapping[str, Any], *, colour: bool) -> str:
    trained = "tokens with loss" if colour else f"tokens with loss in {_OPEN}{_CLOSE}"
    why = "only answers carry loss (data.assistant_only=true)" if body["assistant_only"] else "every token carries loss"
    marks = f"{paint(trained, Style.remedy, colour=colour)}, {paint('context', Style.quiet, colour=colour)}"
    return f"{marks}; {why}; rows are cut at {body['seq_len']:,} tokens"


def _row(title: str, row: Sequence[Mapping[str, Any]], body: Mapping[str, Any], *, colour: bool) -> Iterator[str]:
    if len(row) > 1 or body["packing"]:
        tokens = sum(len(document["tokens"]) for document in row)
        trained = sum(document["trained_tokens"] for document in row)
        head = f"{title}: {len(row)} documents, {tokens:,} of {body['seq_len']:,} tokens, {trained:,} with loss"
        yield paint(head, Style.place, colour=colour)
        for at, document in enumerate(row, start=1):
            yield from _document(f"--- document {at} of {len(row)}", document, colour=colour)
        return
    yield from _document(title, row[0], colour=colour)


def _document(title: str, document: Mapping[str, Any], *, colour: bool) -> Iterator[str]:
    source = document["source"]
    named = f", source {source}" if source and not document["place"].split(", ")[0].endswith(source) else ""
    counts = f"{document['num_tokens']:,} tokens, {document['trained_tokens']:,} with loss"
    head = f"{title}: {document['place']}{named}, {counts}"
    yield paint(head, Style.place, colour=colour)
    yield "".join(_spans(document["tokens"], colour=colour))
    if document["cut_tokens"]:
        lost = f"{document['cut_trained_tokens']:,} of them with loss"
        yield paint(f"... {document['cut_tokens']:,} tokens are cut off here, {lost}", Style.warning, colour=colour)
    if not document["trained_tokens"]:
        yield paint("warning: no token of this row carries loss", Style.warning, colour=colour)


def _spans(tokens: Sequence[Mapping[str, Any]], *, colour: bool) -> Iterator[str]:
    for is_trained, group in groupby(tokens, key=lambda token: bool(token["trained"])):
        text = "".join(_visible(token) for token in group)
        if not colour:
            yield f"{_OPEN}{text}{_CLOSE}" if is_trained else text
            continue
        style = Style.remedy if is_trained else Style.quiet
        # A terminal may drop the rendition at the end of a line.
        yield "\n".join(paint(line, style, colour=True) for line in text.split("\n"))


def _visible(token: Mapping[str, Any]) -> str:
    """The text with what cannot be seen made visible; line breaks stay breaks as well."""
    text = str(token["text"])
    shown = "".join(x if x.isprintable() or x == "\n" else f"\\x{ord(x):02x}" for x in text.replace("\t", "\\t"))
    return shown.replace("\n", "\\n\n")
