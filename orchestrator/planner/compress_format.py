"""Sparse gradients on the wire: their format, and what each exchange sends.

Each parameter is cut into chunks of 4,096 elements, the last padded with zeros. Of a chunk the `kept` largest elements
by size travel: 12-bit places inside the chunk, two in three bytes, then values, then a scale where values are whole
numbers. All sizes are fixed, so no rank has to tell another how much comes. The format follows SparseLoCo
(arXiv 2508.15706), whose chunks of 4,096 and 12-bit places it takes.

In a refresh step (`compress_refresh`) all elements of each chunk travel, in order and so without places.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from orchestrator.config import CompressValues as Values

CHUNK: Final = 4096  # elements; places inside it need 12 bits
HEADER_BYTES: Final = 16  # before the chunks of each message: whether the sender's gradients were finite
SCALE_BYTES: Final = 4  # fp32
WHOLE_TILE_CHUNKS: Final = 1024  # 16 MiB of fp32: worked on at a time on a GPU where all elements travel
_FEWEST: Final = 2  # kept of a chunk: places travel in pairs
_THRESHOLD_BYTES: Final = 8  # of a value of the threshold exchange: a 32-bit place and fp32


class Exchange(Enum):
    """How sparse gradients are summed over the ranks.

    gather: every rank gets the packets of all others and sums them.
    split: each rank owns a range of chunks: it sums them, selects anew and hands the result to all.
    hierarchical: dense sums inside an island, split across islands, packets handed round inside.
    threshold: one threshold for all chunks in place of a fixed count in each (Ok-Topk).
    """

    gather = "gather"
    split = "split"
    hierarchical = "hierarchical"
    threshold = "threshold"


_VALUE_BITS: Final = {Values.bf16: 16, Values.int8: 8, Values.int4: 4, Values.fp32: 32}
_SCALED: Final = (Values.int8, Values.int4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """The fixed format of a chunk on the wire.

    Attributes:
        kept: values kept of a chunk's 4,096; even, since places travel in pairs.
        values: how they travel.
    """

    kept: int
    values: Values

    def __post_init__(self) -> None:
        """Refuse what has no format."""
        if not _FEWEST <= self.kept <= CHUNK or self.kept % 2:
            raise ValueError(f"{self.kept} kept values of a chunk: it must be an even number from 2 to {CHUNK}")

    @property
    def index_bytes(self) -> int:
        """Bytes of the places; none where everything is kept, in order."""
        return 0 if self.kept == CHUNK else self.kept // 2 * 3

    @property
    def value_bytes(self) -> int:
        """Bytes of the values, without their scale."""
        return self.kept * _VALUE_BITS[self.values] // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scale; none for floating-point values."""
        return SCALE_BYTES if self.values in _SCALED else 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk on the wire: places, values, scale, in this order."""
        return self.index_bytes + self.value_bytes + self.scale_bytes

    @property
    def density(self) -> float:
        """The part of the elements that is kept."""
        return self.kept / CHUNK

    @property
    def whole(self) -> Codec:
        """The format of refresh steps: everything in 4 bits; who asks for values that are not whole numbers gets them.

        What 4 bits do not say stays in the residual, as with int8. Values in floating point are for who wants none of
        that, whatever it costs, so they keep their type.
        """
        return Codec(kept=CHUNK, values=Values.int4 if self.values in _SCALED else self.values)

    def wire_bytes(self, num_chunks: int) -> int:
        """Bytes of so many chunks, without the header of a message."""
        return num_chunks * self.chunk_bytes

    def message_bytes(self, num_chunks: int) -> int:
        """Bytes of one message with so many chunks."""
        return HEADER_BYTES + self.wire_bytes(num_chunks)


def codec_of(density: float, values: Values) -> Codec:
    """The format that keeps the part `density` of each chunk, as nearly as an even count can.

    Raises:
        ValueError: a density that would keep fewer than two elements of a chunk, or more than all.
    """
    if not _FEWEST / CHUNK <= density <= 1:
        raise ValueError(f"a density of {density}: it must be from {_FEWEST}/{CHUNK} to 1")
    return Codec(kept=min(CHUNK, 2 * round(density * CHUNK / 2)), values=values)


def chunks_of(numel: int) -> int:
    """Chunks of one parameter with so many elements; each parameter begins a chunk of its own."""
    return -(-numel // CHUNK)


def parts_of(num_chunks: int, ranks: int) -> tuple[int, ...]:
    """Chunks that each rank owns, in rank order, as equal as can be; the first ranks own one more."""
    each, more = divmod(num_chunks, ranks)
    return tuple(each + (rank < more) for rank in range(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one rank sends in one exchange.

    Attributes:
        inside_bytes: to ranks of its own island; everything where all ranks are one island.
        across_bytes: to ranks of other islands.
        phases: that must follow each other, each at least one message's latency.
        messages: that the rank starts.
    """

    inside_bytes: int
    across_bytes: int
    phases: int
    messages: int

    @property
    def total_bytes(self) -> int:
        """Over all links."""
        return self.inside_bytes + self.across_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Who sends to whom.

    Attributes:
        exchange: the kind.
        ranks: of the whole group.
        island: ranks of one island, which follow each other in rank order; 1 for all kinds but hierarchical.
    """

    exchange: Exchange
    ranks: int
    island: int = 1

    def __post_init__(self) -> None:
        """Refuse islands that do not divide the group."""
        if self.ranks < 1 or self.island < 1 or self.ranks % self.island:
            raise ValueError(f"islands of {self.island} in {self.ranks} ranks")
        if self.island > 1 and self.exchange is not Exchange.hierarchical:
            raise ValueError(f"the {self.exchange.value} exchange knows no islands")

    @property
    def whole(self) -> Pattern:
        """The same ranks and owners of residuals where all elements travel.

        There is nothing above a threshold then, and of more than two ranks each part has one rank that sums it: packets
        of everything to everybody would be more bytes than dense sums.
        """
        if self.exchange is Exchange.hierarchical:
            return self
        two = self.ranks <= 2  # noqa: PLR2004
        return Pattern(exchange=Exchange.gather if two else Exchange.split, ranks=self.ranks)

    def sent(self, codec: Codec, num_chunks: int, rank: int, *, dense_bytes: int = 4) -> Sent:
        """What `rank` sends of so many chunks, exact to the byte for all kinds but `threshold` (its upper bound).

        Args:
            codec: of the packets.
            num_chunks: of this exchange: a bucket's, or a whole step's.
            rank: who sends.
            dense_bytes: of an element that travels dense inside an island.
        """
        if self.ranks == 1:
            return Sent(inside_bytes=0, across_bytes=0, phases=0, messages=0)
        if self.exchange is Exchange.gather:
            others = self.ranks - 1
            nbytes = others * codec.message_bytes(num_chunks)
            return Sent(inside_bytes=0, across_bytes=nbytes, phases=1, messages=others)
        if self.exchange is Exchange.split:
            return _split(codec, num_chunks, self.ranks, rank)
        if self.exchange is Exchange.threshold:
            return _threshold(codec, num_chunks, self.ranks)
        return self._hierarchical(codec, num_chunks, rank, dense_bytes)

    def _hierarchical(self, codec: Codec, num_chunks: int, rank: int, dense_bytes: int) -> Sent:
        """Dense parts to their owners in the island, packets among the ranks of one place, and then to the island.

        Two islands swap their packets and hand both round; more of them split, and hand the selected ones round.
        Dense parts travel without a header: an infinity in them shows by itself.
        """
        place, island = rank % self.island, rank // self.island
        own, others, islands = parts_of(num_chunks, self.island)[place], self.island - 1, self.ranks // self.island
        if islands == 2:  # noqa: PLR2004
            across = Sent(inside_bytes=0, across_bytes=codec.message_bytes(own), phases=1, messages=1)
        else:
            across = _split(codec, own, islands, island)
        dense = (num_chunks - own) * CHUNK * dense_bytes
        packets = others * codec.message_bytes(own * (2 if islands == 2 else 1))  # noqa: PLR2004
        return Sent(
            inside_bytes=dense + packets if others else 0,
            across_bytes=across.total_bytes,
            phases=across.phases + (2 if others else 0),
            messages=across.messages + 2 * others,
        )


def _split(codec: Codec, num_chunks: int, ranks: int, rank: int) -> Sent:
    """Parts to their owners, then the own part, selected anew, to all."""
    if ranks == 1:
        return Sent(inside_bytes=0, across_bytes=0, phases=0, messages=0)
    parts = parts_of(num_chunks, ranks)
    out = sum(codec.message_bytes(part) for owner, part in enumerate(parts) if owner != rank)
    back = (ranks - 1) * codec.message_bytes(parts[rank])
    return Sent(inside_bytes=0, across_bytes=out + back, phases=2, messages=2 * (ranks - 1))


def _threshold(codec: Codec, num_chunks: int, ranks: int) -> Sent:
    """At most 6 k (P-1)/P words, of which a third are places and values of the parts, the rest of the result."""
    kept = num_chunks * codec.kept
    nbytes = 3 * kept * _THRESHOLD_BYTES * (ranks - 1) // ranks + 2 * (ranks - 1) * HEADER_BYTES
    return Sent(inside_bytes=0, across_bytes=nbytes, phases=3, messages=3 * (ranks - 1))


def dense_sent_bytes(nbytes: int, ranks: int) -> int:
    """Bytes that a rank sends where a dense all-reduce of `nbytes` moves the least: 2 (P-1)/P of them."""
    return 2 * nbytes * (ranks - 1) // ranks
