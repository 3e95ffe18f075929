"""What `config.json` may leave out because transformers 5.24 has a default for it: activations and dropout.

From `models/*/configuration_*.py`. It decides what a layer saves, not how many parameters it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_ACTIVATION_KEYS: Final = ("hidden_act", "hidden_activation", "activation_function", "activation")
_ACTIVATIONS: Final = MappingProxyType(
    {
        "bloom": "bloom_gelu",
        "codegen": "gelu_new",
        "falcon": "gelu",
        "gpt2": "gelu_new",
        "gpt_bigcode": "gelu_pytorch_tanh",
        "gpt_neo": "gelu_new",
        "gpt_neox": "gelu",
        "gptj": "gelu_new",
        "mpt": "gelu",
        "opt": "relu",
        "phi": "gelu_new",
        "starcoder2": "gelu_pytorch_tanh",
    }
)
# Dropout of what attention and the MLP return: its key, and its rate where the file does not tell.
_DROPOUT: Final = MappingProxyType(
    {
        "bloom": ("hidden_dropout", 0.0),
        "codegen": ("resid_pdrop", 0.0),
        "falcon": ("hidden_dropout", 0.0),
        "gpt2": ("resid_pdrop", 0.1),
        "gpt_bigcode": ("resid_pdrop", 0.1),
        "gpt_neo": ("resid_dropout", 0.0),
        "gpt_neox": ("hidden_dropout", 0.0),
        "gptj": ("resid_pdrop", 0.0),
        "opt": ("dropout", 0.1),
        "phi": ("resid_pdrop", 0.0),
        "starcoder2": ("residual_dropout", 0.0),
    }
)


def activation_of(kind: str, config: Mapping[str, object]) -> str:
    """Name of the MLP's activation function; empty when neither the file nor the family tells."""
    told = next((config[key] for key in _ACTIVATION_KEYS if config.get(key)), "")
    return str(told) if told else _ACTIVATIONS.get(kind, "")


def drops_residuals(kind: str, config: Mapping[str, object]) -> bool:
    """Whether layers drop elements of what attention and the MLP return while they train."""
    if kind not in _DROPOUT:
        return False
    key, otherwise = _DROPOUT[kind]
    rate = config.get(key, otherwise)
    return isinstance(rate, int | float) and rate > 0
