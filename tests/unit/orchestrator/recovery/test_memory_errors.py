"""Errors that mean that memory ran out, in the words of those who raise them."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch

from orchestrator.errors import Problem, UserError
from orchestrator.recovery.memory_errors import asked_bytes, memory_error, where_of
from topology.units import GIB

CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.12 GiB is free."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "1073741824 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "where", "asked"),
    [
        (torch.OutOfMemoryError(CUDA), "device", 5 * GIB // 2),
        (RuntimeError(CPU), "host", GIB),
        (MemoryError(), "host", 0),
        (MemoryError("std::bad_alloc"), "host", 0),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "device", 0),
        (RuntimeError("CUDA error: out of memory"), "device", 0),
        (RuntimeError("NCCL error: unhandled cuda error. Cuda failure 2 'out of memory'"), "device", 0),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "host", 0),
        (RuntimeError("unable to mmap 100 bytes: Cannot allocate memory (12)"), "host", 0),
    ],
)
def test_who_ran_out_of_what(error: Exception, where: str, asked: int) -> None:
    assert memory_error(error) is error
    assert where_of(error) == where
    assert asked_bytes(error) == asked


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape '[2]' is invalid for input of size 3"),
        OSError(errno.ENOSPC, "No space left on device"),
        ImportError("libgomp.so.1: cannot allocate memory in static TLS block"),
        KeyboardInterrupt(),
        UserError(Problem(where="model", found="damaged", remedy="Save it again.")),
    ],
)
def test_other_errors_are_none(error: BaseException) -> None:
    assert memory_error(error) is None


def test_an_error_that_was_raised_from_one_counts() -> None:
    def load() -> None:
        try:
            np.ones(2**62, dtype=np.uint8)
        except Exception as error:
            raise UserError(Problem(where="model", found="it could not be loaded", remedy="Save it again.")) from error

    with pytest.raises(UserError) as caught:
        load()
    found = memory_error(caught.value)
    assert isinstance(found, MemoryError)
    assert where_of(found) == "host"
    assert asked_bytes(found) == 2**62


def test_an_error_that_was_set_apart_does_not_count() -> None:
    def again() -> None:
        try:
            torch.empty(2**50, dtype=torch.uint8)
        except RuntimeError:
            raise ValueError("something else") from None

    with pytest.raises(ValueError, match="something else") as caught:
        again()
    assert memory_error(caught.value) is None


def test_page_locked_memory_is_the_hosts() -> None:
    def pin_memory() -> None:
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError) as caught:
        pin_memory()
    assert where_of(caught.value) == "host"


def test_what_torch_and_numpy_really_say() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert memory_error(caught.value) is caught.value
    assert (where_of(caught.value), asked_bytes(caught.value)) == ("host", 2**50)
    with pytest.raises(MemoryError) as refused:
        np.ones(2**50, dtype=np.uint8)
    assert asked_bytes(refused.value) == 2**50
