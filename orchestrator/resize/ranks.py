"""Which rank each adapter gets: by the energy of what it has learnt, or by where gradients are largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Ranks = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What is known of one adapter.

    Attributes:
        name: of its module.
        energies: squares of the singular values of its product, largest first; as many as its rank.
        rank_params: parameters of one rank: in + out.
        gradient: root of the mean squared norm of its gradients, since the ranks changed last.
    """

    name: str
    energies: tuple[float, ...]
    rank_params: int
    gradient: float = 0.0

    @property
    def rank(self) -> int:
        """Columns of B."""
        return len(self.energies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What no adapter may fall below or exceed.

    Attributes:
        least, most: ranks.
        energy: share of an adapter's energy that stays, from 0 to 1.
    """

    least: int
    most: int
    energy: float


def rank_for_energy(energies: Sequence[float], share: float, least: int) -> int:
    """Return the smallest rank, not below `least`, that keeps this share of the energy.

    An adapter that has learnt nothing yet keeps its rank: nobody knows what it will need.
    """
    total = sum(energies)
    if not total > 0:
        return len(energies)
    kept, rank = 0.0, 0
    for energy in energies:
        if kept >= share * total:
            break
        kept, rank = kept + energy, rank + 1
    return min(max(rank, least), max(len(energies), 1))


def all_to(layers: Sequence[Layer], rank: int) -> Ranks:
    """Every adapter in one rank."""
    return {layer.name: rank for layer in layers}


def shrunk(layers: Sequence[Layer], limits: Limits) -> Ranks:
    """Every adapter in the smallest rank that keeps its share of energy."""
    return {layer.name: rank_for_energy(layer.energies, limits.energy, limits.least) for layer in layers}


def moved(layers: Sequence[Layer], limits: Limits) -> Ranks:
    """Ranks move from where little energy is lost to where gradients are largest; the parameters do not get more.

    Adapters with gradients below the median give the directions that hold least, as far as `limits` allow. Those above
    it take, the largest gradient first, at most a quarter of their rank and 1.

    Returns:
        A rank for each adapter; the old ones where nobody can give or nobody can take.
    """
    old = {layer.name: layer.rank for layer in layers}
    # Gradients first, names to settle what is equal: the same on all ranks, whatever the order of the layers.
    order = sorted(layers, key=lambda layer: (-layer.gradient, layer.name))
    takers, givers = order[: len(order) // 2], order[len(order) // 2 :]
    spare = {layer.name: layer.rank - rank_for_energy(layer.energies, limits.energy, limits.least) for layer in givers}
    room = {layer.name: min(limits.most - layer.rank, max(1, layer.rank // 4)) for layer in takers}
    cost = {layer.name: layer.rank_params for layer in layers}
    given, wanted = sum(spare[x.name] * cost[x.name] for x in givers), 0
    new = dict(old)
    for layer in takers:
        count = max(0, min(room[layer.name], (given - wanted) // cost[layer.name]))
        new[layer.name] += count
        wanted += count * cost[layer.name]
    # The directions with least energy are given first, and no more than are taken.
    offers = sorted(
        (energy, layer.name) for layer in givers for energy in layer.energies[layer.rank - max(0, spare[layer.name]) :]
    )
    for _, name in offers:
        if wanted <= 0:
            break
        new[name] -= 1
        wanted -= cost[name]
    return new
