"""Ranks that change while a run trains: decided between steps, carried out between two calls of the library's loop.

A change is a resume without files: the state is captured as for a checkpoint, its adapters get other ranks
(`resized_checkpoint`), the model gets matrices of these sizes, and the loop starts again with a new optimizer, new
buckets and hooks, and restores the state. So generators, data and schedule go on as they were, and what was of the old
ranks is let go. A checkpoint that was taken between decision and change says so, and the change is made on resume.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import xxhash

from orchestrator.config import ResizeWhen
from orchestrator.resize.factors import energies
from orchestrator.resize.ranks import Layer
from orchestrator.resize.schedule import AT_STEP, History, decided, is_due, observed, warm_up
from orchestrator.train import state
from orchestrator.train.adapter_ranks import (
    ADAPTER,
    check_resizable,
    lora_layers,
    ranks_of,
    saved_ranks,
    set_ranks,
)
from orchestrator.train.checkpoint import Checkpoint
from orchestrator.train.model import trainable
from orchestrator.train.newest import open_newest
from orchestrator.train.resized_checkpoint import Change, span, told, with_ranks

if TYPE_CHECKING:
    from orchestrator.train.loop import Run

STATE: Final = "resize"  # key in a checkpoint's state
_MEMORY: Final = "memory ran out"
_ALLOCATED: Final = "allocated"  # of a GPU, all together
_TERMS: Final = ("adapters", "optimizer", "ddp_buckets")  # of live bytes, that a rank costs


class Resizing:
    """Decides on ranks and carries changes out; all ranks have one and do the same."""

    def __init__(self, run: Run) -> None:
        """Take the wishes of the user, and what memory has cost so far."""
        self._run, self._config = run, run.config.adapter.resize
        setbacks = run.plan.setbacks
        self._most = 0 if setbacks is None else setbacks.rank
        self.history = History()
        self._done: tuple[str, dict[str, Change], dict[str, int], float] | None = None
        self._metrics: dict[str, float] = {}
        self._last_squares: Mapping[str, float] = {}

    @property
    def is_on(self) -> bool:
        """Whether ranks may change in this run, or have to."""
        return self._config.in_training or self._config.under_pressure or self._most > 0

    @property
    def is_pending(self) -> bool:
        """Whether a change is decided and not done."""
        return self.history.pending is not None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {STATE: self.history.to_json()} if self.is_on else {}

    def metrics(self) -> dict[str, float]:
        """What a step's line says: mean rank, and parameters of adapters."""
        if self.is_on and not self._metrics:
            ranks = ranks_of(self._run.trainer.model).values()
            params = sum(parameter.numel() for _, parameter in trainable(self._run.trainer.model))
            self._metrics = {"adapter_rank": sum(ranks) / max(1, len(ranks)), "adapter_params": params}
        return self._metrics

    # Deciding.

    def logged(self, step: int, loss: float) -> bool:
        """End a step; return whether the loop is to be left for a change. All ranks call this."""
        if not self._config.in_training or step >= self._run.sampler.num_steps:
            return False
        self.history = observed(self.history, self._config, loss, self._squares())
        why = is_due(self.history, self._config, step)
        if not why:
            return False
        self._run.heart.beat("saving")  # singular values of all adapters may take longer than any step
        # One rank decides: singular values may differ in their last bits from host to host.
        mine = self.history
        if self._run.settings.is_main:
            mine = decided(mine, self._config, step, self._layers(is_weighed=why != AT_STEP), self._most)
        self.history = History.from_json(self._run.group.from_main(mine.to_json()))
        if not self.is_pending:
            self._run.go_on()
        return self.is_pending

    def before_step(self) -> None:
        """Keep the norms of the gradients that the optimizer is about to use, where they count."""
        if self._config.when is not ResizeWhen.gradient_norm:
            return
        layers = list(lora_layers(self._run.trainer.model))
        weights = [w for _, x in layers for w in (x.lora_A[ADAPTER].weight, x.lora_B[ADAPTER].weight)]
        norms = [w.new_zeros((), dtype=torch.float32) if w.grad is None else w.grad.float().norm() for w in weights]
        # A step whose gradients are no numbers is skipped, and counts for nothing.
        squares = torch.stack(norms).square().view(-1, 2).sum(dim=1).nan_to_num(0.0, 0.0, 0.0).tolist()
        self._last_squares = {name: value for (name, _), value in zip(layers, squares, strict=True)}

    def _squares(self) -> Mapping[str, float]:
        found, self._last_squares = self._last_squares, {}
        return found

    def _layers(self, *, is_weighed: bool) -> list[Layer]:
        """What is known of the adapters; without the energies where ranks are named and nobody asks for them."""
        counted, squares = max(1, self.history.counted), self.history.squares
        return [
            Layer(
                name=name,
                energies=self._energies(module) if is_weighed else (0.0,) * module.r[ADAPTER],
                rank_params=module.lora_A[ADAPTER].weight.shape[1] + module.lora_B[ADAPTER].weight.shape[0],
                gradient=(squares.get(name, 0.0) / counted) ** 0.5,
            )
            for name, module in lora_layers(self._run.trainer.model)
        ]

    def _energies(self, module: Any) -> tuple[float, ...]:  # noqa: ANN401 - a layer of PEFT
        self._run.heart.beat()
        found = energies(module.lora_A[ADAPTER].weight, module.lora_B[ADAPTER].weight)
        return tuple(energy * module.scaling[ADAPTER] ** 2 for energy in found)

    # Carrying out.

    def open(self) -> tuple[Path, Checkpoint] | None:
        """Find what the run goes on from, and give the model its ranks, before anything holds the parameters.

        Returns:
            The newest checkpoint in the ranks that it goes on with; None where there is none, or ranks never change.

        Raises:
            UserError: adapters that cannot be resized.
        """
        run = self._run
        if not self.is_on:
            return None
        check_resizable(run.trainer.model)
        newest = open_newest(run.store, run.group, run.events, is_main=run.settings.is_main, say=run.say)
        if newest is None:
            return None
        path, checkpoint = newest
        self.history = History.from_json(checkpoint.state.get(STATE, {}))
        before = {"adapters": sum(value.nbytes for value in checkpoint.parameters.values())}
        before["optimizer"] = sum(value.nbytes for value in checkpoint.moments.values())
        if self.history.resized or self.is_pending or self._most:
            checkpoint = self._resized(checkpoint, before)
            self._give(saved_ranks(checkpoint.parameters))
        return path, checkpoint

    def carry_out(self) -> None:
        """Make the change that is pending, after the loop was left; the loop must be started again. Collective."""
        run = self._run
        run.heart.beat("saving")
        before = self._live()
        checkpoint = state.capture(run.trainer, run.engine, run.group, run.keys, run.compression, also=self.state())
        checkpoint = self._resized(checkpoint, before)
        run.trainer.let_go()
        self._give(saved_ranks(checkpoint.parameters))
        run.callback.on_start = partial(run.begin_again, checkpoint)

    def _resized(self, checkpoint: Checkpoint, before: dict[str, int]) -> Checkpoint:
        """Return the state in the ranks that are pending, and none above what memory allows."""
        run, began = self._run, time.perf_counter()
        pending = self.history.pending
        ranks = {**saved_ranks(checkpoint.parameters), **({} if pending is None else pending.ranks)}
        if self._most:
            ranks = {name: min(rank, self._most) for name, rank in ranks.items()}
        optimizer = run.config.optimizer
        made = with_ranks(checkpoint, ranks, seed=run.config.seed, betas=(optimizer.beta1, optimizer.beta2))
        if len(set(run.group.gather(_digest(made[0])))) > 1:  # other processors, other last bits
            made = run.group.from_main(made)
        checkpoint, changes = made
        self.history = replace(self.history, pending=None)
        if changes:
            self.history = self.history.done(checkpoint.step)
            why = _MEMORY if pending is None else pending.why
            self._done = (why, changes, before, time.perf_counter() - began)
        return replace(checkpoint, state={**checkpoint.state, **self.state()})

    def _give(self, ranks: Mapping[str, int]) -> None:
        trainer = self._run.trainer
        set_ranks(trainer.model, ranks)
        trainer.adapter_widths.clear()
        trainer.adapter_widths.update(ranks_of(trainer.model).values())
        self._metrics = {}

    def before_restore(self) -> None:
        """Let the learning rate climb again after each change, before the schedule is put where it stood."""
        scheduler, steps = self._run.trainer.lr_scheduler, self._config.warmup
        if self.history.resized:
            scheduler.lr_lambdas = [partial(_climbing, one, self.history, steps) for one in scheduler.lr_lambdas]

    def restored(self) -> None:
        """Tell of the change that was made, once its state is in place. Collective."""
        if self._done is None:
            return
        gc.collect()
        (why, changes, before, seconds), self._done = self._done, None
        run, after = self._run, self._live()
        freed = {name: before[name] - after[name] for name in after if name in before and name != _ALLOCATED}
        body = told(changes)
        old, new = span(x.old for x in changes.values()), span(x.new for x in changes.values())
        lost = f", {body['dropped_share']:.2%} of their energy dropped" if body["dropped_energy"] else ""
        words = f"{len(changes)} adapters from rank {old} to {new} ({why}){lost}"
        run.events.add(
            "resized",
            step=run.trainer.state.global_step,
            attempt=run.heart.attempt,
            why=why,
            words=words,
            **body,
            bytes_before=before,
            bytes_after=after,
            freed_bytes=sum(freed.values()),
            seconds=seconds,
        )
        run.say(words)

    def _live(self) -> dict[str, int]:
        """Bytes of this rank that depend on ranks; gradients are as large as the adapters while a step runs."""
        trainer = self._run.trainer
        live = self._run.engine.live_bytes(trainer.model_wrapped, trainer.optimizer)
        found: dict[str, int] = {name: live[name] for name in _TERMS if name in live}
        found["gradients"] = found["adapters"]
        if self._run.settings.device.type == "cuda":
            found[_ALLOCATED] = torch.cuda.memory_allocated(self._run.settings.device)
        return found


def _climbing(factor: Any, history: History, steps: int, at: int) -> float:  # noqa: ANN401 - the library's
    return float(factor(at)) * warm_up(history, steps, at)


def _digest(checkpoint: Checkpoint) -> str:
    found = xxhash.xxh3_128()
    for tensors in (checkpoint.parameters, checkpoint.moments):
        for name in sorted(tensors):
            found.update(name.encode())
            found.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
