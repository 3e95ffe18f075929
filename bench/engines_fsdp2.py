"""FSDP2 on the same packed base, set up as its documentation and its users advise.

- The base is stored as bf16, not as bytes: uint8 parameters of bitsandbytes are left out of the sharding by most
  stacks, and are then replicated in silence.
- Each decoder layer is a group of its own, resharded after its forward pass; embedding, head and last norm are the
  root's group, which torch keeps whole from the forward to the backward pass. Untied, embedding and head are two groups
  that come and go.
- Prefetching is explicit: one layer ahead in both passes, with gathers that do not block (`_set_unshard_async_op`;
  gloo has no streams to order them by, and without it the prefetch of a CPU rank waits for itself).
- Adapters stand apart (`ignored_params`) and are averaged by DDP: sharded, each of their small matrices would be
  gathered three times a step and their gradients scattered; whole, they take some 40 MB a rank and one all-reduce.
- Scales (double-quantised) are no parameters, so FSDP2 leaves them whole on each rank.
- Loading is `from_pretrained` on each rank, then sharding layer by layer: transformers packs 4-bit weights on every
  rank before anything can shard them. A loader written for the purpose, which packs and shards one layer after the
  other, would bring the load peak near a share and a layer; it is not measured here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from engines_contender import Contender, adapt, in_ddp, load_whole, optimizer_of, trained
from engines_job import Job
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from orchestrator.engines.ddp import DdpEngine
from orchestrator.engines.live import Named, frozen_parameters, scales


class Fsdp2(Contender):
    """`torch.distributed.fsdp.fully_shard` on each layer, and on the whole."""

    def __init__(self, job: Job) -> None:
        """Load, adapt, shard and wrap."""
        base = load_whole(job, torch.bfloat16)
        self.model = adapt(base, job)
        self._scales = [tensor for module, own, _ in frozen_parameters(self.model) for tensor in scales(module, own)]
        shard(self.model, self.layers)
        DdpEngine().prepare(self.model)
        self.wrapped, self.optimizer = in_ddp(self.model), optimizer_of(self.model)

    def live(self) -> Named:
        """Shards, what is gathered, and what is on its way."""
        groups = [state for state in map(_group, self.model.modules()) if state is not None]
        own = [one for group in groups for one in group.fsdp_params]
        arriving = [group._all_gather_result for group in groups]  # noqa: SLF001 - no public way
        return {
            "share": [one._sharded_param_data for one in own],  # noqa: SLF001
            "gathered": [output for one in own for output in one.all_gather_outputs],
            "arriving": [found.all_gather_output for found in arriving if found is not None],
            "scales": self._scales,
        }


def shard(model: nn.Module, layers: nn.ModuleList) -> None:
    """Shard the frozen parameters of each layer, then those of the rest."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    apart = set(trained(model))
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=apart)
    embedding, head = (getattr(model, f"get_{name}_embeddings")() for name in ("input", "output"))
    if embedding.weight is not head.weight:
        for module in (embedding, head):
            fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=apart)
    root: Any = fully_shard(model, mesh=mesh, ignored_params=apart)
    root._set_unshard_async_op(True)  # noqa: SLF001, FBT003 - torch's own name and signature
    sharded: list[Any] = list(layers)
    for before, after in pairwise(sharded):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])


def _group(module: nn.Module) -> Any | None:  # noqa: ANN401 - torch's private FSDPParamGroup
    state: Any = getattr(module, "_get_fsdp_state", None)
    return None if state is None else state()._fsdp_param_group  # noqa: SLF001
