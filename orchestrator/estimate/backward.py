"""Peak while one layer runs backwards: the largest of a few moments, each the sum of what is alive then."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.estimate.activations import (
    layer_copy_bytes,
    mlp_bytes_per_token,
    output_bytes,
    product_bytes_per_token,
    saved_bytes_per_token,
)
from orchestrator.estimate.blocks import Block, block_of
from orchestrator.estimate.dora import dora_backward_bytes, dora_transient_bytes
from orchestrator.estimate.experts import backward_bytes, has_dense_mlp, has_experts, recompute_bytes, results_bytes
from orchestrator.estimate.kept import kept
from orchestrator.estimate.layers import Input, input_of
from orchestrator.estimate.scores import scores_of
from orchestrator.estimate.setting import Setting

_FP32 = 4
_NORM_COPIES = 5  # fp32 gradients of an RMSNorm's input while it is put together from its square and its scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Bytes beyond what is kept from the forward pass."""

    why: str
    bytes: float


@kept(
    *("world_size", "rows", "accumulation", "checkpointing", "recomputed_layers", "quant", "double_quant"),
    *("optimizer", "allocator", "zero3", "sparse", "streamed"),
    only_gpu=True,
)
def layer_peak(setting: Setting, unpacked_bytes: int, *, recomputes: bool) -> Moment:
    """The largest moment of one layer's recomputation and backward pass.

    Args:
        setting: what runs.
        unpacked_bytes: of the largest weight while it is multiplied, with its scales.
        recomputes: whether it is a layer that is recomputed.
    """
    block = block_of(setting)
    saved = saved_bytes_per_token(setting) if recomputes else 0.0
    if recomputes and block.fp32_outputs:
        saved -= _FP32 * setting.model.hidden  # the first norm reads the very tensor that checkpointing keeps
    last = unpacked_bytes * _last_share(setting)
    moments: list[Moment] = []
    if not has_experts(setting) or has_dense_mlp(setting):
        moments += _mlp_moments(setting, block, saved, last)
    if not recomputes:
        moments.append(_last_forward(setting, block, last))
    if recomputes and not has_experts(setting):
        moments += _recompute_moments(setting, block, saved, last)
    if has_experts(setting):
        moments += _expert_moments(setting, saved, recomputes=recomputes)
    if block.norm_last:
        norm = setting.peak_tokens * (saved + (_NORM_COPIES * _FP32 + setting.compute_bytes) * setting.model.hidden)
        moments.append(Moment(why="the norm after the MLP runs backwards", bytes=norm))
    if setting.eager_attention:
        moments += _attention_moments(setting, block, recomputes=recomputes)
    if setting.adapter.dora:
        moments = _dora_moments(setting, block, moments, saved)
    copies = layer_copy_bytes(setting) if recomputes else 0
    largest = max(moments, key=lambda moment: moment.bytes)
    return Moment(why=largest.why, bytes=largest.bytes + copies)


def _dora_moments(setting: Setting, block: Block, moments: list[Moment], saved: float) -> list[Moment]:
    """The other moments with the gradients of wide results, and the norms of a weight in a pass forward."""
    more = dora_backward_bytes(setting)
    held = saved + 3 * output_bytes(setting, block) * setting.model.hidden if saved else 0.0
    normed = setting.peak_tokens * held + dora_transient_bytes(setting)
    return [
        *(Moment(why=moment.why, bytes=moment.bytes + more) for moment in moments),
        Moment(why="the norms of a DoRA module are taken", bytes=normed),
    ]


def _last_share(setting: Setting) -> float:
    """Weights of the MLP's last module against the largest packed one's; 0 where it is not packed."""
    model = setting.model
    last = [x for x in model.linears if input_of(x.name, x.in_features, setting) is Input.product and x.packed]
    return max((x.weights for x in last), default=0) / model.largest_linear


def _mlp_moments(setting: Setting, block: Block, saved: float, unpacked: float) -> list[Moment]:
    """The last linear module, then the product or activation.

    The adapter's gradient comes first and frees the adapter's input; then the weight is unpacked and multiplied.
    """
    tokens, width = setting.peak_tokens, setting.model.intermediate
    size, product = output_bytes(setting, block), product_bytes_per_token(setting)
    gradient = size * setting.model.hidden
    if block.norm_last:
        saved = max(0.0, saved - _FP32 * setting.model.hidden)  # that norm has run backwards by then
    is_product = setting.model.gated_mlp or block.written_out
    results = (size if product else 0) + setting.compute_bytes  # of the adapter, where there is one, and the module
    last = tokens * (saved + gradient - product + results * width) + unpacked
    if block.fp32_outputs and product:
        last = max(last, tokens * (saved + gradient + 2 * size * width))
    return [
        Moment(why="the MLP's last module runs backwards", bytes=last),
        Moment(
            why="the MLP's product runs backwards" if is_product else "the activation runs backwards",
            bytes=tokens * (saved + gradient - product + block.backward_steps * size * width),
        ),
    ]


