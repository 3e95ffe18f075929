"""What planning needs from the outside: the machine, the model's shape, the size of the data.

Reads files and probes the host; imports nothing heavy, so that `plan` answers at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from orchestrator.calibration_store import AUTO, NONE
from orchestrator.config import Backend, Engine, Offload, RunConfig
from orchestrator.data_inputs import data_source
from orchestrator.dataset.disk import exists, expanded, is_folder, reading
from orchestrator.dataset.samples import load_samples
from orchestrator.errors import Problem, UserError
from orchestrator.eval_inputs import check_eval_inputs, located_eval
from orchestrator.machine import machine_to_plan_for
from orchestrator.workload.batch import DataStats
from orchestrator.workload.files import hub_cache_dir, is_hub_id, nearest_folders, require_folder, resolve
from orchestrator.workload.headers import Uncountable, load_shape
from orchestrator.workload.lengths import data_stats
from orchestrator.workload.missing import missing_files
from orchestrator.workload.model import ModelShape
from orchestrator.workload.named import find_preset, nearest_presets, preset_shape
from orchestrator.workload.positions import has_table
from orchestrator.workload.quant_pattern import with_kinds
from orchestrator.workload.row_facts import sequence_length
from orchestrator.workload.shape_codec import shape_from_json
from topology.model import Topology

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything the planner asks for besides the configuration."""

    topology: Topology
    model: ModelShape
    data: DataStats
    notes: tuple[str, ...]


def gather(config: RunConfig, *, download: bool = False, by_name: bool = False) -> Inputs:
    """Read all inputs; problems of model, data and machine come together.

    Args:
        config: what the user asked for.
        download: fetch a hub id that is not in the local cache.
        by_name: a model that is not here may be a preset: enough for a plan, not for a run.

    Raises:
        UserError: what is wrong with any of them.
    """
    problems: list[Problem] = []
    launch = config.launch
    has_hosts = launch.backend is Backend.slurm or launch.hostfile or launch.hosts != ("none",)
    if config.nodes > 1 and not by_name and not has_hosts:
        problems.append(
            Problem(
                where="nodes",
                found=f"found {config.nodes}",
                remedy="Name them (launch.hosts=[a,b] or launch.hostfile=FILE), use launch=slurm, or nodes=1.",
            )
        )
    found = _tried(lambda: _model(config, download=download, by_name=by_name), problems)
    samples = _tried(lambda: load_samples(data_source(config.data, config.seed)), problems)
    machine = _tried(lambda: machine_to_plan_for(config), problems)
    _tried(lambda: check_nvme(config), problems)
    _tried(lambda: check_eval_inputs(config.eval, None if samples is None else samples.eval), problems)
    if problems or found is None or samples is None or machine is None:
        raise UserError(*problems)
    folder, model = found
    notes = (*samples.notes, *model.notes)
    data = data_stats(samples, folder, sequence_length(config, model))
    return Inputs(topology=machine, model=model, data=data, notes=notes)


def _tried(read: Callable[[], _T], problems: list[Problem]) -> _T | None:
    try:
        return read()
    except UserError as error:
        problems.extend(error.problems)
        return None


def _model(config: RunConfig, *, download: bool, by_name: bool) -> tuple[Path | None, ModelShape]:
    """Return folder and shape; a damaged file does not hide what else is missing.

    A model that is not here is taken from the presets when only a plan is wanted (`by_name`).
    """
    path = config.model.path
    here = resolve(path, hub_cache_dir(os.environ, expanded("~")), config.model.revision)
    # A bare name has become a path in the working directory.
    name = path if is_hub_id(path) else Path(path).name
    if by_name and here is None and find_preset(name):
        shape = _checked(preset_shape(name), config)
        check_length(config, shape)
        return None, shape
    try:
        folder = model_folder(config, download=download)
    except UserError as error:
        hint = _meant(path, name, by_name=by_name) if here is None else ""
        raise UserError(*(replace(x, remedy=x.remedy + hint) for x in error.problems)) from error
    problems: list[Problem] = []
    missing = missing_files(folder)
    by_config = by_name and bool(missing.weights)
    model = _tried(lambda: _checked(_shape(folder, config, without_weights=by_config), config), problems)
    if not by_name:
        problems.extend(missing.problems)
    _tried(lambda: check_length(config, model), problems)
    if problems or model is None:
        raise UserError(*problems)
    return folder, replace(model, notes=(*model.notes, *missing.notes(model.dtype))) if by_name else model


def _meant(path: str, name: str, *, by_name: bool) -> str:
    """What a name that is not here may stand for; starts with a space, or is empty."""
    preset = find_preset(name)
    if preset is not None:
        return f" (plan and estimate know {preset.id} by name, a run needs its files: hf download {preset.id}.)"
    near = [*nearest_folders(path), *(nearest_presets(name) if by_name else ())]
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _shape(folder: Path, config: RunConfig, *, without_weights: bool) -> ModelShape:
    try:
        return load_shape(folder, config.model.path, without_weights=without_weights)
    except Uncountable:
        command = [sys.executable, "-m", "orchestrator.workload.meta", str(folder), "--name", config.model.path]
        command += ["--trust-remote-code"] if config.model.trust_remote_code else []
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)  # noqa: S603
        return shape_from_json(done.stdout)


