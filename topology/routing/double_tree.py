"""All-reduce over two complementary binary trees, each with half of the data: few steps, and every link busy.

In the second tree the inner nodes of the first are leaves (Sanders, Speck and Träff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009). Over several hosts the trees join hosts, and a chain leads through
the devices of each, as NCCL has it; on one host they join devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from topology.collectives import Collective, check_size
from topology.graph import Graph
from topology.routing.islands import Hops, hosts_of, near_order
from topology.routing.trees import Hop, Tree, refusal, schedule_of_trees
from topology.schedule import Phase, Schedule

ALGORITHM: Final = "double_tree"


def double_tree(
    graph: Graph, collective: Collective = Collective.all_reduce, *, num_pairs: int | None = None
) -> Schedule:
    """Sum up both trees to their roots, then broadcast down.

    Args:
        graph: where.
        collective: all_reduce; trees serve no other.
        num_pairs: pairs of trees, which enter hosts at other devices (and so by other NICs); None: one for each
            device of the smallest host, or one on a single host.

    Raises:
        TopologyError: another collective.
    """
    check_size(graph.size)
    if collective is not Collective.all_reduce:
        raise refusal(ALGORITHM, collective)
    hops = Hops(graph)
    hosts = [near_order(hops, host) for host in hosts_of(graph)]
    if len(hosts) == 1:
        hosts = [(rank,) for rank in hosts[0]]
    pairs = num_pairs or min(map(len, hosts))
    shapes = [
        _shape(hosts, parents, pair)
        for pair in range(pairs)
        for parents in (binary_parents(len(hosts)), mirrored_parents(len(hosts)))
    ]
    # Each of a device's NICs carries a part of its own.
    num_lanes = (
        1 if len(hosts) == 1 else max(len(hops.lanes(hosts[0][at], hosts[1][at])) for at in range(min(map(len, hosts))))
    )
    share = Fraction(1, 2 * pairs * num_lanes)
    out = [_tree(hops, shape, share, lane, up=False) for shape in shapes for lane in range(num_lanes)]
    into = [_tree(hops, shape, share, lane, up=True) for shape in shapes for lane in range(num_lanes)]
    last = max(step for shape in shapes for step, _, _ in shape)
    words = {
        "into": (Phase(name="sum up both trees to their roots", first=0, last=last),),
        "out": (Phase(name="broadcast down both trees", first=0, last=last),),
    }
    return schedule_of_trees(ALGORITHM, graph, collective, out=out, into=_ending_together(into, last), words=words)


def binary_parents(size: int) -> list[int]:
    """Parents in a binary search tree over 0 to `size` - 1, where every second node is a leaf; the root is its own."""
    parents = list(range(size))

    def join(low: int, high: int, parent: int | None) -> None:
        if low >= high:
            return
        # The node that the largest power of two divides, counted from 1, stands above the others of a stretch.
        node = max(range(low, high), key=lambda at: ((at + 1) & -(at + 1), -at))
        parents[node] = node if parent is None else parent
        join(low, node, node)
        join(node + 1, high, node)

    join(0, size, None)
    return parents


def mirrored_parents(size: int) -> list[int]:
    """The complementary tree: moved by one where the number of nodes is odd, mirrored where it is even."""
    parents = binary_parents(size)
    if size % 2:
        return [(parents[(at - 1) % size] + 1) % size for at in range(size)]
    return [size - 1 - parents[size - 1 - at] for at in range(size)]


def _shape(hosts: Sequence[Sequence[int]], parents: Sequence[int], pair: int) -> list[tuple[int, int, int]]:
    """Step, parent and child of an out-tree: hosts are entered at their device number `pair`, then chained."""
    entry = [host[pair % len(host)] for host in hosts]
    steps = [0] * len(hosts)
    found = []
    for number, host in enumerate(hosts):
        above, depth = number, 0
        while parents[above] != above:
            above, depth = parents[above], depth + 1
        steps[number] = depth
        if parents[number] != number:
            found.append((depth - 1, entry[parents[number]], entry[number]))
        at = pair % len(host)
        members = [*host[at:], *host[:at]]
        found += [(depth + step, a, b) for step, (a, b) in enumerate(pairwise(members))]
    return sorted(found)


def _tree(hops: Hops, shape: Sequence[tuple[int, int, int]], share: Fraction, lane: int, *, up: bool) -> Tree:
    last = max(step for step, _, _ in shape)
    children = {b for _, _, b in shape}
    root = next(a for _, a, _ in shape if a not in children)
    made = []
    for step, a, b in shape:
        source, target = (b, a) if up else (a, b)
        lanes = hops.lanes(source, target)
        path = lanes[lane % len(lanes)]
        made.append(Hop(step=last - step if up else step, source=source, target=target, path=path))
    return Tree(root=root, share=share, hops=tuple(made))


def _ending_together(trees: Sequence[Tree], last: int) -> list[Tree]:
    """Delay in-trees that are less deep, so that every tree reaches its root at the last step."""
    found = []
    for tree in trees:
        late = last - max(hop.step for hop in tree.hops)
        hops = (Hop(step=hop.step + late, source=hop.source, target=hop.target, path=hop.path) for hop in tree.hops)
        found.append(Tree(root=tree.root, share=tree.share, hops=tuple(hops)))
    return found