def _last_forward(setting: Setting, block: Block, unpacked: float) -> Moment:
    """The MLP's last module runs forward in the last layer: what it reads, as far as no adapter keeps that."""
    size, compute, keeps = output_bytes(setting, block), setting.compute_bytes, product_bytes_per_token(setting) > 0
    elements = 0 if keeps and size == compute else size
    if not keeps and size != compute:
        elements += compute
    alive = elements * setting.model.intermediate + compute * setting.model.hidden
    return Moment(why="the MLP's last module runs forward", bytes=setting.peak_tokens * alive + unpacked)


def _recompute_moments(setting: Setting, block: Block, saved: float, unpacked: float) -> list[Moment]:
    """The last linear module of the recomputation, and the adapter of the first one of the MLP."""
    tokens, model, compute = setting.peak_tokens, setting.model, setting.compute_bytes
    stream = output_bytes(setting, block) * model.hidden
    held = 2 * stream + (0 if block.parallel else stream)  # two copies of the gradient, and the residual stream
    outputs = model.norms_per_layer if block.parallel else 1
    widened = (outputs * _FP32 + compute) * model.hidden if block.fp32_norms else 0  # of norms, and attention's result
    before = saved - mlp_bytes_per_token(setting, block)
    first = 2 * output_bytes(setting, block) + compute  # the module's result, its adapter's, and their sum
    if _is_fused(setting):
        first *= 2
    elif model.gated_mlp:
        first += 2 * output_bytes(setting, block)  # gate and its activation are there already
    return [
        Moment(
            why="the MLP's last module is recomputed",
            bytes=tokens * (saved + held + compute * model.hidden) + unpacked,
        ),
        Moment(
            why="an adapter of the MLP is recomputed",
            bytes=tokens * (before + held + widened + first * model.intermediate),
        ),
    ]


def _expert_moments(setting: Setting, saved: float, *, recomputes: bool) -> list[Moment]:
    """The experts' last matrices, forward and backward, with three more of the residual stream."""
    stream = 3 * setting.compute_bytes * setting.model.hidden
    before = setting.peak_tokens * (saved + stream)
    moments = [
        Moment(why="the experts' last matrices run backwards", bytes=before + backward_bytes(setting)),
        Moment(why="the experts' results run backwards", bytes=before + results_bytes(setting)),
    ]
    if recomputes:
        moments.append(Moment(why="the experts are recomputed", bytes=before + recompute_bytes(setting)))
    return moments


def _is_fused(setting: Setting) -> bool:
    """Whether one linear module returns gate and up together."""
    model = setting.model
    wide = (x for x in model.linears if x.out_features == 2 * model.intermediate)
    return model.gated_mlp and any(input_of(x.name, x.in_features, setting) is Input.mlp for x in wide)


def _attention_moments(setting: Setting, block: Block, *, recomputes: bool) -> list[Moment]:
    """Softmax of the recomputation, and backwards: its result, the gradient, and its own gradient."""
    model, compute, each = setting.model, setting.compute_bytes, scores_of(setting)
    scores, tokens = model.heads * setting.batch.longest_tokens, setting.peak_tokens
    rest: float = (_FP32 + 3 * compute) * model.hidden + 3 * compute * model.query_width
    if not recomputes:
        # Of what the layer saved, all after attention is gone by then, and what softmax saved is counted twice.
        rest -= _FP32 * model.hidden + compute * model.query_width
        alive = scores * (each.backward - each.saved) + rest - mlp_bytes_per_token(setting, block)
        return [Moment(why="the attention scores run backwards", bytes=max(0.0, tokens * alive))]
    size = output_bytes(setting, block)
    before = size * (model.query_width + 2 * model.key_width) + (2 * _FP32 + size) * model.hidden
    return [
        Moment(why="the attention scores run backwards", bytes=tokens * (scores * each.backward + rest)),
        Moment(why="the attention scores are recomputed", bytes=tokens * (scores * each.forward + before)),
    ]
