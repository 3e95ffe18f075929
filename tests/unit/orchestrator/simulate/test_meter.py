"""Live bytes of small programs, counted by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.simulate.meter import StorageMeter

BLOCK = 1024 * 4  # bytes of the tensors below


@pytest.fixture
def meter() -> Iterator[StorageMeter]:
    meter = StorageMeter({}, {})
    with FakeTensorMode(), meter:
        yield meter


def _block() -> torch.Tensor:
    return torch.empty(1024)


def test_a_storage_counts_while_it_lives(meter: StorageMeter) -> None:
    first, second = _block(), _block()
    assert meter.live_bytes == 2 * BLOCK
    del first
    assert meter.live_bytes == BLOCK
    assert meter.peak_bytes == 2 * BLOCK
    assert second.numel() == 1024


def test_views_and_in_place_results_are_no_new_storage(meter: StorageMeter) -> None:
    whole = _block()
    half = whole[:512]
    whole.add_(1)
    assert meter.live_bytes == BLOCK
    del whole
    assert meter.live_bytes == BLOCK  # the view holds it
    del half
    assert meter.live_bytes == 0


def test_sizes_are_rounded_as_the_allocator_does(meter: StorageMeter) -> None:
    small = torch.empty(1)
    assert meter.live_bytes == 512
    assert small.numel() == 1


def test_autograd_holds_what_it_saves(meter: StorageMeter) -> None:
    weight = torch.nn.Parameter(_block())
    kept = (weight * 2).exp()  # exp saves its result, which `kept` is; the product is let go
    assert meter.live_bytes == 2 * BLOCK
    loss = kept.square().sum()  # square saves its input; its result is let go
    assert meter.live_bytes == 2 * BLOCK + 512
    loss.backward()
    del kept, loss
    assert meter.live_bytes == 2 * BLOCK  # the parameter and its gradient


def test_gradients_of_one_tensor_are_added_in_place(meter: StorageMeter) -> None:
    weight = torch.nn.Parameter(_block())
    shared = weight * 2
    loss = (shared * 3).sum() + (shared * 5).sum()
    del shared
    before = meter.live_bytes
    meter.reset_peak()
    loss.backward()
    # one broadcast of the loss's gradient is a view; two gradients of `shared` meet, then the parameter's is made
    assert meter.peak_bytes <= before + 2 * BLOCK + 3 * 512


def test_workspaces_count_while_their_operator_runs() -> None:
    workspaces = {torch.ops.aten.exp.default: lambda _args, _kwargs, _result: 7 * BLOCK}
    meter = StorageMeter(workspaces, {})
    with FakeTensorMode(), meter:
        value = _block().exp()
    assert meter.peak_bytes == 9 * BLOCK
    assert meter.live_bytes == BLOCK
    assert value.numel() == 1024


def test_the_peak_tells_who_was_there(meter: StorageMeter) -> None:
    with meter.phase("forward"):
        held = [_block() for _ in range(3)]
        gone = torch.empty(2048)
    del gone
    small = torch.empty(8)
    found = {(x.shape, x.phase): (x.count, x.bytes) for x in meter.at_peak()}
    assert found == {((1024,), "forward"): (3, 3 * BLOCK), ((2048,), "forward"): (1, 2 * BLOCK)}
    assert (len(held), small.numel()) == (3, 8)
