"""Counts the bytes of live storages while a program runs on fake tensors.

A storage counts from the operator that returns it until Python and autograd let go of it. Buffers that a CUDA kernel
allocates inside one operator are invisible here, so `workspaces` adds them by operator.
"""

# ruff: noqa: SLF001 - storages are told apart, and owners counted, only by what torch keeps private

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_ROUND = 512  # torch's CUDA allocator hands out multiples of it (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)
# References to a gradient that only autograd's buffer holds, seen from inside an operator: the buffer, the argument
# and Python's wrappers.
_OWNED_TENSOR, _OWNED_STORAGE = 4, 2

Operator = Callable[..., Any]
# (arguments, result) -> bytes that the kernel holds besides both while it runs
Workspace = Callable[[tuple[Any, ...], dict[str, Any], Any], int]
# Stands for an operator whose result depends on values that fake tensors do not have.
Substitute = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Live storages of one kind: who made them, in which phase, and how many there are."""

    operator: str
    phase: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Event:
    key: int
    bytes: int  # negative when released
    label: tuple[str, str, tuple[int, ...], str] | None


def _is_accumulation(func: Operator, args: tuple[Any, ...]) -> bool:
    """Whether autograd adds two gradients of one tensor.

    With real tensors it adds in place where nobody else holds the first (torch/csrc/autograd/input_buffer.cpp,
    can_accumulate_inplace), but never with subclasses, which fake tensors are.
    """
    if func is not torch.ops.aten.add.Tensor or torch.is_grad_enabled():
        return False
    first: Any = args[0]
    if not isinstance(first, torch.Tensor):
        return False
    storages = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
    owners = int(getattr(first, "_use_count")())  # noqa: B009 - torch's stubs leave it out
    return owners <= _OWNED_TENSOR and storages <= _OWNED_STORAGE


class StorageMeter(TorchDispatchMode):  # type: ignore[misc]
    """Tracks live bytes and their peak since the last reset."""

    def __init__(self, workspaces: Mapping[Operator, Workspace], substitutes: Mapping[Operator, Substitute]) -> None:
        """Take what single operators need besides their results, and what stands in for some."""
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._workspaces, self._substitutes = workspaces, substitutes
        self._peak_event = 0
        self._peak_extra: tuple[str, int] = ("", 0)
        self._phase = "build"
        self._events: list[_Event] = []
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Operator,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator returns
        """Run the operator and count what it returns."""
        kwargs = kwargs or {}
        substitute = self._substitutes.get(func)
        result = (substitute or func)(*args, **kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
        workspace = self._workspaces.get(func)
        extra = workspace(args, kwargs, result) if workspace else 0
        self.add(result, str(func))
        if not _is_accumulation(func, args):
            self._note_peak(str(func), extra)
        return result

    def add(self, tree: object, operator: str) -> None:
        """Count every storage in `tree` that is not counted yet."""
        for value in tree_iter(tree):
            if isinstance(value, torch.Tensor):
                self._add_tensor(value, operator)

    def _add_tensor(self, tensor: torch.Tensor, operator: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = self.size_of(tensor)
        self._known[key] = weakref.ref(storage, lambda _ref: self._release(key, size))
        self.live_bytes += size
        label = (operator, self._phase, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        self._events.append(_Event(key, size, label))

    def size_of(self, tensor: torch.Tensor) -> int:
        """Bytes that the tensor's storage counts for: what torch's CUDA allocator hands out for it."""
        return -(-tensor.untyped_storage().nbytes() // _ROUND) * _ROUND

    def _release(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.live_bytes -= size
        self._events.append(_Event(key, -size, None))

    def _note_peak(self, operator: str, extra: int) -> None:
        if self.live_bytes + extra > self.peak_bytes:
            self.peak_bytes = self.live_bytes + extra
            self._peak_event, self._peak_extra = len(self._events), (operator, extra)

    def reset_peak(self) -> None:
        """Start looking for a new peak from what is live now."""
        self.peak_bytes, self._peak_event, self._peak_extra = self.live_bytes, len(self._events), ("", 0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what the program does."""
        before, self._phase = self._phase, name
        yield
        self._phase = before

    def at_peak(self) -> tuple[Allocation, ...]:
        """What was live at the peak, largest first."""
        live: dict[int, _Event] = {}
        for event in self._events[: self._peak_event]:
            if event.label is None:
                live.pop(event.key, None)
            else:
                live[event.key] = event
        counts: Counter[Any] = Counter(event.label for event in live.values())
        sizes = {event.label: event.bytes for event in live.values()}
        found = [
            Allocation(
                operator=label[0],
                phase=label[1],
                shape=label[2],
                dtype=label[3],
                count=count,
                bytes=count * sizes[label],
            )
            for label, count in counts.items()
        ]
        operator, extra = self._peak_extra
        if extra:
            found.append(
                Allocation(operator=operator, phase="workspace", shape=(), dtype="uint8", count=1, bytes=extra)
            )
        return tuple(sorted(found, key=lambda x: -x.bytes))
