"""DeepSpeed ZeRO-3: parameters, gradients and optimizer partitioned, with offload."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from accelerate import DistributedType, PartialState
from torch import nn

from orchestrator.engines.base import Engine, Moments
from orchestrator.engines.live import Named, partitioned_base, tensors_of

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Zero3Engine(Engine):
    """The compatibility engine: packed 4-bit weights travel as elements of the compute dtype."""

    name = "zero3"

    def __init__(self, deepspeed_json: Mapping[str, Any]) -> None:
        """Keep the DeepSpeed configuration that the plan was lowered to."""
        self._json = copy.deepcopy(dict(deepspeed_json))

    def trainer_arguments(self) -> dict[str, Any]:
        """Hand DeepSpeed's configuration to the trainer, which starts the engine.

        On a machine without GPU transformers wants `use_cpu`, which in turn makes it ignore
        DeepSpeed; so the state that says who is in charge is made here and only reused there.
        """
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        _leave_out_shared_memory_kernel()
        # Without `cpu` accelerate finds no backend on such a machine and counts one process; with
        # it, it does not look for DeepSpeed.
        state = PartialState(cpu=not torch.cuda.is_available())
        state.distributed_type = DistributedType.DEEPSPEED
        return {
            "deepspeed": copy.deepcopy(self._json),
            "accelerator_config": {"use_configured_state": True},
        }

    def prepare(self, model: nn.Module) -> None:
        """Do nothing: DeepSpeed partitions when the trainer prepares the model."""

    def parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the full-precision master copy of a partitioned parameter."""
        from deepspeed.utils import safe_get_full_fp32_param

        value: torch.Tensor | None = safe_get_full_fp32_param(parameter)
        if value is None:
            raise RuntimeError("the ZeRO-3 engine holds no master copy of an adapter parameter")
        return value.detach().clone()

    def set_parameter(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Write the working copy, then the master copy: DeepSpeed joins the two in a step only."""
        import deepspeed
        from deepspeed.utils import safe_set_local_fp32_param

        # Rank 0's copy is broadcast when the context ends and partitions again.
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            parameter.copy_(value.to(parameter.device, parameter.dtype))
        safe_set_local_fp32_param(parameter, _own_partition(parameter, value))

    def moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Moments:
        """Gather Adam's moments, and the step counter that all partitions share."""
        from deepspeed.utils import safe_get_full_optimizer_state

        found: Moments = {}
        for name in _MOMENTS:
            value = safe_get_full_optimizer_state(parameter, name)
            if value is not None:
                found[name] = value.detach().clone()
        if found:
            found["step"] = torch.tensor(float(_step_of(optimizer)))
        return found

    def set_moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, moments: Moments) -> None:
        """Write Adam's moments into this rank's partition, and the step counter."""
        from deepspeed.utils import safe_set_local_optimizer_state

        _create_states(optimizer)
        for name in _MOMENTS:
            if name in moments:
                safe_set_local_optimizer_state(parameter, _own_partition(parameter, moments[name]), name)
        if "step" in moments:
            _set_step(optimizer, float(moments["step"]))

    def live_tensors(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Named:
        """Return base, adapters, gradient buffers, master copies and moments of this rank."""
        zero = _zero(optimizer)
        trained: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        masters = zero.fp32_partitioned_groups_flat
        gradients = [zero.grad_partitions_flat_buffer, *(bucket.buffer for bucket in zero.ipg_buckets.values())]
        gradients += [x.grad for x in (*trained, *masters) if x.grad is not None]
        return {
            **partitioned_base(model),
            "adapters": [tensor for parameter in trained for tensor in (parameter.data, parameter.ds_tensor)],
            "gradients": tensors_of(gradients),
            "optimizer": [*masters, *tensors_of(_inner(optimizer).state)],
        }


def _zero(optimizer: torch.optim.Optimizer) -> Any:  # noqa: ANN401 - DeepSpeed's optimizer has no public type
    """Return DeepSpeed's ZeRO-3 optimizer inside accelerate's wrapper."""
    zero: Any = optimizer
    while not hasattr(zero, "fp32_partitioned_groups_flat"):
        zero = zero.optimizer
    return zero


def _own_partition(parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
    """Cut this rank's partition out of a whole tensor.

    DeepSpeed's own setter for whole tensors fails where the ranks do not divide the elements: the
    last partition reaches into padding that it does not add.
    """
    partitioned: Any = parameter
    size = int(partitioned.partition_numel())
    missing = size * dist.get_world_size() - value.numel()
    padded = torch.nn.functional.pad(value.float().flatten(), (0, missing))
    return padded.narrow(0, size * dist.get_rank(), size)


def _leave_out_shared_memory_kernel() -> None:
    """Keep DeepSpeed from compiling its all-reduce kernel for CPUs at run time; gloo does the same work.

    The compilation takes a minute in silence, and a rank killed meanwhile leaves a lock file that
    every later run would wait for.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _create_states(optimizer: torch.optim.Optimizer) -> None:
    """Create Adam's states of this rank's partitions: torch would do so in the first step only."""
    inner = _inner(optimizer)
    for partition in _zero(optimizer).fp32_partitioned_groups_flat:
        if not inner.state[partition]:
            zeros = {name: torch.zeros_like(partition) for name in _MOMENTS}
            inner.state[partition] = {"step": torch.tensor(0.0), **zeros}


def _inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the torch optimizer inside accelerate's and DeepSpeed's wrappers."""
    inner: Any = optimizer
    while not type(inner).__module__.startswith(("torch.optim", "deepspeed.ops")):
        inner = inner.optimizer
    found: torch.optim.Optimizer = inner
    return found


def _step_of(optimizer: torch.optim.Optimizer) -> float:
    for state in _inner(optimizer).state.values():
        if "step" in state:
            return float(state["step"])
    return 0.0


def _set_step(optimizer: torch.optim.Optimizer, step: float) -> None:
    for state in _inner(optimizer).state.values():
        if "step" in state:
            counter = torch.is_tensor(state["step"])
            state["step"] = torch.tensor(step) if counter else int(step)
