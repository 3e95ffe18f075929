"""Searches that come to an end: a pattern such as `(a+)+$` may need longer than a training for one answer."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Final

SEARCH_SECONDS: Final = 2.0  # of computing, of all threads; a machine that stands still costs nothing
_SEARCHED_CHARACTERS: Final = 20_000  # of the beginning; some 5,000 tokens


class TooLongError(Exception):
    """A search was given up."""


def found(pattern: str, text: str, flags: re.RegexFlag = re.NOFLAG) -> bool:
    """Whether a pattern is found in the first 20,000 characters of a text.

    Raises:
        TooLongError: not within two seconds of computing.
    """
    with _within(SEARCH_SECONDS):
        return found_at_once(pattern, text, flags)


def found_at_once(pattern: str, text: str, flags: re.RegexFlag = re.NOFLAG) -> bool:
    """The same of a pattern of our own, which is sure to end."""
    return _compiled(pattern, flags).search(text[:_SEARCHED_CHARACTERS]) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str, flags: re.RegexFlag) -> re.Pattern[str]:
    return re.compile(pattern, flags)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer: `re` looks for signals while it searches, in the main thread alone."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _give_up)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL if before is None else before)


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise TooLongError
