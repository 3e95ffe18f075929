"""What one attempt of a run writes and starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from launch.backends import build, slurm
from launch.errors import LaunchError
from launch.execute import free_port
from launch.request import FileToWrite, Request, render
from launch.spec import Backend, LaunchSpec
from orchestrator.config import LaunchConfig
from orchestrator.environment.harm import Harm, harms
from orchestrator.environment.lever import Lever, levers
from orchestrator.environment.present import levers_json, levers_text
from orchestrator.environment.read import read_user_environment
from orchestrator.launch_inputs import (
    as_user_error,
    check_keys,
    named_hosts,
    slurm_options,
    template_text,
)
from orchestrator.lower import deepspeed_json, launch_backend, launch_spec
from orchestrator.planner.plan import Plan, dumps
from orchestrator.run_dir import RunDir
from topology.codec import to_json
from topology.model import Topology

PREPARE = "orchestrator.train.prepare"
# Of a batch job.
MEASURE, COMPARE, WATCH = "orchestrator.slurm_node", "orchestrator.slurm_check", "orchestrator.slurm_supervise"
_REJOIN_SECONDS = 20
# torch kills ranks this long after SIGTERM by default; a checkpoint may take more than its 30 s.
_TORCHRUN_GRACE = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The two commands of an attempt, exactly as they are run: first `prepare`, then `launch`.

    A batch job prepares by itself. `processes` are the ranks of each host.
    """

    prepare: Request | None
    launch: Request
    number: int = 1
    ssh: tuple[str, ...] = ()
    processes: tuple[int, ...] = (1,)
    levers: tuple[Lever, ...] = ()
    harms: tuple[Harm, ...] = ()


def make_attempt(
    plan: Plan,
    topology: Topology,
    run: RunDir,
    *,
    have_met: bool = False,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> Attempt:
    """Build the requests of an attempt; nothing is written or started.

    NCCL's own files of settings are read, and the hostfile or template that the user names. Hosts that `have_met` for
    this command need no long time to come back; for the first attempt of another day the user's time holds.
    """
    backend, launch = launch_backend(plan), plan.run_config.launch
    check_keys(launch)
    users = read_user_environment(environ, network=plan.chosen.strategy.num_nodes > 1)
    found = levers(topology, plan.chosen.strategy.device_ids, users)
    files = _files(plan, topology, run, numbered=backend is not Backend.slurm)
    try:
        spec = launch_spec(
            plan,
            str(run.path),
            python,
            attempt=run.attempt,
            levers=found,
            topology=topology,
            named=named_hosts(launch),
        )
        if have_met:
            spec = replace(spec, join_seconds=min(spec.join_seconds, _REJOIN_SECONDS), met_before=True)
        if backend is Backend.deepspeed and spec.is_here and spec.master_port is None:
            spec = replace(spec, master_port=free_port())
        if backend in {Backend.torchrun, Backend.slurm}:
            spec = replace(spec, env=(*spec.env, _TORCHRUN_GRACE))
        if backend is Backend.slurm:
            prepare, launched = None, _batch_job(spec, launch, files)
        else:
            launched = build(backend, spec)
            prepare = replace(build(Backend.local, _prepare_spec(spec)), files=files)
    except LaunchError as error:
        raise as_user_error(error) from error
    return Attempt(
        prepare=prepare,
        launch=launched,
        number=run.attempt,
        ssh=spec.ssh,
        processes=tuple(share.processes for share in spec.shares),
        levers=found,
        harms=harms(users, ports=[nic.name for nic in topology.nics]),
    )


def _batch_job(spec: LaunchSpec, launch: LaunchConfig, files: tuple[FileToWrite, ...]) -> Request:
    request = slurm.build(
        spec,
        slurm_options(launch),
        prepare=PREPARE,
        measure=MEASURE,
        compare=COMPARE,
        watch=WATCH,
        template=template_text(launch),
    )
    return replace(request, files=(*files, *request.files))


def _prepare_spec(spec: LaunchSpec) -> LaunchSpec:
    return replace(
        spec,
        module=PREPARE,
        processes_per_node=1,
        num_nodes=1,
        hosts=(),
        device_ids=spec.device_ids[:1],
        name=f"{spec.name}-prepare",
    )


def _files(plan: Plan, topology: Topology, run: RunDir, *, numbered: bool) -> tuple[FileToWrite, ...]:
    texts = {
        "plan.json": dumps(plan),
        "topology.json": json.dumps(to_json(topology), indent=2) + "\n",
        "config.yaml": _yaml(plan.config),
    }
    if numbered:  # a batch job numbers its attempts when they start
        texts[f"plan.{run.attempt}.json"] = dumps(plan)
    if plan.chosen.strategy.zero3 is not None:
        texts["deepspeed.json"] = json.dumps(deepspeed_json(plan), indent=2) + "\n"
    return tuple(FileToWrite(path=str(run.path / name), text=text) for name, text in texts.items())


def _yaml(config: Any) -> str:  # noqa: ANN401 - a plain mapping
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def dry_run_text(attempt: Attempt) -> str:
    """Return both requests as a shell script: files, environment and argv as they would be used."""
    first = "" if attempt.prepare is None else render(attempt.prepare)
    return (
        ("# 1. rows are tokenised once, before any rank starts\n" + first + "\n# 2. the ranks\n" if first else "")
        + render(attempt.launch)
        + "".join(f"# {line}\n" for line in levers_text(attempt.levers, attempt.harms).splitlines())
    )


def dry_run_json(attempt: Attempt) -> dict[str, Any]:
    """Return both requests as plain values."""
    return {
        name: asdict(request) | {"backend": request.backend.value}
        for name, request in (("prepare", attempt.prepare), ("launch", attempt.launch))
        if request is not None
    } | levers_json(attempt.levers, attempt.harms)
