"""The base under engines other than our own: what of it a rank holds, and the window of gathered layers."""

from __future__ import annotations

from typing import Final

from orchestrator.estimate import base
from orchestrator.estimate.setting import Setting, Stage, Trained
from orchestrator.estimate.states import zero_buckets
from orchestrator.estimate.values import Term

_LIVE_ELEMENTS: Final = 1_000_000_000  # DeepSpeed's max_live_parameters and max_reuse_distance
_AHEAD: Final = 2  # FSDP gathers the next layer while one runs


def sharded_terms(setting: Setting) -> tuple[Term, ...]:
    """The base of one rank between uses."""
    sharding, ranks = setting.sharding, setting.world_size
    if sharding is None or sharding.stage is Stage.zero2:
        return ()
    if sharding.stage is Stage.streamed:
        frozen = base.packed_bytes(setting) + base.absmax_bytes(setting)
        why = f"1/{ranks} of the layers' frozen bytes, scales included"
        return (
            Term(name="base_shard", bytes=0 if sharding.offload_params else -(-frozen // ranks), why=why),
            Term(name="base_unquantised", bytes=base.unquantised_bytes(setting), why="resident on every rank"),
        )
    whole = base.packed_bytes(setting) + base.unquantised_bytes(setting)
    share = 0 if sharding.offload_params else -(-whole // ranks)
    where = f"1/{ranks} of the weights" if share else "offloaded"
    return (
        Term(name="base_partition", bytes=share, why=where),
        Term(name="absmax", bytes=base.absmax_bytes(setting), why="scales are no parameters: every rank keeps all"),
    )


def gathered_terms(setting: Setting) -> tuple[Term, ...]:
    """What is gathered through the whole pass: tables outside the layers, ZeRO-3's window, buckets."""
    sharding, model = setting.sharding, setting.model
    if sharding is None:
        return ()
    if sharding.stage is Stage.streamed:
        scales = -(-base.absmax_bytes(setting) // model.layers)
        window = _AHEAD * (layer_bytes(setting) + scales)
        return (Term(name="window", bytes=window, why="the layer at work, and the one landing ahead of it"),)
    buckets = Term(name="buckets", bytes=zero_buckets(setting, sharding), why="DeepSpeed's reduction bucket")
    if sharding.stage is Stage.zero2:
        return (buckets,)
    if sharding.is_fsdp:
        tables = 0 if setting.constants.tables_apart else model.embedding_params + model.head_params
        why = "embedding and head, gathered with the root module"
        return (Term(name="gathered_tables", bytes=tables * setting.load_bytes, why=why),)
    window = min(_LIVE_ELEMENTS * setting.load_bytes, base.packed_bytes(setting))
    why = f"ZeRO-3 keeps up to {_LIVE_ELEMENTS:,} elements gathered, and the layer in flight"
    head = (model.head_params or model.embedding_params) * setting.load_bytes
    return (
        Term(name="gathered_layers", bytes=window + layer_bytes(setting), why=why),
        Term(name="gathered_tables", bytes=head, why="the head, gathered for the loss"),
        buckets,
    )


def gathered_at_head(setting: Setting) -> int:
    """Bytes that FSDP holds in the loss beside the root module: a head of its own, and the last layer ahead of time."""
    if setting.sharding is None or not setting.sharding.is_fsdp:
        return 0
    model = setting.model
    head = (model.head_params or model.embedding_params) * setting.load_bytes
    return layer_bytes(setting) + (head if setting.constants.tables_apart else 0)


def gathered_at_layer(setting: Setting) -> int:
    """Bytes that FSDP holds while a layer runs backwards: its weights, the next layer's, and unsharded gradients."""
    if setting.sharding is None or not setting.sharding.is_fsdp:
        return 0
    # The layer's gradients, and their flat copy that is reduced and scattered.
    gradients = 2 if setting.trained is Trained.everything else 0
    return (_AHEAD + gradients) * layer_bytes(setting)


def layer_bytes(setting: Setting) -> int:
    """Bytes of the largest layer as stored."""
    return base.largest_layer_bytes(setting)
