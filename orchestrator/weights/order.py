"""The order in which decoder layers are used: known beforehand, since a training step is a fixed sweep."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.errors import Problem, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A round of uses that repeats for ever.

    Attributes:
        uses: layers by index, in the order of one round.
    """

    uses: tuple[int, ...]
    _places: dict[int, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the round.

        Raises:
            UserError: nothing is used.
        """
        if not self.uses:
            remedy = "Give the layers in the order of their use."
            raise UserError(Problem(where="order of layers", found="no layer is used", remedy=remedy))
        places: dict[int, list[int]] = {}
        for place, layer in enumerate(self.uses):
            places.setdefault(layer, []).append(place)
        object.__setattr__(self, "_places", {layer: tuple(found) for layer, found in places.items()})

    def distance(self, layer: int, position: int) -> int | None:
        """Uses from `position` to the next use of `layer`, at least 1; None if the round leaves it out.

        Args:
            layer: its index.
            position: place in the round of the present use; -1 before the first.
        """
        places = self._places.get(layer)
        if places is None:
            return None
        at = bisect_right(places, position)
        return places[at] - position if at < len(places) else places[0] + len(self.uses) - position

    def place(self, layer: int, position: int) -> int:
        """Place in the round of the next use of `layer`; `position` if the round leaves it out."""
        distance = self.distance(layer, position)
        return position if distance is None else (position + distance) % len(self.uses)

    def ahead(self, position: int) -> Iterator[int]:
        """Layers after `position`, each once, nearest use first."""
        seen: set[int] = set()
        for step in range(1, len(self.uses) + 1):
            layer = self.uses[(position + step) % len(self.uses)]
            if layer not in seen:
                seen.add(layer)
                yield layer


def sweeps(layers: int, *, backward: bool) -> Order:
    """Order of a training micro-step (forward, then backward), or of evaluation (forward alone).

    Args:
        layers: how many there are.
        backward: the last layer's backward pass follows its forward pass, and so on to the first.
    """
    forward = tuple(range(layers))
    return Order(uses=forward + forward[::-1] if backward else forward)
