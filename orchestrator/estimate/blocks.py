"""How the decoder layers of each family are put together, as far as autograd cares.

Read in transformers 5.24 (`models/*/modeling_*.py`); `bench/fake_memory.py` checks it against the modules themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orchestrator.config import Engine
from orchestrator.estimate.setting import Setting

# Attention and MLP read the same residual stream.
_PARALLEL: Final = frozenset({"phi", "falcon", "gpt_neox", "gptj", "cohere", "cohere2"})
# Rotary embeddings end in a concatenation, so queries lie head by head and the kernel's output must be copied.
_CONCATENATED: Final = frozenset({"phi3", "phi", "gpt_neox", "stablelm", "glm", "glm4"})
# The values stay a view of one fused projection, which is kept whole.
_FUSED_QKV: Final = frozenset({"phi3"})
# torch's own LayerNorm, which CUDA's autocast runs in fp32.
_TORCH_NORM: Final = frozenset(
    {
        *("phi", "falcon", "gpt_neox", "gptj", "opt", "stablelm", "starcoder2", "bloom", "mpt", "gpt2", "gpt_bigcode"),
        "gpt_neo",
    }
)
# Linear modules of their own class return the compute dtype; bitsandbytes' return the dtype of their input.
_OWN_LINEAR: Final = frozenset({"falcon"})
# Activations written out in Python: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
_WRITTEN_OUT: Final = frozenset({"gelu_new", "gelu_fast", "gelu_accurate"})
_KEEPS_RESULT: Final = frozenset({"relu"})
# A norm follows the MLP, so it runs backwards before anything of the layer is freed.
_NORM_LAST: Final = frozenset({"gemma2", "gemma3_text", "olmo2", "olmo3", "glm4", "exaone4"})
# Their norm, written out in Python, keeps the centred input twice: once to be squared, once to be scaled.
_CENTRED_TWICE: Final = frozenset({"cohere", "cohere2"})
# Activations whose backward pass is written out in Python, with the widest tensors alive at once in it.
_BACKWARD_STEPS: Final = MappingProxyType({"bloom_gelu": 6})
_SOFT_CAPPED: Final = frozenset({"gemma2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A decoder layer.

    Attributes:
        parallel: attention and MLP read the same residual stream.
        concatenated: the attention kernel's output is copied before the next module reads it.
        fused_qkv: the values keep the whole fused projection alive.
        fp32_norms: norms return fp32, and each adapter casts that for itself.
        fp32_outputs: linear modules return fp32, so the residual stream and the MLP are fp32.
        written_out: the activation is a formula in Python, each step a tensor.
        keeps_result: the activation saves its result instead of its input.
        norm_last: a norm follows the MLP.
        soft_capped: attention scores and logits go through tanh.
        norm_copies: fp32 copies of its input that a norm keeps.
        backward_steps: tensors of the MLP's width alive at once while its activation runs backwards.
    """

    parallel: bool
    concatenated: bool
    fused_qkv: bool
    fp32_norms: bool
    fp32_outputs: bool
    written_out: bool
    keeps_result: bool
    norm_last: bool
    soft_capped: bool
    norm_copies: int
    backward_steps: int


def block_of(setting: Setting) -> Block:
    """The layer that `setting` runs."""
    kind = setting.model.architecture
    # ZeRO-3 casts the whole module instead of using autocast, and a CPU's autocast leaves norms alone.
    widens = setting.machine.is_gpu and setting.engine is not Engine.zero3 and setting.compute_dtype != "fp32"
    fp32_norms = kind in _TORCH_NORM and widens
    is_product = setting.model.gated_mlp or setting.model.activation in _WRITTEN_OUT
    return Block(
        parallel=kind in _PARALLEL,
        concatenated=kind in _CONCATENATED,
        fused_qkv=kind in _FUSED_QKV,
        fp32_norms=fp32_norms,
        fp32_outputs=fp32_norms and kind not in _OWN_LINEAR,
        written_out=setting.model.activation in _WRITTEN_OUT,
        keeps_result=setting.model.activation in _KEEPS_RESULT,
        norm_last=kind in _NORM_LAST,
        soft_capped=kind in _SOFT_CAPPED,
        norm_copies=2 if kind in _CENTRED_TWICE else 1,
        backward_steps=_BACKWARD_STEPS.get(setting.model.activation, 3 if is_product else 2),
    )
