"""Runs a schedule on a torch process group, as often as wanted.

Every rank of the group makes an `Executor` from the same schedule, and starts the same runs in the same order. The
group should be used for nothing else meanwhile: one issuing order per group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist

from orchestrator.collectives.agreement import agree
from orchestrator.collectives.layout import Counts, block_of
from orchestrator.collectives.memory import Pool, Spaces
from orchestrator.collectives.program import Program, fingerprint, program_of
from orchestrator.collectives.pump import Pump
from orchestrator.collectives.waves import run_waves
from orchestrator.errors import Problem, RunFailed, UserError
from topology.collectives import Collective
from topology.schedule import Schedule

_MOST_PROGRAMS = 64  # sizes whose programs are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How the data is cut for the way; the same on all ranks.

    Attributes:
        piece_bytes: aimed-at size of a piece of the largest chunk.
        most: pieces of a chunk at most.
        depth: how many pieces of a chunk may be on their way at each step.
        grouped: whether waves are issued as grouped calls; None: on CUDA only.
    """

    piece_bytes: int = 512 << 10
    most: int = 512
    depth: int = 8
    grouped: bool | None = None

    def __post_init__(self) -> None:
        """Reject what cuts nothing."""
        if min(self.piece_bytes, self.most, self.depth) < 1:
            found = f"piece_bytes={self.piece_bytes}, most={self.most}, depth={self.depth}"
            raise UserError(Problem(where="pieces", found=found, remedy="give numbers of one or more"))

    def number(self, chunk_bytes: float) -> int:
        """Into how many pieces a chunk is cut."""
        return max(1, min(self.most, round(chunk_bytes / self.piece_bytes)))


class Handle:
    """A run under way."""

    def __init__(self, wait: Callable[[], None]) -> None:
        """Take what waits for its end."""
        self._wait = wait

    def wait(self) -> None:
        """Return when the result may be used (on CUDA: by what the current stream does next).

        Raises:
            RunFailed: a peer is gone, or slower than the group's timeout.
        """
        self._wait()


