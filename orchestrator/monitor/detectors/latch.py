"""Says a thing once: after some readings in a row that show it, and again only after some in a row that do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """How often in a row a reading was bad or good.

    Attributes:
        bad, good: readings of the kind in a row; one of them is 0.
        is_raised: it was said and is not over.
    """

    bad: int = 0
    good: int = 0
    is_raised: bool = False

    def turn(self, *, bad: bool, good: bool | None = None, raise_after: int = 1, clear_after: int = 1) -> Latch:
        """Take one more reading; one that is neither bad nor good (between two thresholds) ends both rows."""
        good = not bad if good is None else good
        bads, goods = (self.bad + 1 if bad else 0), (self.good + 1 if good and not bad else 0)
        is_raised = goods < clear_after if self.is_raised else bads >= raise_after
        return Latch(bad=bads, good=goods, is_raised=is_raised)

    def says(self, before: Latch) -> bool:
        """Whether it has just been raised."""
        return self.is_raised and not before.is_raised


QUIET: Final = Latch()
