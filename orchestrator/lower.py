"""A plan in the words of the tools that run it: DeepSpeed's JSON and a launch specification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from launch.spec import Backend, DeviceKind, LaunchSpec
from orchestrator.config import Offload
from orchestrator.environment.pulled import Lever, variables
from orchestrator.errors import Problem, UserError
from orchestrator.planner.plan import Plan
from orchestrator.planner.strategy import Zero3Extras, Zero3Knobs

WORKER = "orchestrator.train.worker"
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


def launch_spec(plan: Plan, run_dir: str, python: str, *, attempt: int = 1, levers: Sequence[Lever] = ()) -> LaunchSpec:
    """What the launcher starts: the worker module on every rank, with the plan's environment.

    The devices and their order are the plan's, for rows belong to ranks; of `levers` the variables are set that the
    user has not set.

    Args:
        plan: the plan that lies in `run_dir/plan.json`.
        run_dir: absolute path of the run directory.
        python: interpreter of the ranks.
        attempt: 1 for the first start; each restart is a launch with a name of its own.
        levers: what the machine's topology asks for.
    """
    strategy, launch = plan.chosen.strategy, plan.run_config.launch
    is_gpu = plan.device_kind == "gpu"
    allocator = (("PYTORCH_ALLOC_CONF", strategy.allocator),) if strategy.allocator else ()
    ids = strategy.device_ids[: strategy.processes_per_node]
    return LaunchSpec(
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
        device_ids=ids if is_gpu and strategy.num_nodes == 1 else (),
        threads_per_process=strategy.threads_per_process,
    )


def launch_backend(plan: Plan) -> Backend:
    """Which launcher the configuration asks for."""
    return Backend(plan.run_config.launch.backend.value)
