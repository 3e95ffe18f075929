"""Lets DistributedDataParallel exchange compressed gradients: the hook, and all that it needs to know."""

# Annotations are values here, not texts: DDP compares those of its hooks with its own types.
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from orchestrator.compress.build import TransportOf, reducers_of
from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import Layout, Step
from orchestrator.compress.residuals import Residuals, finite
from orchestrator.compress.transport import Library
from orchestrator.errors import Problem, RunFailed
from orchestrator.planner.compression import (
    CHUNK,
    Codec,
    CompressionPlan,
    Pattern,
    dense_sent_bytes,
)

_Future = torch.futures.Future[torch.Tensor]


class Compressor:
    """The state of a model's hook. Steps are counted by the caller; a step begins with its first bucket."""

    def __init__(
        self,
        model: DistributedDataParallel,
        plan: CompressionPlan,
        group: dist.ProcessGroup,
        *,
        scale: Callable[[], float] | None = None,
        step_of: Callable[[], int],
        transport: TransportOf = Library,
    ) -> None:
        """Make process groups; all ranks call this. See `attach`."""
        named = [(name, value) for name, value in model.module.named_parameters() if value.requires_grad]
        self._names = {id(value): name for name, value in named}
        self._numels = {name: value.numel() for name, value in named}
        self._device = named[0][1].device if named else torch.device("cpu")
        self._plan, self._group, self._size = plan, group, dist.get_world_size(group)
        self.sparse_chunks: list[int] = []  # of the last step's buckets that were compressed
        self._scale_of, self._step_of, self._scale = scale, step_of, 1.0
        self._clock = Clock(self._device)
        self._reducers = reducers_of(plan, group, self._clock, transport)
        self._residuals = Residuals(self._reducers.topk, self._device)
        self._staged: dict[tuple[str, ...], torch.Tensor] = {}
        self._on_cuda = self._device.type == "cuda"
        # On CUDA a stream, elsewhere a thread: the backward pass goes on meanwhile.
        self._stream = torch.cuda.Stream(self._device) if self._on_cuda else None  # type: ignore[no-untyped-call]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compress")
        self._is_warm, self._is_refresh, self._failure = False, False, ""
        self._moved: list[tuple[str, ...]] = []  # buckets of this step whose residuals have a candidate
        self._bad: list[torch.Tensor] = []  # of this step, whether a bucket was not finite
        self._skipped = torch.zeros((), dtype=torch.int64, device=self._device)
        self._count: Counter[str] = Counter()
        self._sent_bytes = 0  # until this step began

    def take(self, bucket: dist.GradBucket) -> _Future:  # type: ignore[name-defined] # missing in the stubs
        """Start the exchange of a bucket."""
        if bucket.index() == 0:
            self._begin_step()
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        layout = Layout(names=names, numels=tuple(self._numels[name] for name in names))
        buffer = bucket.buffer()
        if not self._is_warm or not self._pays(layout, buffer):
            return self._dense(buffer)
        self.sparse_chunks.append(layout.num_chunks)
        if self._stream is None:
            future: _Future = torch.futures.Future()
            self._thread.submit(self._carry_out, layout, buffer, future)
            return future
        future = torch.futures.Future(devices=[buffer.device])
        self._stream.wait_stream(torch.cuda.current_stream(buffer.device))
        with torch.cuda.stream(self._stream):
            buffer.record_stream(self._stream)  # its memory must not be used again before the stream is done
            self._carry_out(layout, buffer, future)
        return future

    def _begin_step(self) -> None:
        self._settle()
        self.sparse_chunks = []
        step = self._step_of()
        self._is_warm = step >= self._plan.warmup_steps
        self._is_refresh = self._is_warm and self._plan.is_refresh(step)
        self._count["compressed_steps" if self._is_warm else "dense_steps"] += 1
        self._count["refresh_steps"] += self._is_refresh
        self._scale = self._scale_of() if self._scale_of is not None and self._is_warm else 1.0

    def _settle(self) -> None:
        """End the last step: residuals move on in all buckets, or in none, since its optimizer step is left out."""
        if self._bad:
            bad = torch.stack([flag.to(self._device) for flag in self._bad]).any()
            self._skipped += bad
            for names in self._moved:
                self._residuals.advance(names, bad)
        self._bad, self._moved = [], []
        sent = sum(transport.sent_bytes for transport in self._reducers.transports)
        self._count["refresh_bytes" if self._is_refresh else "topk_bytes"] += sent - self._sent_bytes
        self._sent_bytes = sent

    def _pays(self, layout: Layout, buffer: torch.Tensor) -> bool:
        """Whether fewer bytes travel compressed; the same on all ranks, and in refresh steps as in others.

        What was not sent must go on in the same buckets, so that a bucket's way does not change with the step.
        """
        pattern, codec = self._plan.pattern(self._size), self._plan.codec
        return codec is not None and sparse_is_less(pattern, codec, layout.num_chunks, buffer.nbytes)

    def _dense(self, buffer: torch.Tensor) -> _Future:
        """Divide and sum, in this order, as DDP itself does."""
        buffer.div_(self._size)
        future = dist.all_reduce(buffer, group=self._group, async_op=True).get_future()
        self._count["dense_bytes"] += dense_sent_bytes(buffer.nbytes, self._size)
        is_warm = self._is_warm

        def done(ended: Any) -> torch.Tensor:  # noqa: ANN401
            result: torch.Tensor = ended.value()[0]
            if is_warm and result.numel():  # the others' residuals depend on it
                self._bad.append(finite([result]).logical_not())
            return result

        summed: _Future = future.then(done)
        return summed

    def _carry_out(self, layout: Layout, buffer: torch.Tensor, future: _Future) -> None:
        try:
            with torch.no_grad():
                self._exchange(layout, buffer)
        except Exception as error:  # noqa: BLE001 - whatever it is must reach the backward pass, which waits
            self._failure = self._failure or str(error)
            where = f"rank {dist.get_rank(self._group)}, compressed gradients"
            remedy = "see whether the other ranks still run; then start anew from the last checkpoint"
            future.set_exception(RunFailed(Problem(where=where, found=self._failure, remedy=remedy)))  # type: ignore[arg-type]
        else:
            future.set_result(buffer)

    def _exchange(self, layout: Layout, buffer: torch.Tensor) -> None:
        """Replace the gradients in a flat bucket by their mean over the ranks, or NaN."""
        if self._failure:  # what lies in the groups then is not known
            raise RuntimeError(self._failure)
        state = self._residuals.of(layout)
        parts = torch.split(buffer, list(layout.numels))
        rows = buffer.view(-1, CHUNK) if layout.is_whole else self._stage(layout, parts)
        reducer = self._reducers.refresh if self._is_refresh else self._reducers.topk
        bad = reducer.reduce(
            Step(
                layout=layout,
                gradients=rows,
                base=state.base,
                candidate=state.candidate,
                out=rows,
                scale=self._scale,
            )
        )
        if not layout.is_whole:
            torch._foreach_copy_(list(parts), layout.views(rows))
        if self._on_cuda:
            buffer.masked_fill_(bad, float("nan"))
        elif bool(bad):
            buffer.fill_(float("nan"))
        self._bad.append(bad)
        self._moved.append(layout.names)

    def _stage(self, layout: Layout, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Rows of parameters that do not fill theirs, in memory that is used again; paddings are zero."""
        rows = self._staged.get(layout.names)
        if rows is None:
            rows = self._staged[layout.names] = layout.rows(parts, parts[0].dtype, self._device)
        else:
            torch._foreach_copy_(layout.views(rows), list(parts))
        return rows

    def residual_state(self) -> dict[str, torch.Tensor]:
        """This rank's residuals by parameter name, flat fp32 on the host; zeros where another rank keeps them.

        Between steps only. Their sum over all ranks is what is owed; at another world size, or with another exchange,
        every rank loads `error_feedback.mean_of` those of all ranks.
        """
        self._settle()
        return self._residuals.dump()

    def load_residual_state(self, saved: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        """Go on from saved residuals, given for the same names on all ranks.

        Returns:
            Names that begin anew, because nothing or another number of elements was saved of them.
        """
        self._settle()
        return self._residuals.put_back(saved, self._numels)

    @property
    def says_all(self) -> bool:
        """Whether all elements travelled in the last step: a dense one, or a refresh."""
        return not self._is_warm or self._is_refresh

    def summary(self) -> dict[str, Any]:
        """Counts and times of this rank so far; between steps only."""
        self._settle()
        steps = self._count["compressed_steps"]
        seconds = self._clock.seconds()
        return {
            "exchange": self._plan.exchange.value,
            "compressed_steps": steps,
            "refresh_steps": self._count["refresh_steps"],
            "dense_steps": self._count["dense_steps"],
            "skipped_steps": int(self._skipped),
            "sent_bytes": self._sent_bytes,
            "topk_bytes": self._count["topk_bytes"],
            "refresh_bytes": self._count["refresh_bytes"],
            "dense_sent_bytes": self._count["dense_bytes"],
            "residual_bytes": self._residuals.nbytes,
            "seconds_per_step": {name: value / max(1, steps) for name, value in seconds.items()},
        }

    def close(self) -> None:
        """End threads, after the buckets that were started."""
        self._thread.shutdown()
        for transport in self._reducers.transports:
            transport.close()


def attach(
    model: DistributedDataParallel,
    plan: CompressionPlan,
    group: dist.ProcessGroup,
    *,
    scale: Callable[[], float] | None = None,
    step_of: Callable[[], int],
    transport: TransportOf = Library,
) -> Compressor:
    """Make the model's gradients the mean over the ranks, exchanged as planned; all ranks call this.

    Args:
        model: whose buckets are exchanged; a model takes one hook in its life.
        plan: with a codec.
        group: a process group used for nothing else, of the same ranks as the model's own; dense sums go there.
        scale: of the loss at this step, the same on all ranks; None: gradients are not scaled.
        step_of: the optimizer steps done, the same on all ranks.
        transport: makes what moves packets among ranks, from a process group of them.

    Raises:
        UserError: on all ranks, if the plan does not fit the group.
    """
    compressor = Compressor(model, plan, group, scale=scale, step_of=step_of, transport=transport)
    model.register_comm_hook(compressor, compressed_mean_of_bucket)
    return compressor


def compressed_mean_of_bucket(
    compressor: Compressor,
    bucket: dist.GradBucket,  # type: ignore[name-defined] # missing in the stubs
) -> torch.futures.Future[torch.Tensor]:
    """The hook."""
    return compressor.take(bucket)


def sparse_is_less(pattern: Pattern, codec: Codec, num_chunks: int, dense_bytes: int) -> bool:
    """Whether the busiest rank sends fewer bytes than for a dense sum; across the islands, where there are some."""
    islands, part = pattern.ranks // pattern.island, dense_bytes // pattern.island
    sent = max(pattern.sent(codec, num_chunks, rank).across_bytes for rank in range(pattern.ranks))
    return sent < dense_sent_bytes(part, islands)
