"""A timed copy on the device that there is."""

import pytest
import torch

from orchestrator.train import timed_copy
from orchestrator.train.timed_copy import copy_bytes_per_second


def test_a_copy_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_copy, "_BYTES", 2**20)
    rate = copy_bytes_per_second(torch.device("cpu"))
    assert rate is not None
    assert 1e7 < rate < 1e13


def test_no_room_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_copy, "_BYTES", 2**60)
    assert copy_bytes_per_second(torch.device("cpu")) is None
