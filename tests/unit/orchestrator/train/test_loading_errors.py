"""Memory that runs out, and damage, while transformers converts weights: it keeps the cause only as text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.bitsandbytes import Bnb4bitQuantize

from orchestrator.recovery.memory_errors import memory_error, memory_line, where_of
from orchestrator.train.loading_errors import memory_error_told, reason_of

BASE = Path(__file__).parents[4] / "examples" / "base"
REFUSED = "[enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."


def _loading_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Exception:
    """What `from_pretrained` raises when the packing of weights raises the error given."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Bnb4bitQuantize, "convert", refuse)
    with pytest.raises(RuntimeError) as raised:
        AutoModelForCausalLM.from_pretrained(str(BASE), quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    return raised.value


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (RuntimeError(REFUSED), "host"),
        (MemoryError(), "host"),
        (MemoryError("std::bad_alloc"), "host"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "device"),
    ],
)
def test_memory_that_runs_out_in_a_conversion_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    raised = _loading_raises(monkeypatch, error)
    assert memory_error(raised) is None, "the library's own error does not tell"
    told = memory_error_told(raised)
    assert told is not None
    assert memory_error(told) is told
    assert where_of(told) == where


def test_another_failure_is_told_with_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = _loading_raises(monkeypatch, ValueError("odd shape (3, 5)"))
    assert memory_error_told(raised) is None
    assert reason_of(raised) == "ValueError: odd shape (3, 5)"


def test_an_error_without_a_report_speaks_for_itself() -> None:
    assert memory_error_told(OSError("no file")) is None
    assert reason_of(OSError("no file\nat all")) == "OSError: no file"
    assert reason_of(ValueError()) == "ValueError: no reason given"


def test_source_lines_of_a_traceback_do_not_count() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\n    say("out of memory")\nValueError: no'
    assert memory_line(text) is None
    assert memory_line(text.replace("ValueError: no", "numpy._core._exceptions._ArrayMemoryError: x")) is not None
