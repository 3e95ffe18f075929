"""Words of any script: where scripts put no spaces a word is a character, and marks stay with their letters. Pure.

Scripts without spaces between words, by their blocks in Unicode 15: Chinese ideographs, kana, Bopomofo, Thai, Lao,
Burmese and Khmer. Words of those would need a dictionary; one token a character is what BLEU's `zh` and `char`
tokenizers take (https://github.com/mjpost/sacrebleu).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Final

_HAN: Final = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_OTHERS: Final = (
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f"  # kana
    "\u3105-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u108f\u109a-\u109d\u1780-\u17d3\u17d7\u17dc\u17dd"  # Burmese, Khmer
)
UNSPACED: Final = _HAN + _OTHERS
"""Characters of scripts without spaces, for a character class of `re`."""
_ASCII_WORDS: Final = re.compile(r"[^\W_]+")
_JOINERS: Final = "\u200c\u200d"  # between a mark and the next letter of one word
_PLANES: Final = (range(0xD800), range(0xE000, 0x20000), range(0xE0000, 0xE1000))  # the others have no marks
_LARGEST_SHARE: Final = 0.1  # of other characters, for a text to be Chinese


@cache
def marks() -> str:
    """Combining marks (category M), for a character class of `re`."""
    every = (chr(code) for planes in _PLANES for code in planes)
    return _class(char for char in every if unicodedata.category(char).startswith("M"))


@cache
def spaced_marks() -> str:
    """Those of scripts with spaces between words."""
    unspaced = re.compile(f"[{UNSPACED}]")
    every = (chr(code) for planes in _PLANES for code in planes)
    return _class(mark for mark in re.findall(f"[{marks()}]", "".join(every)) if not unspaced.match(mark))


def _class(characters: Iterable[str]) -> str:
    """Characters in their order as ranges."""
    ranges: list[list[int]] = []
    for code in map(ord, characters):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@cache
def _words() -> re.Pattern[str]:
    letter = rf"[^\W_{UNSPACED}]"
    return re.compile(f"[{UNSPACED}][{marks()}]*|{letter}(?:{letter}|[{marks()}][{_JOINERS}]?)*")


@cache
def _pieces() -> re.Pattern[str]:
    return re.compile(rf"[{UNSPACED}][{marks()}]*|[^\s{UNSPACED}]+")


def words(text: str) -> list[str]:
    """Runs of letters and digits, and characters of scripts without spaces one by one."""
    return _ASCII_WORDS.findall(text) if text.isascii() else _words().findall(text)


def pieces(text: str) -> list[str]:
    """What stands between spaces, and characters of scripts without spaces one by one."""
    return text.split() if text.isascii() else _pieces().findall(text)


def as_words(phrase: str) -> str:
    """A pattern for the phrase on its own: `in` is not found in `string`.

    Ends that are no letters need no edge, nor do those of scripts without spaces; a letter is not parted from its mark.
    """
    letter = rf"[^\W{UNSPACED}]"
    before = f"(?<!{letter})(?<![{spaced_marks()}])" if re.match(letter, phrase) else ""
    after = f"(?!{letter})" if re.search(rf"(?:{letter}|[{spaced_marks()}])\Z", phrase) else ""
    if re.search(rf"[\w{marks()}]\Z", phrase):
        after += f"(?![{marks()}])"
    return before + re.escape(phrase) + after


def bleu_tokenizer(texts: Iterable[str]) -> str:
    """Name of the sacrebleu tokenizer: `zh` or `char` where most letters are of scripts without spaces, else `13a`."""
    whole = "".join(texts)
    if whole.isascii():
        return "13a"
    letters, unspaced = sum(map(str.isalnum, whole)), len(re.findall(f"[{UNSPACED}]", whole))
    if 2 * unspaced <= letters:
        return "13a"
    return "zh" if len(re.findall(f"[{_OTHERS}]", whole)) <= _LARGEST_SHARE * unspaced else "char"
