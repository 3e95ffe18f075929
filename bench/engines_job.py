"""What is measured, in plain values: these modules import no torch, so that the command line answers at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a Llama.

    Attributes:
        hidden, wide: of the residual stream, and inside of an MLP.
        layers, heads, key_heads, vocab: how many.
        tied: embedding and head are one matrix, as in most models of up to 3B parameters.
    """

    hidden: int
    wide: int
    layers: int
    heads: int
    key_heads: int
    vocab: int
    tied: bool = True

    @property
    def layer_params(self) -> int:
        """Parameters of a layer's linear modules."""
        keys = self.hidden * self.key_heads // self.heads
        return self.hidden * (2 * self.hidden + 2 * keys + 3 * self.wide)

    @property
    def head_params(self) -> int:
        """Parameters of embedding and head."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def params(self) -> int:
        """All parameters but norms."""
        return self.layers * self.layer_params + self.head_params

    def words(self) -> str:
        """What it is, for a table."""
        return (
            f"Llama, {self.params / 1e9:.2f}B parameters: {self.layers} layers, hidden {self.hidden}, MLP {self.wide}, "
            f"{self.heads} heads ({self.key_heads} for keys), vocabulary {self.vocab}, "
            f"{'tied' if self.tied else 'untied'} head"
        )


def shape_of(params: str, *, tied: bool = True) -> Shape:
    """Return layers of Llama-3.2-1B, as many as come nearest to `params`; `small` is for trials.

    Raises:
        ValueError: neither a number nor `small`, or fewer than four layers of it.
    """
    if params == "small":
        return Shape(hidden=384, wide=1024, layers=12, heads=6, key_heads=2, vocab=4096, tied=tied)
    one = Shape(hidden=2048, wide=8192, layers=1, heads=32, key_heads=8, vocab=32000, tied=tied)
    layers = round((float(params) - one.head_params) / one.layer_params)
    if layers < 4:  # noqa: PLR2004 - a window of three, and one beyond it
        raise ValueError(f"{params} parameters are {max(layers, 0)} layers of {one.layer_params:,}: take 4 at least")
    return Shape(**{name: getattr(one, name) for name in one.__slots__} | {"layers": layers})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one run of ranks does.

    Attributes:
        engine: which one, by its name in the table.
        base, out: folders of the base, and for what the ranks write.
        cache: folder for packed layers; empty for none.
        steps: that are timed or warm up; one more is taken apart.
        rows, seq_len: of a rank's micro-batch.
        window: layers that `streamed` holds ready.
        shares: of the layers' bytes, a weight for each rank; empty for equal ones.
        seed: of adapters and rows.
        device, dtype: where and in which type is computed.
    """

    engine: str
    base: str
    out: str
    cache: str
    steps: int
    rows: int
    seq_len: int
    window: int
    shares: tuple[int, ...]
    seed: int
    device: str = "cpu"
    dtype: str = "float32"
