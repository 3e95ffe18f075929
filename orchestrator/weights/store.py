"""Has each frozen layer on the device when it is used: carries out what the life cycle decides."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from orchestrator.errors import Problem, RunFailed
from orchestrator.weights import lifecycle
from orchestrator.weights.cut import Cut
from orchestrator.weights.gather import Gather
from orchestrator.weights.layout import BaseLayout
from orchestrator.weights.mover import Copying, Event, Gathering, Mover
from orchestrator.weights.order import sweeps
from orchestrator.weights.rules import Action, Drain, Move, State, Transfer
from orchestrator.weights.shards import Shards
from orchestrator.weights.slots import Pace, counts_between, rules_of, streamed_layers


@dataclass(slots=True, kw_only=True)
class StoreStats:
    """What the store has done so far.

    Attributes:
        uses: of streamed layers.
        waits: uses whose bytes were not all there.
        wait_seconds: that computing waited for them (on a GPU: its stream).
        gathers, gathered_bytes: between ranks, own bytes not counted.
        copied_bytes: from this rank's own pieces.
    """

    uses: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    gathers: int = 0
    gathered_bytes: int = 0
    copied_bytes: int = 0


class Store:
    """Slots, resident layers and this rank's pieces; all memory is allocated when it is made.

    A use of a layer lasts until the next use of any: decoder layers run one after the other. All ranks use the same
    layers in the same order, or their gathers wait for each other for ever (until the group's timeout).
    """

    def __init__(
        self,
        layout: BaseLayout,
        cut: Cut,
        shards: Shards,
        gather: Gather | None,
        *,
        window: int,
        pace: Pace | None = None,
    ) -> None:
        """Allocate slots and residents.

        Args:
            layout: of the layers.
            cut: who holds what of them.
            shards: this rank's pieces.
            gather: how ranks bring theirs together; None for one rank.
            window: slots, the one in use included.
            pace: what may be fetched while a layer computes.
        """
        cut.check(layout)
        self.layout, self.cut, self.shards = layout, cut, shards
        self._gather, self._pace = gather, pace or Pace()
        self.stats = StoreStats()
        self.defer_copies: Callable[[], bool] = lambda: False
        self._sizes = layout.layer_bytes
        self._streamed = streamed_layers(cut)
        if self._streamed:
            self._sweeps = [sweeps(len(self._streamed), backward=backward) for backward in (False, True)]
        self._index = {layer: at for at, layer in enumerate(self._streamed)}
        self._counts = [cut.counts(layer) for layer in range(layout.num_layers)]
        self._is_cuda = shards.device.type == "cuda"
        self._mover = Mover(shards.device)
        self._residents = {layer: self._bytes(self._sizes[layer]) for layer in sorted(cut.residents)}
        self._failure: str | None = None
        self._flying: dict[Transfer, Future[Event]] = {}
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._slots: list[torch.Tensor] = []
        self._deal(window)

    def _bytes(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.shards.device)

    def _deal(self, window: int) -> None:
        self.window = max(1, min(window, len(self._streamed)))
        self._using: int | None = None
        spare, self._slots = self._slots, []
        if self._streamed:
            self._rules = rules_of(self.layout, self.cut, self.shards.rank, self.window, self._pace)
            self._slots = [self._slot(nbytes, spare) for nbytes in self._rules.slot_bytes]
            self._order(backward=True)
            self._state = lifecycle.start(self._rules, self._sweep, self.window)
        self._homes = [self._home(layer) for layer in range(len(self._sizes))]

    def _slot(self, nbytes: int, spare: list[torch.Tensor]) -> torch.Tensor:
        """Use a slot again where its size fits, so that another window never takes the memory of two."""
        for at, slot in enumerate(spare):
            if slot.numel() == nbytes:
                return spare.pop(at)
        return self._bytes(nbytes)

    def _order(self, *, backward: bool) -> None:
        self._sweep = self._sweeps[backward]

    def memory_of(self, layer: int) -> torch.Tensor:
        """The bytes where a layer lies while it is used; always the same for a layer, until `resize`."""
        return self._homes[layer]

    def _home(self, layer: int) -> torch.Tensor:
        resident = self._residents.get(layer)
        whole = self._slots[self._index[layer] % self.window] if resident is None else resident
        return whole[: self._sizes[layer]]

    def write(self, layer: int, begin: int, data: torch.Tensor) -> None:
        """Keep what this rank holds of the bytes `data` (flat uint8) that begin at `begin` of a layer."""
        if layer in self._residents:
            self._residents[layer][begin : begin + data.numel()].copy_(data)
        else:
            self.shards.write(layer, begin, data)

    @property
    def slots(self) -> Sequence[torch.Tensor]:
        """The memory of the window."""
        return self._slots

    @property
    def residents(self) -> Sequence[torch.Tensor]:
        """The memory of the layers that stay."""
        return list(self._residents.values())

    def begin_pass(self, *, backward: bool) -> None:
        """Say which sweep over the layers begins: a forward pass that a backward pass follows, or one alone."""
        if self._streamed:
            self._release()
            self._note_times()
            self._order(backward=backward)
            self._state = lifecycle.follow(self._state, self._sweep, self.window)

    def use(self, layer: int) -> None:
        """Have a layer's bytes in its memory until the next use; collective.

        Raises:
            RunFailed: a peer is gone or too slow, or this rank's pieces cannot be read.
        """
        if self._failure:
            raise self._failed(self._failure)
        if layer not in self._index:
            return
        index = self._index[layer]
        self._release()
        self.stats.uses += 1
        self._state, actions = lifecycle.demand(self._rules, self._state, index)
        self._carry_out(actions)
        self._await(lifecycle.missing(self._state, index))
        self._state, actions = lifecycle.activate(self._rules, self._state, index, defer_copies=self.defer_copies())
        self._using = index
        self._carry_out(actions)

    def _release(self) -> None:
        if self._using is not None:
            self._state = lifecycle.release(self._state, self._using)
            self._using = None

    def resize(self, window: int) -> None:
        """Deal other slots, between steps and on all ranks alike; every layer must be bound anew."""
        self.drain()
        self._deal(window)

    def drain(self) -> None:
        """Wait for what is under way, and forget what the slots hold."""
        if not self._streamed:
            return
        self._release()
        self._state, actions = lifecycle.clear(self._state)
        self._carry_out(actions)

    def close(self) -> None:
        """Wait for what is under way, and end threads and files; after a failure nothing is waited for."""
        if self._failure is None:
            self.drain()
            self._mover.close()
        if self._gather is not None:
            self._gather.close()
        self.shards.close()

    def _carry_out(self, actions: Sequence[Action]) -> None:
        ready = self._mover.mark() if actions else None
        for action in actions:
            if isinstance(action, Transfer):
                self._start(action, ready)
            elif isinstance(action, Drain):
                self._await(action.transfers, is_landing=False)

    def _start(self, transfer: Transfer, ready: Event) -> None:
        layer = self._streamed[transfer.layer]
        memory, begin, end = self.memory_of(layer), transfer.begin, transfer.end
        if transfer.move is Move.copy:
            self.stats.copied_bytes += transfer.nbytes
            work = Copying(self.shards, layer, begin, end, memory)
            self._flying[transfer] = self._mover.start(Move.copy, work, ready, ())
            return
        if self._gather is None:
            raise RuntimeError("a layer of several ranks, and no way to gather it")
        self.stats.gathers += 1
        self.stats.gathered_bytes += transfer.nbytes
        own = [flight for other, flight in self._flying.items() if other.layer == transfer.layer]
        counts = counts_between(self._counts[layer], begin, end)
        gathering = Gathering(self._gather, memory[begin:end], counts)
        self._flying[transfer] = self._mover.start(Move.gather, gathering, ready, own)

    def _await(self, transfers: Sequence[Transfer], *, is_landing: bool = True) -> None:
        flights = [self._flying.pop(transfer) for transfer in transfers]
        is_late = not all(flight.done() for flight in flights)
        begin, marked = time.perf_counter(), self._mover.mark(timed=True) if flights else None
        for flight in flights:
            self._wait_for(flight)
        if is_landing:
            for transfer in transfers:
                self._state = lifecycle.landed(self._state, transfer)
            self._note_wait(begin, marked, is_late=is_late)

    def _wait_for(self, flight: Future[Event]) -> None:
        try:
            event = flight.result()
        except RunFailed as error:
            self._failure = "; ".join(problem.found for problem in error.problems)
            raise
        except (RuntimeError, ValueError, OSError) as error:  # gloo raises plain RuntimeErrors
            self._failure = str(error).splitlines()[0]
            raise self._failed(self._failure) from error
        if event is not None:
            torch.cuda.current_stream(self.shards.device).wait_event(event)

    def _failed(self, found: str) -> RunFailed:
        remedy = "See the logs of the other ranks: the first to fail says why"
        return RunFailed(Problem(where="gather of frozen layers", found=found, remedy=remedy))

    def _note_wait(self, begin: float, marked: Event, *, is_late: bool) -> None:
        if marked is not None:
            ended = self._mover.mark(timed=True)
            if ended is not None:
                self._timed.append((marked, ended))
            return
        self.stats.waits += is_late
        self.stats.wait_seconds += time.perf_counter() - begin

    def read_stats(self) -> StoreStats:
        """Return the counts; on a GPU this waits for it, so call it at the end of a step."""
        if self._timed:
            self._timed[-1][1].synchronize()
            self._note_times()
        return self.stats

    def _note_times(self) -> None:
        """Read the clocks around the waits that the GPU has passed."""
        while self._timed and self._timed[0][1].query():  # type: ignore[no-untyped-call]
            begin, end = self._timed.popleft()
            seconds = begin.elapsed_time(end) / 1e3  # from milliseconds
            self.stats.wait_seconds += seconds
            self.stats.waits += seconds > _IDLE_SECONDS

    @property
    def state(self) -> State:
        """Where every streamed layer is in its life."""
        return self._state


_IDLE_SECONDS = 20e-6  # two events around nothing are some microseconds apart