def _checked(model: ModelShape, config: RunConfig) -> ModelShape:
    """Refuse to plan another quantisation than the weights already have; mark modules that are stored otherwise."""
    quant = config.base.quant.value
    if model.prequantised and model.prequantised != quant:
        raise UserError(
            Problem(
                where="base.quant",
                found=f"found {quant}, but the weights are {model.prequantised} already",
                remedy=f"Set base.quant={model.prequantised}.",
            )
        )
    return with_kinds(model, config.base.quant_pattern)


def located(config: RunConfig) -> RunConfig:
    """Make the paths absolute: ranks work in the run directory."""
    model = (
        config.model if not _is_here(config.model.path) else replace(config.model, path=_absolute(config.model.path))
    )
    data = replace(
        config.data,
        path=_absolute(config.data.path) if config.data.path else "",
        eval_path=_absolute(config.data.eval_path) if config.data.eval_path else "",
        sources=tuple(
            replace(
                source,
                path=_absolute(source.path),
                eval_path=_absolute(source.eval_path) if source.eval_path else "",
            )
            for source in config.data.sources
        ),
    )
    topology = config.topology
    if topology.path:
        topology = replace(topology, path=_absolute(topology.path))
    engine = config.engine
    if engine.nvme_path:
        engine = replace(engine, nvme_path=_absolute(engine.nvme_path))
    calibration = config.calibration
    if calibration not in {AUTO, NONE, ""}:
        calibration = _absolute(calibration)
    monitor = config.monitor
    if monitor.replay:
        monitor = replace(monitor, replay=_absolute(monitor.replay))
    config = replace(config, eval=located_eval(config.eval))
    return replace(
        config, model=model, data=data, topology=topology, engine=engine, calibration=calibration, monitor=monitor
    )


def _is_here(path: str) -> bool:
    if not is_hub_id(path):
        return True
    try:
        return exists(expanded(path))
    except UserError:
        return True  # something is there; what is wrong with it is told when it is read


def _absolute(path: str) -> str:
    with reading(Path()):  # the working directory may be gone
        return str(expanded(path).absolute())


def model_folder(config: RunConfig, *, download: bool) -> Path:
    """Return the local folder of the model.

    Raises:
        UserError: no such folder, not in the cache, or the hub does not give it.
    """
    cache = hub_cache_dir(os.environ, expanded("~"))
    path, revision = config.model.path, config.model.revision
    if download and is_hub_id(path) and resolve(path, cache, revision) is None:
        return _download(path, revision, cache)
    return require_folder(path, cache, revision)


def _download(path: str, revision: str, cache: Path) -> Path:
    from huggingface_hub import snapshot_download

    print(f"downloading {path} to {cache}", file=sys.stderr, flush=True)
    try:
        found = snapshot_download(
            path,
            revision=revision or None,
            cache_dir=cache,
            allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.py"],
        )
    except Exception as error:  # the hub's client lets many kinds through
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(". ")
        raise UserError(
            Problem(
                where=f"model={path}",
                found=f"no such folder here, and the hub did not give it ({type(error).__name__}: {reason})",
                remedy="Check the spelling and the connection (and `hf auth login` for gated models), "
                "or give a local folder.",
            )
        ) from error
    return Path(found)


def check_length(config: RunConfig, model: ModelShape | None) -> None:
    """Check that rows are no longer than a model takes that looks its positions up; others are warned about.

    Raises:
        UserError: they are.
    """
    seq_len = config.data.seq_len
    if seq_len and model is not None and has_table(model.architecture) and 0 < model.max_positions < seq_len:
        raise UserError(
            Problem(
                where="data.seq_len",
                found=f"found {seq_len}, the model takes at most {model.max_positions} positions",
                remedy=f"Use data.seq_len={model.max_positions} or less.",
            )
        )


def check_nvme(config: RunConfig) -> None:
    """Check that the folder to offload to can be written, on this machine if it is the one planned for.

    Raises:
        UserError: none given, or it cannot be used.
    """
    engine = config.engine
    targets = {engine.offload_param, engine.offload_optimizer}
    wanted = Offload.nvme in targets or (Offload.auto in targets and bool(engine.nvme_path))
    if not wanted or engine.name is Engine.ddp or config.topology.path:
        return
    path = Path(engine.nvme_path)
    if not engine.nvme_path:
        found = "offload to NVMe asked for, but no folder given"
    elif not is_folder(path):
        found = f"{path} is a file" if exists(path) else f"there is no folder {path}"
    elif not os.access(path, os.W_OK | os.X_OK):
        found = f"{path} cannot be written by this user"
    else:
        return
    remedy = "Set engine.nvme_path to a folder on the fast disk that this user can write."
    raise UserError(Problem(where="engine.nvme_path", found=found, remedy=remedy))
