"""The shape of a dense decoder: what each layer multiplies by, and how many parameters stay 16-bit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """One `nn.Linear` of a decoder layer; `name` is relative to the layer (`self_attn.q_proj`)."""

    name: str
    out_features: int
    in_features: int
    bias: bool

    @property
    def weights(self) -> int:
        """Elements of the weight, without the bias."""
        return self.out_features * self.in_features

    @property
    def leaf(self) -> str:
        """Last part of the name: what adapters are aimed at."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of equal layers, counted in parameters.

    Bitsandbytes replaces every `nn.Linear` but the output head, so `linears` is what is stored in
    4 (or 8) bits, and embeddings, norms, head and biases keep the load dtype.

    Attributes:
        name: folder name or hub id.
        architecture: `model_type` of config.json, or `unknown` when only headers were read.
        hidden, intermediate, layers, heads, kv_heads, head_dim, vocab: as in config.json.
        tied: the head shares the embedding's storage (`head_params` is then 0).
        max_positions: longest sequence in tokens; 0 when unknown.
        linears: the linear modules of one layer.
        embedding_params, norm_params, head_params, bias_params: of the whole model.
        norms_per_layer: norms over the residual stream in one layer.
        qk_norm: queries and keys are normed too.
    """

    name: str
    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    max_positions: int
    linears: tuple[LinearShape, ...]
    embedding_params: int
    norm_params: int
    head_params: int
    bias_params: int
    norms_per_layer: int = 2
    qk_norm: bool = False

    def __post_init__(self) -> None:
        """Reject shapes no decoder can have."""
        counts = (self.hidden, self.intermediate, self.layers, self.heads, self.kv_heads, self.head_dim, self.vocab)
        if min(counts) < 1 or not self.linears:
            msg = f"{self.name}: every count of the shape must be at least 1 and a layer needs linear modules"
            raise ValueError(msg)

    @property
    def layer_linear_params(self) -> int:
        """Weights of the linear modules of one layer."""
        return sum(linear.weights for linear in self.linears)

    @property
    def linear_params(self) -> int:
        """Weights of all decoder layers: what quantisation packs."""
        return self.layers * self.layer_linear_params

    @property
    def unquantised_params(self) -> int:
        """Parameters that keep the load dtype."""
        return self.embedding_params + self.norm_params + self.head_params + self.bias_params

    @property
    def total_params(self) -> int:
        """All parameters, a tied head counted once."""
        return self.linear_params + self.unquantised_params

    @property
    def largest_linear(self) -> int:
        """Weights of the largest linear module."""
        return max(linear.weights for linear in self.linears)

    @property
    def query_width(self) -> int:
        """Features of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Features of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    @property
    def summary(self) -> str:
        """One line for people: size and shape."""
        size = self.total_params / 1e9
        text = f"{size:.2f}B" if size >= 1 else f"{self.total_params / 1e6:.1f}M"
        return (
            f"{self.name} ({self.architecture}, {text} parameters): {self.layers} layers, hidden {self.hidden}, "
            f"{self.heads} heads ({self.kv_heads} for keys), vocabulary {self.vocab}"
        )
