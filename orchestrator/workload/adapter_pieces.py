"""Adapters of a model in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from orchestrator.workload.adapter_names import SavedModule
from orchestrator.workload.model import LinearShape


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterPiece:
    """Pairs of low-rank matrices of one size: A is (rank, in), B is (out, rank).

    Attributes:
        name: of the module or parameter, within its layer.
        count: how many of them the model has.
        rank: of each; an adapter of stacked experts has the rank times their number.
        in_features, out_features: of what it adapts.
        vector: elements of a third trained tensor: DoRA's magnitudes, AdaLoRA's singular values; 0 without.
    """

    name: str
    count: int
    rank: int
    in_features: int
    out_features: int
    vector: int = 0

    @property
    def params(self) -> int:
        """Trainable parameters of all of them."""
        return self.count * (self.rank * (self.in_features + self.out_features) + self.vector)

    @property
    def tensors(self) -> int:
        """Trainable tensors of all of them."""
        return self.count * (3 if self.vector else 2)

    @property
    def largest(self) -> int:
        """Elements of the largest tensor."""
        return max(self.rank * max(self.in_features, self.out_features), self.vector)


@dataclass(frozen=True, kw_only=True)  # no slots: what follows from the fields is reckoned once
class AdapterShape:
    """LoRA of one rank on some linear modules of every layer.

    Attributes:
        rank: width of the bottleneck.
        targets: the linear modules of a layer that carry an adapter (of a layer of the largest group, where layers
            differ).
        layers: layers of the model.
        dropout: dropout on the adapter's input, which then keeps a copy and a mask of it.
        pieces: all adapters of the model, where layers differ or more than their linear modules carry one; empty
            for `targets` in every layer.
        notes: what the user may not expect.
        dora: weights are normed anew in every pass, and their magnitudes train.
        saved: modules that are trained whole.
        mean_ranks: ranks of a layer's adapters in sum, the mean over layers, where they differ; 0 for `rank` each.
    """

    rank: int
    targets: tuple[LinearShape, ...]
    layers: int
    dropout: float = 0.0
    pieces: tuple[AdapterPiece, ...] = ()
    notes: tuple[str, ...] = ()
    dora: bool = False
    saved: tuple[SavedModule, ...] = ()
    mean_ranks: float = 0.0

    def __hash__(self) -> int:
        """A few numbers: functions that keep what they counted of adapters ask for it often."""
        return hash((self.rank, self.layers, len(self.targets), len(self.pieces)))

    @cached_property
    def all_pieces(self) -> tuple[AdapterPiece, ...]:
        """Every adapter of the model."""
        return self.pieces or tuple(piece_of(target, self.layers, self.rank) for target in self.targets)

    @property
    def params_per_layer(self) -> int:
        """Trainable parameters of one layer (the mean, rounded up, where layers differ)."""
        return -(-self.params // self.layers)

    @property
    def adapters_per_layer(self) -> int:
        """The same without modules that are trained whole."""
        return -(-(self.params - self.saved_params) // self.layers)

    @property
    def ranks_per_layer(self) -> float:
        """Ranks of a layer's adapters in sum: what their first halves return, in elements per token."""
        return self.mean_ranks or float(self.rank * len(self.targets))

    @cached_property
    def saved_params(self) -> int:
        """Parameters of the modules that are trained whole."""
        return sum(module.params for module in self.saved)

    @cached_property
    def params(self) -> int:
        """Trainable parameters of the model."""
        return sum(piece.params for piece in self.all_pieces) + self.saved_params

    @cached_property
    def tensors(self) -> int:
        """Trainable tensors of the model (A and B of every target, and what is trained beside them)."""
        whole = sum(module.count * len(module.elements) for module in self.saved)
        return sum(piece.tensors for piece in self.all_pieces) + whole

    @cached_property
    def largest_tensor(self) -> int:
        """Elements of the largest trainable tensor."""
        return max([*(piece.largest for piece in self.all_pieces), *(max(x.elements) for x in self.saved)])


def piece_of(linear: LinearShape, count: int, rank: int) -> AdapterPiece:
    """Return the adapters of a linear module that occurs `count` times."""
    return AdapterPiece(
        name=linear.name, count=count, rank=rank, in_features=linear.in_features, out_features=linear.out_features
    )
