"""A plan in the words of the tools that run it: DeepSpeed's JSON and a launch specification."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from launch.errors import LaunchError
from launch.hosts import NamedHost, spread
from launch.spec import Backend, DeviceKind, HostShare, LaunchSpec
from orchestrator.config import Offload
from orchestrator.environment.pulled import Lever, variables
from orchestrator.errors import Problem, UserError
from orchestrator.planner.plan import Plan
from orchestrator.planner.strategy import Strategy, Zero3Extras, Zero3Knobs
from topology.model import Topology

WORKER = "orchestrator.train.worker"
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]+")
# Power of two at which fp16's loss scale starts: below the default 16, so that few first steps are lost.
_INITIAL_SCALE_POWER = 12


def deepspeed_json(plan: Plan) -> dict[str, Any]:
    """DeepSpeed's configuration of a zero3 plan. Sizes count elements of the stored dtype, not bytes.

    Raises:
        UserError: the plan uses another engine.
    """
    strategy, optimizer = plan.chosen.strategy, plan.run_config.optimizer
    if strategy.zero3 is None:
        raise UserError(
            Problem(where="engine", found=f"the plan uses {strategy.engine.value}", remedy="Plan with engine=zero3")
        )
    return {
        "train_micro_batch_size_per_gpu": max(strategy.micro),
        "gradient_accumulation_steps": strategy.accumulation,
        "gradient_clipping": optimizer.max_grad_norm,
        # The trainer's own AdamW trains the adapters: DeepSpeed's CPU Adam would need a compiler at run time.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        **_precision(strategy.precision),
        "zero_optimization": _zero(strategy.zero3, strategy.extras, is_gpu=plan.device_kind == "gpu"),
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
    }


def _precision(precision: str) -> dict[str, Any]:
    """One dtype for the whole module; both blocks off means fp32."""
    fp16: dict[str, Any] = {"enabled": precision == "fp16"}
    if precision == "fp16":
        # Loss scale 0 is DeepSpeed's word for dynamic.
        fp16 |= {"loss_scale": 0, "initial_scale_power": _INITIAL_SCALE_POWER, "loss_scale_window": 1000}
    return {"bf16": {"enabled": precision == "bf16"}, "fp16": fp16}


def _zero(knobs: Zero3Knobs, extras: Zero3Extras | None, *, is_gpu: bool) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": 3,
        # A second stream overlaps gathers with products; a CPU has none.
        "overlap_comm": is_gpu,
        "contiguous_gradients": True,
        # Replicated below this: 0 leaves nothing out, 10 x hidden keeps norms and biases at home.
        "stage3_param_persistence_threshold": knobs.param_persistence_threshold,
        # One packed layer ahead hides its gather behind the layer at work.
        "stage3_prefetch_bucket_size": knobs.prefetch_bucket_size,
        # The cap on gathered weights: two layers, and embedding and head, which come whole.
        "stage3_max_live_parameters": knobs.max_live_parameters,
        # A layer needed again within one layer's elements stays (the turn from forward to backward).
        "stage3_max_reuse_distance": knobs.max_reuse_distance,
        # All adapter gradients in one message.
        "reduce_bucket_size": knobs.reduce_bucket_size,
        # Checkpoints are the run's own (adapters only); gathering the packed base would cost its size.
        "stage3_gather_16bit_weights_on_model_save": False,
    }
    for name, target in (("offload_param", knobs.offload_param), ("offload_optimizer", knobs.offload_optimizer)):
        if target is not Offload.none:
            zero[name] = {"device": target.value, "pin_memory": is_gpu}
            if target is Offload.nvme:
                zero[name]["nvme_path"] = knobs.nvme_path
    return zero if extras is None else _with_extras(zero, extras)


def _with_extras(zero: dict[str, Any], extras: Zero3Extras) -> dict[str, Any]:
    """Add what only several hosts and NVMe need; plan.json tells how each value was derived."""
    zero["sub_group_size"] = extras.sub_group_size
    if extras.hpz_partition_size > 1:
        zero["zero_hpz_partition_size"] = extras.hpz_partition_size
    if extras.param_buffer_count:
        zero["offload_param"] |= {"buffer_count": extras.param_buffer_count, "buffer_size": extras.param_buffer_size}
    if extras.optimizer_buffer_count:
        zero["offload_optimizer"]["buffer_count"] = extras.optimizer_buffer_count
    return zero


def launch_spec(
    plan: Plan,
    run_dir: str,
    python: str,
    *,
    attempt: int = 1,
    levers: Sequence[Lever] = (),
    topology: Topology | None = None,
    named: Sequence[NamedHost] = (),
) -> LaunchSpec:
    """What the launcher starts: the worker module on every rank, with the plan's environment.

    The devices and their order are the plan's, for rows belong to ranks; of `levers` the variables are set that the
    user has not set.

    Args:
        plan: the plan that lies in `run_dir/plan.json`.
        run_dir: absolute path of the run directory.
        python: interpreter of the ranks.
        attempt: 1 for the first start; each restart is a launch with a name of its own.
        levers: what the machine's topology asks for.
        topology: the machine that was planned for; without it the devices of several hosts are not known.
        named: hosts that the user names; none under SLURM, and where all ranks run here.

    Raises:
        UserError: the hosts named and those planned for do not fit.
        LaunchError: the ranks cannot be spread over the hosts named.
    """
    strategy, launch = plan.chosen.strategy, plan.run_config.launch
    is_gpu = plan.device_kind == "gpu"
    allocator = (("PYTORCH_ALLOC_CONF", strategy.allocator),) if strategy.allocator else ()
    ids = strategy.device_ids[: strategy.processes_per_node]
    is_batch = launch.backend.value == Backend.slurm.value
    hosts = _hosts(plan, topology, named)
    if is_batch:  # its nodes and their devices are SLURM's to choose, and each GPU brings equally many cores
        hosts = tuple(replace(host, name="", device_ids=(), threads=None if is_gpu else host.threads) for host in hosts)
    spec = LaunchSpec(
        module=WORKER,
        args=(str(PurePath(run_dir) / "plan.json"),),
        run_dir=run_dir,
        num_nodes=strategy.num_nodes,
        processes_per_node=strategy.processes_per_node,
        env=(*allocator, *variables(levers)),
        python=python,
        master_port=launch.master_port or None,
        name=f"{plan.run_id}-{attempt}",
        device_kind=DeviceKind.gpu if is_gpu else DeviceKind.cpu,
        # On several hosts each has other UUIDs: the first devices of each are taken there.
        device_ids=ids if is_gpu and strategy.num_nodes == 1 and not is_batch else (),
        threads_per_process=strategy.threads_per_process,
        packages=("topology",),
        attempt=0 if is_batch else attempt,
        interfaces=_interfaces(launch.interface, topology, [host.name for host in hosts]),
        join_seconds=launch.join_seconds,
    )
    if launch.ssh:
        spec = replace(spec, ssh=_words(launch.ssh))
    most = max((host.processes for host in hosts), default=0)
    return replace(spec, hosts=hosts, num_nodes=len(hosts), processes_per_node=most) if hosts else spec


def _hosts(plan: Plan, topology: Topology | None, named: Sequence[NamedHost]) -> tuple[HostShare, ...]:
    """The hosts in rank order; none where one unnamed host takes all ranks."""
    strategy, nodes = plan.chosen.strategy, plan.run_config.launch.nodes
    if strategy.num_nodes > 1:
        if nodes not in {0, strategy.num_nodes}:
            found = f"found {nodes}, the plan is for {strategy.num_nodes}"
            raise UserError(Problem(where="launch.nodes", found=found, remedy="Leave it out, or plan with nodes=N."))
        if plan.device_kind == "cpu":  # what has no rank is left out, as where ranks are spread over hosts
            named = named[: strategy.num_nodes]
        return _planned_hosts(strategy, topology, named)
    if nodes > 1:
        named = [NamedHost(name="")] * nodes
    if not named:
        return ()
    if len(named) > 1 and plan.device_kind == "gpu":
        found = f"{len(named)} hosts to start on, but the plan is for the GPUs of one"
        remedy = f"Describe the hosts and plan for them: topology=FOLDER nodes={len(named)}."
        raise UserError(Problem(where="launch", found=found, remedy=remedy))
    shares = spread(strategy.world_size, named)
    if plan.device_kind == "gpu":
        return (replace(shares[0], device_ids=_uuids(strategy.device_ids, topology)),)
    return shares


def _planned_hosts(strategy: Strategy, topology: Topology | None, named: Sequence[NamedHost]) -> tuple[HostShare, ...]:
    host_of = {} if topology is None else {device.id: device.host for device in topology.devices}
    groups: dict[str, list[str]] = {}
    for rank, device in enumerate(strategy.device_ids):
        groups.setdefault(host_of.get(device, str(strategy.host_of(rank))), []).append(device)
    if named and len(named) != len(groups):
        found = f"{len(named)} named, the plan is for {len(groups)}: {', '.join(groups)}"
        remedy = "Name as many hosts as were planned for, in that order."
        raise UserError(Problem(where="launch.hosts", found=found, remedy=remedy))
    names: Sequence[NamedHost] = named or [NamedHost(name="")] * len(groups)
    pairs = list(zip(names, groups.values(), strict=True))
    full = [
        f"{host.name} (slots={host.slots}, {len(ids)} ranks)"
        for host, ids in pairs
        if (host.slots or len(ids)) < len(ids)
    ]
    if full:
        remedy = "Raise the slots, or plan for fewer devices (devices=N)."
        raise UserError(Problem(where="launch.hostfile", found=f"too few slots: {', '.join(full)}", remedy=remedy))
    threads: Sequence[int | None] = strategy.uneven_threads or [None] * len(pairs)
    return tuple(
        HostShare(name=host.name, processes=len(ids), device_ids=_uuids(ids, topology), threads=own)
        for (host, ids), own in zip(pairs, threads, strict=True)
    )


def _uuids(ids: Sequence[str], topology: Topology | None) -> tuple[str, ...]:
    """As CUDA takes them; none where one is not known (a drawn machine): then the first devices are taken there."""
    known = {} if topology is None else {device.id: device.uuid for device in topology.devices}
    found = tuple(known.get(each) or each for each in ids)
    return found if all(_UUID.fullmatch(each) for each in found) else ()


def _interfaces(asked: str, topology: Topology | None, names: Sequence[str]) -> tuple[str, ...]:
    """Names of network interfaces, the fastest first. Ports of RDMA are no interfaces; NCCL finds those by itself."""
    if asked != "auto":
        return (asked,)
    if topology is None or len(names) < 2:  # noqa: PLR2004 - one host needs none
        return ()
    nics = [nic for nic in topology.nics if nic.kind == "ethernet" and nic.bytes_per_second]
    by_rate = sorted(nics, key=lambda nic: -(nic.bytes_per_second or 0.0))
    return tuple(dict.fromkeys(nic.name for nic in by_rate))


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise LaunchError(asked=f"launch.ssh={command}", found=str(error), remedy="close the quotes") from error


def launch_backend(plan: Plan) -> Backend:
    """Which launcher the configuration asks for."""
    return Backend(plan.run_config.launch.backend.value)
