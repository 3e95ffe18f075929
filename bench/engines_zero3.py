"""DeepSpeed ZeRO-3 on the same packed base, with and without offload, set up as an expert would.

- The base is stored as bf16, so that packed weights travel in an element type that DeepSpeed gathers; sizes below
  are in such elements (four weights each).
- Persistence threshold: between the largest adapter and the smallest packed projection. Adapters and norms stay whole
  (one joint gather after each update instead of one for each of some twenty small tensors in each pass of each
  layer); no projection does.
- Prefetch: one layer. It hides a layer's gather behind the layer at work; more only waits in memory.
- Live parameters: two layers, the one at work and the one that is fetched; embedding and head come whatever it says.
- Reuse distance: one layer, so that the last layer of the forward pass stays for the backward pass.
- `allgather_sequential`: each parameter is gathered into its own memory. Joint gathers need a buffer beside what they
  are split into, which lives until the last of its parameters is used: 7.5 MiB more at the peak of the small base,
  embedding included. Packed projections are megabytes, so that a message for each costs no bandwidth.
- `overlap_comm` stays off: it needs a second stream, which a CPU has not.
- Gradients of all adapters in one message.
- The optimizer is the torch AdamW of all others (`zero_force_ds_cpu_optimizer`: DeepSpeed's own would be compiled at
  run time).
- Checkpoints are reentrant: with the other kind DeepSpeed's hooks release a parameter before the recomputation of a
  frozen layer is checked.
"""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from engines_contender import MAX_NORM, Contender, adapt, load_whole, optimizer_of, trained
from engines_job import Job
from torch import nn

from orchestrator.engines.live import Named, partitioned_base, tensors_of
from orchestrator.weights.layers import decoder_layers

# Its all-reduce for CPUs is compiled at run time; gloo does the same work.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

_BUFFERS = ("partitions", "_AllGatherHandle__param_buffer")  # where handles keep several parameters, or one


class Zero3(Contender):
    """`deepspeed.initialize` with stage 3."""

    def __init__(self, job: Job) -> None:
        """Load, adapt, and let DeepSpeed partition."""
        self.offloads = job.engine.endswith("offload")
        self.model = adapt(load_whole(job, torch.bfloat16), job, reentrant=True)
        body = deepspeed_json(self.model, job, offload=self.offloads)
        self.wrapped, self.optimizer, _, _ = deepspeed.initialize(
            model=self.model, optimizer=optimizer_of(self.model), config=body, dist_init_required=False
        )

    def step(self, tokens: torch.Tensor) -> float:
        """Let DeepSpeed's engine do backward pass, clipping and update."""
        loss = self.wrapped(input_ids=tokens, labels=tokens, use_cache=False).loss
        self.wrapped.backward(loss)
        self.wrapped.step()
        return float(loss.item())

    def live(self) -> Named:
        """This rank's partition, what stays whole, what is gathered and on its way, and the scales."""
        found = partitioned_base(self.model)
        partitioned: list[Any] = [x for x in self.model.parameters() if not x.requires_grad and not x.ds_persist]
        return {
            "offloaded" if self.offloads else "share": [x.ds_tensor for x in partitioned],
            "gathered": [x.data for x in partitioned],
            "arriving": _arriving(self.optimizer),
            "persistent": found["persistent_params"],
            "scales": found["absmax"],
        }


def deepspeed_json(model: nn.Module, job: Job, *, offload: bool) -> dict[str, Any]:
    """DeepSpeed's configuration; see the head of this file."""
    layer = sum(x.numel() for x in decoder_layers(model)[0].parameters() if not x.requires_grad and x.dim() > 1)
    zero: dict[str, Any] = {
        "stage": 3,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "allgather_sequential": True,
        "stage3_param_persistence_threshold": persistence(model),
        "stage3_prefetch_bucket_size": layer,
        "stage3_max_live_parameters": 2 * layer,
        "stage3_max_reuse_distance": layer,
        "reduce_bucket_size": sum(x.numel() for x in trained(model)),
        "stage3_gather_16bit_weights_on_model_save": False,
    }
    if offload:
        zero["offload_param"] = zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": job.rows,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": MAX_NORM,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "zero_optimization": zero,
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
    }


def persistence(model: nn.Module) -> int:
    """Elements up to which a parameter stays whole: all adapters and norms, if no projection is as small."""
    layers = decoder_layers(model)
    smallest = min(x.numel() for x in layers.parameters() if not x.requires_grad and x.dim() > 1)
    norms = max(x.numel() for x in layers.parameters() if x.dim() == 1)
    adapters = max(x.numel() for x in trained(model))
    return max(norms, adapters) if adapters < smallest else norms


def _arriving(optimizer: Any) -> list[torch.Tensor]:  # noqa: ANN401 - DeepSpeed's optimizer has no public type
    """Buffers of gathers that nobody has waited for yet: the parameters are empty until then."""
    coordinator = optimizer.parameter_offload.get_param_coordinator()
    handles = list(coordinator._PartitionedParameterCoordinator__inflight_param_registry.values())  # noqa: SLF001
    handles = [one for handle in handles for one in getattr(handle, "handles", [handle])]
    found = [getattr(handle, name, None) for handle in handles for name in _BUFFERS]
    return [tensor for values in found for tensor in tensors_of(values)]
