"""Where the parts of a host go: leaves side by side, bars over what hangs below them, NUMA nodes in one or two rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from topology.model import SwitchKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from topology.render.svg_tree import Block, Node

GPU_WIDTH, GPU_HEIGHT = 118.0, 66.0
MIG_HEIGHT: Final = 20.0
NIC_WIDTH, NIC_HEIGHT, NIC_GAP, SPINE = 92.0, 31.0, 4.0, 10.0
SLOT_WIDTH, SLOT_HEIGHT, SLOT_GAP = 46.0, 22.0, 4.0
BAR_HEIGHT, DROP, SHORT_DROP, STRIP = 20.0, 26.0, 10.0, 22.0
PAD, GAP = 12.0, 14.0
SIDE_ROOM: Final = 46.0
_BAR_WIDTH: Final = 92.0
_BLOCK_WIDTH: Final = 174.0
_MANY_SLOTS: Final = 64
_ROW_WIDTH: Final = 1250.0  # of several NUMA nodes side by side
_MOST_BLOCK_WIDTH: Final = 1500.0
SOCKET_GAP: Final = 84.0
BLOCK_GAP: Final = 18.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A node with its place: x and width in px, and how many bars are above it."""

    node: Node
    x: float
    width: float
    level: int
    children: tuple[Spot, ...] = ()

    def all(self) -> Iterator[Spot]:
        """Itself and everything below it."""
        yield self
        for child in self.children:
            yield from child.all()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBlock:
    """A NUMA node with its place and those of its trees."""

    block: Block
    x: float
    width: float
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Heights within the NUMA nodes of a host, the same for all of them so that rows line up."""

    levels: int
    first_drop: float
    leaf_height: float
    leaf_drop: float

    @property
    def leaf_y(self) -> float:
        """Where leaves begin, from the top of the block."""
        bars = self.bar_y(self.levels - 1) + BAR_HEIGHT if self.levels else STRIP
        return bars + self.leaf_drop

    def bar_y(self, level: int) -> float:
        """Where a bar begins, from the top of the block."""
        return STRIP + self.first_drop + level * (BAR_HEIGHT + DROP)

    @property
    def height(self) -> float:
        """Height of a block."""
        return self.leaf_y + self.leaf_height + PAD


def slot_columns(slots: int) -> tuple[int, float, float]:
    """Columns, width and height of the cells of a grid of CPU slots: smaller ones where there are many."""
    if slots > _MANY_SLOTS:
        return 32, 16.0, 14.0
    return min(slots, 8), SLOT_WIDTH, SLOT_HEIGHT


def width_of(node: Node) -> float:
    """Width of a node with all that hangs below it."""
    if node.switch is not None:
        below = sum(map(width_of, node.children)) + GAP * (len(node.children) - 1)
        return max(_BAR_WIDTH, below)
    side = SIDE_ROOM if node.side is not None else 0.0
    if node.is_slots:
        columns, cell, _ = slot_columns(len(node.devices))
        return columns * (cell + SLOT_GAP) - SLOT_GAP
    if node.nics:
        columns = -(-len(node.nics) // 2)
        return columns * (NIC_WIDTH + (SPINE if len(node.nics) > 1 else 0) + NIC_GAP) - NIC_GAP
    return GPU_WIDTH + side


def sizes_of(blocks: Sequence[Block]) -> Sizes:
    """Heights that fit every block."""
    roots = [root for block in blocks for root in block.roots]
    are_bridges = all(root.switch is not None and root.switch.kind is SwitchKind.bridge for root in roots)
    leaves = [leaf for root in roots for leaf in _leaves(root)]
    return Sizes(
        levels=max(map(_levels, roots), default=0),
        first_drop=SHORT_DROP if are_bridges else DROP,
        leaf_height=max(map(_leaf_height, leaves), default=0.0),
        leaf_drop=DROP if any(leaf.side or any(leaf.ups) for leaf in leaves) else SHORT_DROP,
    )


def _leaves(node: Node) -> Iterator[Node]:
    if node.switch is None:
        yield node
    for child in node.children:
        yield from _leaves(child)


def _levels(node: Node) -> int:
    return 0 if node.switch is None else 1 + max(map(_levels, node.children), default=0)


def _leaf_height(leaf: Node) -> float:
    if leaf.is_slots:
        columns, _, cell = slot_columns(len(leaf.devices))
        return -(-len(leaf.devices) // columns) * (cell + SLOT_GAP) - SLOT_GAP
    if leaf.nics:
        return NIC_HEIGHT if len(leaf.nics) == 1 else 2 * NIC_HEIGHT + NIC_GAP
    return gpu_height(leaf)


def gpu_height(leaf: Node) -> float:
    """Height of the box of a GPU, with room for its MIG slices where it has some."""
    return GPU_HEIGHT + (MIG_HEIGHT if len(leaf.devices) > 1 or leaf.devices[0].parent else 0.0)


def block_width(block: Block) -> float:
    """Width of a NUMA node."""
    inner = sum(map(width_of, block.roots)) + GAP * (len(block.roots) - 1)
    return max(_BLOCK_WIDTH, inner + 2 * PAD)


def placed(block: Block, x: float) -> PlacedBlock:
    """Place a NUMA node and what is in it."""
    width = block_width(block)
    inner = sum(map(width_of, block.roots)) + GAP * (len(block.roots) - 1)
    return PlacedBlock(block=block, x=x, width=width, spots=_side_by_side(block.roots, x + (width - inner) / 2, 0))


def _side_by_side(nodes: Sequence[Node], x: float, level: int) -> tuple[Spot, ...]:
    spots = []
    for node in nodes:
        width = width_of(node)
        below = sum(map(width_of, node.children)) + GAP * (len(node.children) - 1)
        children = _side_by_side(node.children, x + (width - below) / 2, level + 1)
        spots.append(Spot(node=node, x=x, width=width, level=level, children=children))
        x += width + GAP
    return tuple(spots)


def rows_of(blocks: Sequence[Block], *, is_mesh: bool) -> tuple[tuple[Block, ...], ...]:
    """One row of NUMA nodes, or two where one is too wide or a mesh of GPUs reads better between two."""
    pieces = [piece for block in blocks for piece in _pieces(block)]
    gpus = [index for index, piece in enumerate(pieces) if any(map(_has_gpu, piece.roots))]
    total = sum(map(block_width, pieces)) + BLOCK_GAP * (len(pieces) - 1)
    is_wide = total > _ROW_WIDTH
    if len(pieces) == 1 or not (is_wide or (is_mesh and len(gpus) > 1)):
        return (tuple(pieces),)
    is_split_by_gpus = is_mesh and not is_wide and len(gpus) > 1
    half = gpus[len(gpus) // 2] if is_split_by_gpus else _half(pieces, total)
    return tuple(pieces[:half]), tuple(pieces[half:])


def _half(pieces: Sequence[Block], total: float) -> int:
    sums = [sum(map(block_width, pieces[:at])) for at in range(1, len(pieces))]
    return 1 + min(range(len(sums)), key=lambda at: abs(sums[at] - total / 2))


def _has_gpu(node: Node) -> bool:
    return any(leaf.devices and not leaf.is_slots for leaf in _leaves(node))


def _pieces(block: Block) -> list[Block]:
    # A NUMA node too wide for a row is cut in two between its trees.
    if block_width(block) <= _MOST_BLOCK_WIDTH or len(block.roots) == 1:
        return [block]
    half, wanted, width = 0, block_width(block) / 2, 0.0
    while half < len(block.roots) - 1 and width + width_of(block.roots[half]) / 2 < wanted:
        width += width_of(block.roots[half]) + GAP
        half += 1
    half = max(half, 1)
    return [replace(block, roots=block.roots[:half]), replace(block, roots=block.roots[half:], is_rest=True)]
