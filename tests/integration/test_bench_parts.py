"""The slower parts of the bench, as their processes run them."""

from __future__ import annotations

import pytest
import torch

from orchestrator.measure import kernels, layers
from orchestrator.measure.serve import Request
from orchestrator.measure.stack import STACKS, logit_bytes, stack
from orchestrator.measure.timing import MIN_REPEATS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
CPU = Request(parts=())


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """As a rank of the bench has it; others get theirs back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_installed_libraries_take_what_is_counted() -> None:
    found = {entry.name: entry.value for entry in stack(CPU)}
    assert set(found) == {f"{name}.{what}" for name in STACKS for what in ("logit_bytes", "layer_factor")}
    for name in STACKS:
        assert found[f"{name}.logit_bytes"] == pytest.approx(logit_bytes(name), rel=0.03)
        assert found[f"{name}.layer_factor"] == pytest.approx(1, rel=0.05)


def test_unpacking_is_measured_for_each_dtype_and_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_CPU", kernels.Sizes(tokens=8, widths=(64, 128), copy_bytes=2**20))
    entries = kernels.dequantise(CPU)
    assert [entry.name for entry in entries] == [
        f"nf4.{dtype}.{width}" for dtype in ("fp32", "bf16", "fp16") for width in (64, 128)
    ]
    assert all(entry.repeats >= MIN_REPEATS and entry.value > 0 for entry in entries)


def test_a_layer_takes_the_host_longer_than_a_kernel() -> None:
    found = {entry.name: entry for entry in layers.overhead(CPU)}
    assert found["layer_pass"].value > 20 * found["op"].value
    assert all(entry.unit == "s" and entry.repeats >= MIN_REPEATS for entry in found.values())


@pytest.mark.slow
def test_the_rest_of_a_layer_is_slower_than_memory() -> None:
    (entry,) = layers.layer(CPU)
    assert 1e8 < entry.value < 1e11
    assert entry.unit == "bytes/s"
