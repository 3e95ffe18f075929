"""Between a live trainer and a checkpoint: gather everything, put everything back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from orchestrator.engines.base import Engine
from orchestrator.errors import Problem, UserError
from orchestrator.train import rng
from orchestrator.train.checkpoint import Checkpoint
from orchestrator.train.compression import Compression
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.model import trainable
from orchestrator.train.trainer import PlannedTrainer

_SEPARATOR = "@"
_SCHEDULE_COUNTERS = ("last_epoch", "_step_count")


def capture(
    trainer: PlannedTrainer,
    engine: Engine,
    group: MetricsGroup,
    keys: dict[str, str],
    compression: Compression,
    *,
    also: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Gather the training state; collective, every rank gets it (adapters are small).

    Args:
        trainer: the running trainer, at a step boundary.
        engine: who holds the state.
        group: host-side group for the generator states.
        keys: what the run depends on (data, base), compared on resume.
        compression: how gradients travel.
        also: what the state says besides.
    """
    parameters: dict[str, torch.Tensor] = {}
    moments: dict[str, torch.Tensor] = {}
    for name, parameter in trainable(trainer.model):
        parameters[name] = engine.parameter(parameter).cpu()
        for kind, value in engine.moments(trainer.optimizer, parameter).items():
            moments[f"{name}{_SEPARATOR}{kind}"] = value.cpu()
    states: dict[str, torch.Tensor] = {}
    for rank, own in enumerate(group.gather(rng.capture())):
        states.update({f"{rank}.{name}": value for name, value in own.items()})
    return Checkpoint(
        step=trainer.state.global_step,
        parameters=parameters,
        moments=moments,
        rng=states,
        residuals=compression.gather_residuals(group),
        state={
            "samples": trainer.state.global_step * trainer.settings.global_batch,
            "global_batch": trainer.settings.global_batch,
            "world_size": trainer.settings.world_size,
            "engine": engine.name,
            "scheduler": _schedule_state(trainer),
            "scaler": _scaler_state(trainer),
            "compression": compression.form,
            "keys": keys,
            **(also or {}),
        },
    )


def restore(trainer: PlannedTrainer, engine: Engine, checkpoint: Checkpoint, keys: dict[str, str]) -> None:
    """Continue from a checkpoint, at any world size; collective.

    Raises:
        UserError: when the checkpoint belongs to other data, another base or other adapters.
    """
    _check_belongs(trainer, checkpoint, keys)
    for name, parameter in trainable(trainer.model):
        engine.set_parameter(parameter, checkpoint.parameters[name])
        prefix = name + _SEPARATOR
        own = {k[len(prefix) :]: v for k, v in checkpoint.moments.items() if k.startswith(prefix)}
        if own:
            engine.set_moments(trainer.optimizer, parameter, own)
    _restore_schedule(trainer, checkpoint.state["scheduler"])
    _restore_scaler(trainer, checkpoint.state["scaler"])
    trainer.state.global_step = checkpoint.step
    trainer._globalstep_last_logged = checkpoint.step  # noqa: SLF001 - no public way to set it
    trainer.loader.start_step = checkpoint.step
    rank = trainer.settings.rank
    prefix = f"{rank}."
    saved = {k[len(prefix) :]: v for k, v in checkpoint.rng.items() if k.startswith(prefix)}
    if saved:
        rng.restore(saved)
    else:  # more ranks than before: a new one starts from the seed and the step
        rng.seed_rank(trainer.args.seed, rank, checkpoint.step)


def _check_belongs(trainer: PlannedTrainer, checkpoint: Checkpoint, keys: dict[str, str]) -> None:
    problems = [
        Problem(
            where=f"resume ({what})",
            found=f"the checkpoint was made with {checkpoint.state['keys'].get(what)}, this run has {value}",
            remedy="Resume with the same model, data and sampling, or start in a new run_dir.",
        )
        for what, value in keys.items()
        if checkpoint.state["keys"].get(what) != value
    ]
    ours = {name: tuple(_shape(p)) for name, p in trainable(trainer.model)}
    theirs = {name: tuple(value.shape) for name, value in checkpoint.parameters.items()}
    if ours != theirs:
        odd = sorted(set(ours.items()) ^ set(theirs.items()))[:2]
        problems.append(
            Problem(
                where="resume (adapter)",
                found=f"the checkpoint holds other adapters, for example {odd}",
                remedy="Resume with the same adapter.rank, adapter.targets and adapter.resize.",
            )
        )
    if problems:
        raise UserError(*problems)


def _shape(parameter: torch.nn.Parameter) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)


def _schedule_state(trainer: PlannedTrainer) -> dict[str, int]:
    """Where the schedule stands. Rates follow from that; engines group parameters in different ways."""
    state = trainer.lr_scheduler.state_dict()
    return {name: int(state[name]) for name in _SCHEDULE_COUNTERS}


def _restore_schedule(trainer: PlannedTrainer, state: dict[str, Any]) -> None:
    scheduler = trainer.lr_scheduler
    counters = {name: state[name] for name in _SCHEDULE_COUNTERS}
    scheduler.load_state_dict({**scheduler.state_dict(), **counters})
    rates = [
        base * factor(scheduler.last_epoch)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for param_group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
        param_group["lr"] = rate
    scheduler._last_lr = rates  # noqa: SLF001 - what `get_last_lr` returns; there is no other way to set it


def _scaler_state(trainer: PlannedTrainer) -> dict[str, Any]:
    scaler = trainer.accelerator.scaler
    if scaler is not None:
        return dict(scaler.state_dict())
    own = getattr(trainer.optimizer, "optimizer", None)
    loss_scaler = getattr(own, "loss_scaler", None)  # DeepSpeed's, with engine=zero3
    return {"cur_scale": float(loss_scaler.cur_scale)} if loss_scaler is not None else {}


def _restore_scaler(trainer: PlannedTrainer, state: dict[str, Any]) -> None:
    scaler = trainer.accelerator.scaler
    if scaler is not None and "scale" in state:
        scaler.load_state_dict(state)
        return
    loss_scaler = getattr(getattr(trainer.optimizer, "optimizer", None), "loss_scaler", None)
    if loss_scaler is not None and "cur_scale" in state:
        loss_scaler.cur_scale = state["cur_scale"]
