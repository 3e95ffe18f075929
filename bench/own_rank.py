"""One rank of a run whose live storages are counted.

The run is the ordinary one. After its first step the storages that live between steps are counted by term; during the
second one a dispatch mode sees every operator, so that the peak is known, and what lives when the forward pass ends.
Each rank writes `live.RANK.json` beside the plan.
"""

from __future__ import annotations

import gc
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from orchestrator.engines.live import storage_bytes, tensors_of
from orchestrator.estimate.calibration import HEAD_TILE_VOCAB
from orchestrator.simulate.meter import StorageMeter
from orchestrator.train import loop, rank
from orchestrator.train.worker import read_plan, set_environment

_METERED_STEP = 1  # steps done before the one that is metered
_SHOWN = 25
# Where DeepSpeed's handles keep what is gathered: several parameters at once, and one of another dtype.
_BUFFERS = ("partitions", "_AllGatherHandle__param_buffer")


class HostMeter(StorageMeter):
    """Counts what tensors take on a host: bytes as asked for, and of TRL's tile only the pages that are written.

    The tile has room for 32,768 columns; those beyond the vocabulary are never touched, so they are no memory.
    """

    def __init__(self, vocab: int) -> None:
        """Take the size of the vocabulary."""
        super().__init__({}, {})
        self._vocab = vocab

    def size_of(self, tensor: torch.Tensor) -> int:
        """Bytes of the storage that are memory."""
        size = tensor.untyped_storage().nbytes()
        is_tile = tensor.dim() == 2 and tensor.shape[1] == HEAD_TILE_VOCAB  # noqa: PLR2004 - rows x columns
        return size * min(self._vocab, HEAD_TILE_VOCAB) // HEAD_TILE_VOCAB if is_tile else size


class Metered(TrainerCallback):  # type: ignore[misc]
    """Counts at fixed points of the second step."""

    def __init__(self, run: loop.Run) -> None:
        """Take the run whose trainer is built."""
        self.run = run
        self.meter = HostMeter(run.trainer.model.config.vocab_size)
        self.states: dict[str, int] = {}
        self.step: dict[str, int] = {}
        self.details: dict[str, Any] = {}

    def attach(self) -> None:
        """Look at what lives between a forward pass and its backward pass, too."""
        trainer = self.run.trainer
        trainer.add_callback(self)
        forward, backward = trainer.compute_loss, trainer.accelerator.backward
        before = 0

        def compute_loss(*args: object, **kwargs: object) -> torch.Tensor:
            nonlocal before
            before = self._without_gathered()
            loss: torch.Tensor = forward(*args, **kwargs)
            return loss

        def start_backward(*args: object, **kwargs: object) -> None:
            # Not sooner: until here autocast holds the casts of fp32 adapters.
            if self.states:
                kept = self._without_gathered() - before
                # Every forward pass keeps the same, but one of them makes DDP's buckets anew.
                self.step["activations"] = min(kept, self.step.get("activations", kept))
            backward(*args, **kwargs)

        trainer.compute_loss, trainer.accelerator.backward = compute_loss, start_backward

    def _without_gathered(self) -> int:
        """Live bytes but for what ZeRO-3 has gathered."""
        gathered = [*_gathered(self.run.trainer.model), *_arriving(self.run.trainer.optimizer)]
        return self.meter.live_bytes - storage_bytes(gathered)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Register what lives before the step, and watch."""
        if state.global_step != _METERED_STEP:
            return
        trainer, engine = self.run.trainer, self.run.engine
        gc.collect()
        self.states = engine.live_bytes(trainer.model_wrapped, trainer.optimizer)
        for name, tensors in engine.live_tensors(trainer.model_wrapped, trainer.optimizer).items():
            if name != "ddp_buckets":  # these are copies; DDP makes its own anew in the second forward pass
                self.meter.add(tensors, name)
        named = self.meter.live_bytes
        self.meter.add([x for x in gc.get_objects() if isinstance(x, torch.Tensor)], "unnamed")
        self.details["unnamed"] = self.meter.live_bytes - named
        self.meter.reset_peak()
        self.meter.__enter__()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Under DDP the gradients are whole now; DeepSpeed has made its step already."""
        if self.states and "gradients" not in self.states:
            held = storage_bytes([x.grad for x in self.run.trainer.model.parameters() if x.grad is not None])
            self.step["gradients"] = held

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Stop watching, write, and end the run: evaluation and export are not measured."""
        if not self.states:
            return
        self.meter.__exit__(None, None, None)
        self.step["peak"] = self.meter.peak_bytes
        self.details["at_peak"] = [asdict(found) for found in self.meter.at_peak()[:_SHOWN]]
        settings = self.run.settings
        body = {"states": self.states, "step": self.step, "details": self.details}
        (settings.run_dir / f"live.{settings.rank}.json").write_text(json.dumps(body), encoding="utf-8")
        self.run.group.barrier()
        os._exit(0)


def _gathered(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters that ZeRO-3 holds whole now, but for those it always does."""
    partitioned = [x for x in model.parameters() if hasattr(x, "ds_tensor") and not x.ds_persist]
    return [x.data for x in partitioned if x.data_ptr() != x.ds_tensor.data_ptr()]


def _arriving(optimizer: Any) -> list[torch.Tensor]:  # noqa: ANN401 - DeepSpeed's optimizer has no public type
    """Buffers of gathers that nobody has waited for yet: the parameters are empty until then."""
    while hasattr(optimizer, "optimizer") and not hasattr(optimizer, "parameter_offload"):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "parameter_offload"):
        return []
    coordinator = optimizer.parameter_offload.get_param_coordinator()
    handles = list(coordinator._PartitionedParameterCoordinator__inflight_param_registry.values())  # noqa: SLF001
    handles = [one for handle in handles for one in getattr(handle, "handles", [handle])]
    found = [getattr(handle, name, None) for handle in handles for name in _BUFFERS]
    return [tensor for values in found for tensor in tensors_of(values)]


class MeteredRun(loop.Run):
    """A run with the meter attached."""

    def attach(self) -> None:
        """Connect the hooks of the loop, and the meter."""
        super().attach()
        Metered(self).attach()


def run(path: Path) -> int:
    """Do this rank's part of the plan at `path`; ends the process."""
    plan = read_plan(path)
    set_environment(plan)
    rank.Run = MeteredRun  # type: ignore[misc]
    rank.run_rank(plan, path.parent)
    return 0
