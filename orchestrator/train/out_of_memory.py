"""What a rank leaves behind when memory runs out: who held how much, in a file, and one line for the launching side.

Checkpoints stay as they are: a save that fails leaves nothing under a checkpoint's name.
"""

from __future__ import annotations

import gc
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import nn

from orchestrator.engines.base import Engine
from orchestrator.engines.live import Named, replicated_base
from orchestrator.monitor.beat import Heart
from orchestrator.planner.setbacks import DEVICE
from orchestrator.recovery.event import FAULT_PREFIX
from orchestrator.recovery.memory_errors import asked_bytes, memory_error, where_of
from orchestrator.train.run_files import write_json
from topology.probe.cgroup import memory_headroom_bytes
from topology.probe.kernel_values import ReadingAbsentError
from topology.units import format_bytes

SCHEMA: Final = 1
_SHOWN_TENSORS: Final = 20
_RESERVE_BYTES: Final = 8 << 20  # given back first, so that there is room to write with
_TOLD: Final = "out of memory: see "
NOT_NAMED: Final = "other_tensors"
ON_DEVICE: Final = "activations_and_temporaries"
IN_PROCESS: Final = "activations_and_libraries"


class Reserve:
    """Memory that is set aside for the report."""

    def __init__(self) -> None:
        """Touch each page, or the kernel would only promise it."""
        self._held: bytearray | None = bytearray(b"\1") * _RESERVE_BYTES

    def release(self) -> None:
        """Give it back."""
        self._held = None


@contextmanager
def told_of(heart: Heart, run_dir: Path, device: torch.device, named: Callable[[], Named]) -> Iterator[None]:
    """Tell of memory that runs out inside, and pass the error on."""
    reserve = Reserve()
    try:
        yield
    except BaseException as error:
        reserve.release()
        tell(error, heart, run_dir, device, named)
        raise


def tell(
    error: BaseException,
    heart: Heart,
    run_dir: Path,
    device: torch.device | None = None,
    named: Callable[[], Named] = dict,
) -> bool:
    """Write the report and say the line, once, where the error means that memory ran out.

    Args:
        error: whatever ended the rank.
        heart: of the rank: its phase and step.
        run_dir: of the run.
        device: that the rank computes on; None before that is known.
        named: tensors by the terms of the estimate; may fail, as there is no memory.

    Returns:
        Whether it does.
    """
    cause = memory_error(error)
    if cause is None:
        return False
    if any(note.startswith(_TOLD) for note in getattr(error, "__notes__", ())):
        return True
    beat, where = heart.now, where_of(cause)
    path = run_dir / "logs" / f"oom-{heart.attempt}-{beat.rank}.json"
    free, allocated = _room(where, device)
    _make_room()
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "attempt": heart.attempt,
        "rank": beat.rank,
        "phase": beat.phase,
        "step": beat.step,
        "where": where,
        "asked_bytes": asked_bytes(cause),
        "free_bytes": free,
        "allocated_bytes": allocated,
        "words": str(cause).strip().splitlines()[0][:300] if str(cause).strip() else type(cause).__name__,
    }
    # First the line: what follows needs memory.
    rank = f"rank {beat.rank} ran out of {where} memory while {beat.phase}"
    asked = f", asking for {format_bytes(body['asked_bytes'])}" if body["asked_bytes"] else ""
    words = f"{rank}{asked} ({format_bytes(free)} free, {format_bytes(allocated)} in use)"
    line = {**body, "kind": "out_of_memory", "words": words, "report": str(path)}
    print(FAULT_PREFIX + json.dumps(line), flush=True)
    error.add_note(_TOLD + str(path))
    with suppress(Exception):  # a report that cannot be made is no second fault
        path.parent.mkdir(parents=True, exist_ok=True)
        # Should the look at every tensor need more than there is, the whole is named at least.
        write_json(path, {**body, "terms": [_rest(where, allocated)], "largest": []})
        terms, largest = live_report(_named(named), device if where == DEVICE else None, allocated)
        write_json(path, {**body, "terms": terms, "largest": largest})
    if where == DEVICE and device is not None and device.type == "cuda":
        with suppress(Exception):
            dump: Any = torch.cuda.memory._dump_snapshot  # noqa: SLF001 - the documented way
            dump(str(path.with_suffix(".pickle")))
    return True


def _rest(where: str, nbytes: int) -> dict[str, Any]:
    return {"name": ON_DEVICE if where == DEVICE else IN_PROCESS, "bytes": nbytes}


def _make_room() -> None:
    """Exceed the soft limit of the address space: this process ends, and is to say why."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    gc.collect()


def named_tensors(engine: Engine, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Named:
    """Tensors by the terms of the estimate; before there is an optimizer, what the model holds."""
    if optimizer is not None:
        return engine.live_tensors(model, optimizer)
    trained = [parameter.data for parameter in model.parameters() if parameter.requires_grad]
    return {**replicated_base(model), "adapters": trained}


def _named(named: Callable[[], Named]) -> Named:
    try:
        return named()
    except Exception:  # noqa: BLE001 - half-built models have no terms
        return {}


def live_report(
    named: Named, device: torch.device | None, allocated: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return bytes by term, largest first, and the largest tensors with their terms.

    Args:
        named: tensors by the terms of the estimate.
        device: whose memory is looked at; None for the host's.
        allocated: bytes in use there: what no tensor explains is a term of its own.
    """
    kind = "cpu" if device is None else device.type
    totals: dict[str, int] = {}
    tensors: list[dict[str, Any]] = []
    seen: set[int] = set()
    for term, tensor in _live(named):
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if tensor.device.type != kind or not nbytes or storage.data_ptr() in seen:
            continue
        seen.add(storage.data_ptr())
        totals[term] = totals.get(term, 0) + nbytes
        shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        tensors.append({"name": term, "bytes": nbytes, "shape": shape, "dtype": dtype})
    rest = allocated - sum(totals.values())
    if rest > 0:
        totals[ON_DEVICE if device is not None else IN_PROCESS] = rest
    terms = [{"name": name, "bytes": nbytes} for name, nbytes in sorted(totals.items(), key=lambda item: -item[1])]
    return terms, sorted(tensors, key=lambda item: -int(item["bytes"]))[:_SHOWN_TENSORS]


def _live(named: Named) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors with a name, then gradients, then all others that Python knows of."""
    for term, held in named.items():
        yield from ((term, tensor) for tensor in held)
    others = [found for found in gc.get_objects() if _is_tensor(found)]
    for tensor in others:
        if isinstance(tensor, nn.Parameter) and tensor.grad is not None:
            yield "gradients", tensor.grad
    for tensor in others:
        yield NOT_NAMED, tensor


def _is_tensor(found: object) -> bool:
    # By its type: `isinstance` would ask the object, and lazy modules answer by importing what is not there.
    if not issubclass(type(found), torch.Tensor):
        return False
    tensor: Any = found
    return tensor.layout is torch.strided and not tensor.is_meta


def _room(where: str, device: torch.device | None) -> tuple[int, int]:
    """Bytes that are free, and that this rank uses."""
    if where == DEVICE and device is not None and device.type == "cuda":
        with suppress(RuntimeError):
            free, _ = torch.cuda.mem_get_info(device)
            return int(free), int(torch.cuda.memory_allocated(device))
    memory = psutil.Process().memory_info()
    frees = [int(psutil.virtual_memory().available)]
    with suppress(ReadingAbsentError, ValueError):
        frees.append(memory_headroom_bytes(Path("/")))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        frees.append(max(0, limit - memory.vms))
    return min(frees), int(memory.rss)
