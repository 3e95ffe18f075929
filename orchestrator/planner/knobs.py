"""ZeRO-3 knobs from the model's shape. DeepSpeed counts ELEMENTS of the stored dtype, not bytes."""

from __future__ import annotations

from orchestrator.config import EngineConfig, Quant
from orchestrator.estimate.base import linear_packed_bytes
from orchestrator.estimate.setting import Zero3Knobs, storage_bytes
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.model import ModelShape

# Below this many parameters a threshold of 10 x hidden would make whole projections persistent.
_SMALL_MODEL_PARAMS = 1_000_000_000
# One reduction message: beyond this many elements a larger bucket gains no bandwidth.
_REDUCE_CAP = 50_000_000


def zero3_knobs(
    config: EngineConfig, model: ModelShape, adapter: AdapterShape, *, quant: Quant, compute_dtype: str
) -> Zero3Knobs:
    """Derive what the user left open.

    - persistence: 0 for small models, so that "partitioned" means it; else 10 x hidden (norms, biases)
    - prefetch bucket: one decoder layer ahead, which is what hides a gather behind a layer's products
    - live parameters: two layers and the embedding and head, which are gathered whole
    - reuse distance: one layer, so that the last layer of the forward pass is not gathered twice
    - reduce bucket: all adapter gradients in one message, never less than the largest tensor
    """
    size = storage_bytes(quant, compute_dtype)
    layer = -(-sum(linear_packed_bytes(x, quant, size) for x in model.linears) // size)
    outer = model.vocab * model.hidden
    persistence = 0 if model.total_params < _SMALL_MODEL_PARAMS else 10 * model.hidden
    return Zero3Knobs(
        offload_param=config.offload_param,
        offload_optimizer=config.offload_optimizer,
        nvme_path=config.nvme_path,
        param_persistence_threshold=_given(config.param_persistence_threshold, persistence),
        prefetch_bucket_size=_given(config.prefetch_bucket_size, layer),
        max_live_parameters=_given(config.max_live_parameters, 2 * layer + 2 * outer),
        max_reuse_distance=_given(config.max_reuse_distance, layer),
        reduce_bucket_size=_given(
            config.reduce_bucket_size, max(adapter.largest_tensor, min(adapter.params, _REDUCE_CAP))
        ),
    )


def _given(value: int | None, derived: int) -> int:
    return derived if value is None else value