class Executor:
    """A schedule bound to a process group."""

    def __init__(self, schedule: Schedule, group: dist.ProcessGroup, pieces: Pieces | None = None) -> None:
        """Compare the schedule with those of the other ranks; all ranks of the group must call this.

        Raises:
            UserError: on all ranks, if they hold different schedules or the group does not fit.
        """
        self.schedule, self.group, self.pieces = schedule, group, pieces or Pieces()
        self.rank = dist.get_rank(group)
        self._cuda = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if self._cuda else torch.device("cpu")
        self._grouped = self._cuda if self.pieces.grouped is None else self.pieces.grouped
        size, fault = dist.get_world_size(group), ""
        if schedule.size != size:
            fault = f"a schedule for {schedule.size} ranks in a group of {size}"
        name = f"{schedule.algorithm} {schedule.collective.value}"
        agree(group, name, fingerprint(schedule, self.pieces), device=self._device, fault=fault)
        self._pool = Pool()
        self._stream = _stream(self._device) if self._cuda else None
        self._thread = None if self._cuda else ThreadPoolExecutor(1, thread_name_prefix="collective")
        self._failure: str | None = None
        self._run_seconds: list[float] = []
        self._timed: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._program = lru_cache(_MOST_PROGRAMS)(self._new_program)
        self._largest_share = max(float(chunk.share) for chunk in schedule.chunks)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the buffers that are kept from run to run."""
        return self._pool.held_bytes

    @property
    def run_seconds(self) -> tuple[float, ...]:
        """Seconds of each run so far, what it waited for its peers among them; on CUDA ends those under way."""
        if self._timed:
            self._timed[-1][1].synchronize()
            self._note_times()
        return tuple(self._run_seconds)

    def _note_times(self) -> None:
        """Read the clocks of the runs that have ended on CUDA."""
        while self._timed and self._timed[0][1].query():  # type: ignore[no-untyped-call]
            begin, end = self._timed.pop(0)
            self._run_seconds.append(begin.elapsed_time(end) / 1e3)  # from milliseconds

    def run(self, data: torch.Tensor, result: torch.Tensor | None = None, counts: Counts | None = None) -> None:
        """Start a run and wait for it; see `start`."""
        self.start(data, result, counts).wait()

    def start(
        self,
        data: torch.Tensor,
        result: torch.Tensor | None = None,
        counts: Counts | None = None,
        done: Callable[[BaseException | None], None] | None = None,
    ) -> Handle:
        """Start a run; runs of an executor follow one another.

        Args:
            data: flat and contiguous. All-reduce: becomes the sum. All-gather: the whole result, in which this rank
                has filled its own block. Reduce-scatter: the whole input; afterwards this rank's block is the sum,
                and the rest has no meaning. All-to-all: the blocks to send, by target.
            result: of an all-to-all only: the blocks received, by source.
            counts: elements of uneven blocks, the same on all ranks, as `layout_of` takes them.
            done: called when the run has ended, with what went wrong or None (on CUDA: when all of it is issued, in
                the stream of the run).

        Raises:
            UserError: tensors that do not fit.
            RunFailed: an earlier run failed: what lies in the group then is not known.
        """
        if self._failure:
            raise self._failed(self._failure)
        program = self._program(_elements(data, counts), data.element_size(), _hashable(counts))
        self._check(program, data, result)
        if self._thread is None:
            return self._issue(program, data, result, done)
        future = self._thread.submit(self._carry_out, program, data, result, done)
        return Handle(lambda: _raise(future))

    def block(self, data: torch.Tensor, counts: Counts | None = None) -> torch.Tensor:
        """View of this rank's own block of an all-gather's or reduce-scatter's `data`."""
        span = block_of(self.schedule, self.rank, data.numel(), counts)
        return data[span.begin : span.end]

    def close(self) -> None:
        """End the thread, after the runs that were started."""
        if self._thread is not None:
            self._thread.shutdown()

    def _new_program(self, elements: int, element_bytes: int, counts: Counts | None) -> Program:
        number = self.pieces.number(elements * element_bytes * self._largest_share)
        depth = self.pieces.depth if number > 1 else 1
        return program_of(self.schedule, self.rank, elements, pieces=number, depth=depth, counts=counts)

    def _carry_out(
        self,
        program: Program,
        data: torch.Tensor,
        result: torch.Tensor | None,
        done: Callable[[BaseException | None], None] | None,
    ) -> None:
        error: BaseException | None = None
        begin = time.perf_counter()
        try:
            self._transfer(program, data, result)
        except (RuntimeError, ValueError) as failure:  # gloo raises plain RuntimeErrors
            self._failure = str(failure).splitlines()[0]
            error = self._failed(self._failure)
            raise error from failure
        except BaseException as failure:
            error = failure
            raise
        finally:
            if not self._cuda:
                self._run_seconds.append(time.perf_counter() - begin)
            if done is not None:
                done(error)

    def _transfer(self, program: Program, data: torch.Tensor, result: torch.Tensor | None) -> None:
        if self._failure:  # of a run that was under way when this one was started
            raise self._failed(self._failure)
        spaces = Spaces(program, data, result, self._pool)
        with torch.no_grad():
            if program.own is not None and len(program.own[0]):
                spaces.at(program.own[1]).copy_(spaces.at(program.own[0]))
            if self._grouped:
                run_waves(program, spaces, self.group, self._pool)
            else:
                Pump(program, spaces, self.group, self._pool).run()
        spaces.close()

    def _issue(
        self,
        program: Program,
        data: torch.Tensor,
        result: torch.Tensor | None,
        done: Callable[[BaseException | None], None] | None,
    ) -> Handle:
        """Put the run on a stream of its own, behind what the current stream holds."""
        stream = self._stream
        if stream is None:
            raise RuntimeError("no stream: the group is none of NCCL's")
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            begin = stream.record_event(_timed_event())
            for tensor in (data, *([] if result is None else [result])):
                tensor.record_stream(stream)  # its memory must not be used again before the stream is done
            self._carry_out(program, data, result, done)
            event = stream.record_event(_timed_event())
        self._note_times()
        self._timed.append((begin, event))
        return Handle(lambda: torch.cuda.current_stream(self._device).wait_event(event))

    def _check(self, program: Program, data: torch.Tensor, result: torch.Tensor | None) -> None:
        wanted = [("data", data, program.data_elements)]
        problems: list[Problem] = []
        if result is not None:
            wanted.append(("result", result, program.result_elements))
        elif self.schedule.collective is Collective.all_to_all:
            problems.append(Problem(where="result", found="none", remedy="an all-to-all needs a tensor for it"))
        for name, tensor, elements in wanted:
            found = [
                f"{tensor.numel()} elements, not {elements}" if tensor.numel() != elements else "",
                "not flat and contiguous" if tensor.dim() != 1 or not tensor.is_contiguous() else "",
                f"on {tensor.device}, not {self._device}" if tensor.device.type != self._device.type else "",
                f"{tensor.dtype}, not {data.dtype}" if tensor.dtype is not data.dtype else "",
            ]
            remedy = "give a flat tensor of the size, type and device"
            problems += [Problem(where=name, found=text, remedy=remedy) for text in found if text]
        if problems:
            raise UserError(*problems)

    def _failed(self, reason: str) -> RunFailed:
        where = f"rank {self.rank}, {self.schedule.algorithm} {self.schedule.collective.value}"
        remedy = "see whether the other ranks still run; then start anew with a new process group"
        return RunFailed(Problem(where=where, found=reason, remedy=remedy))


def _elements(data: torch.Tensor, counts: Counts | None) -> int:
    """Elements of the whole, the same number on all ranks."""
    if counts is None:
        return data.numel()
    return max(sum(item for item in counts if isinstance(item, int)), *(_total(item) for item in counts))


def _total(item: int | Sequence[int]) -> int:
    return item if isinstance(item, int) else sum(item)


def _hashable(counts: Counts | None) -> Counts | None:
    if counts is None:
        return None
    return tuple(item if isinstance(item, int) else tuple(item) for item in counts)  # type: ignore[return-value]


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _timed_event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


def _raise(future: Future[None]) -> None:
    future.result()
