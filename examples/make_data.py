"""Makes the example chat data: questions about the standard library, answered by its docstrings.

    python examples/make_data.py

Each row asks what one public function, class or method does; the answer is the first sentence or
two of its docstring, on one line. No object and no answer is in more than one row, so the
evaluation rows share nothing with the training rows but the form.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stdlib_text import Entry, Kind, read_modules

MIN_CHARS, MAX_CHARS = 40, 250  # of an answer
MAX_ROWS_PER_MODULE = 12

# Internal, platform-specific or removed in a later version of Python.
SKIPPED_PACKAGES = frozenset(
    {
        "aifc",
        "antigravity",
        "asynchat",
        "asyncore",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "distutils",
        "idlelib",
        "imghdr",
        "imp",
        "mailcap",
        "msilib",
        "nntplib",
        "pipes",
        "smtpd",
        "sndhdr",
        "sre_compile",
        "sre_constants",
        "sre_parse",
        "sunau",
        "telnetlib",
        "this",
        "uu",
        "xdrlib",
    }
)

QUESTIONS = (
    "What does `{name}` do?",
    "What is `{name}` for?",
    "Explain `{name}` in one or two sentences.",
    "Summarise the {kind} `{name}`.",
    "What does the {kind} `{name}` in `{module}` do?",
    "I found `{name}` in some Python code. What is it?",
    "Describe Python's `{name}`.",
)

SENTENCE_END = re.compile(r"(?<=[a-z\d)\]'\"`][.!?])\s+(?=[A-Z`'\"(])")
ROLE = re.compile(r":[a-z]+(?::[a-z]+)?:`~?([^`]+)`")
# A signature, an option list or a doctest is not a sentence.
NOT_PROSE = re.compile(r">>>|->|--|\.\. |::|^[\w.]+\(.*\)|^[\w.]+ *[-=:]|[\[\]{}<>|*\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One documented object and the sentence or two that say what it does."""

    entry: Entry
    summary: str


def summarise(doc: str) -> str | None:
    """The first one or two sentences of a docstring on one line; None if they are no prose."""
    paragraph = re.split(r"\n\s*\n", doc.strip(), maxsplit=1)[0]
    if any(line.startswith((" ", "\t")) for line in paragraph.split("\n")):
        return None
    text = ROLE.sub(r"`\1`", " ".join(paragraph.split())).replace("``", "`")
    if NOT_PROSE.search(text):
        return None
    sentences = SENTENCE_END.split(text)
    short = " ".join(sentences[:2])
    summary = short if len(short) <= MAX_CHARS else sentences[0]
    if summary.endswith((":", ",", ";")) or not summary[:1].isupper():
        return None
    if summary[-1] not in ".!?":
        summary += "."
    return summary if MIN_CHARS <= len(summary) <= MAX_CHARS and " " in summary else None


def is_public(entry: Entry) -> bool:
    """Whether users would ask about this object."""
    parts = entry.full_name.split(".")
    private = any(part.startswith("_") or part == "tests" for part in parts)
    return entry.kind is not Kind.module and not private and parts[0] not in SKIPPED_PACKAGES


def find_facts(entries: Iterable[Entry], seed: int) -> list[Fact]:
    """The usable facts in a random order, at most MAX_ROWS_PER_MODULE each, no answer twice."""
    shuffled = sorted((e for e in entries if is_public(e)), key=lambda e: e.full_name)
    random.Random(seed).shuffle(shuffled)
    names: set[str] = set()
    answers: set[str] = set()
    rows_of_module: dict[str, int] = {}
    facts = []
    for entry in shuffled:
        summary = summarise(entry.doc)
        count = rows_of_module.get(entry.module, 0)
        if summary is None or count >= MAX_ROWS_PER_MODULE or entry.full_name in names:
            continue
        if summary.lower() in answers:
            continue
        rows_of_module[entry.module] = count + 1
        names.add(entry.full_name)
        answers.add(summary.lower())
        facts.append(Fact(entry=entry, summary=summary))
    return facts


def make_row(fact: Fact, rng: random.Random) -> dict[str, list[dict[str, str]]]:
    """One conversation in the `messages` format."""
    question = rng.choice(QUESTIONS).format(name=fact.entry.full_name, kind=fact.entry.kind, module=fact.entry.module)
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": fact.summary},
        ]
    }


def write_rows(path: Path, facts: list[Fact], rng: random.Random) -> None:
    """Write one JSON object per line."""
    lines = [json.dumps(make_row(fact, rng), ensure_ascii=False) for fact in facts]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} rows")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--train-rows", type=int, default=640)
    parser.add_argument("--eval-rows", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "data")
    return parser.parse_args()


def main() -> None:
    """Write `train.jsonl` and `eval.jsonl`."""
    args = parse_args()
    facts = find_facts((e for m in read_modules() for e in m.entries), args.seed)
    wanted = args.train_rows + args.eval_rows
    if len(facts) < wanted:
        raise SystemExit(f"{wanted} rows were asked for; this Python documents {len(facts)}")
    rng = random.Random(args.seed)
    write_rows(args.out / "eval.jsonl", facts[: args.eval_rows], rng)
    write_rows(args.out / "train.jsonl", facts[args.eval_rows : wanted], rng)


if __name__ == "__main__":
    main()
