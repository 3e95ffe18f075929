"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from topology.units import GIB, MIB, format_bytes

DASH: Final = "\u2013"
_KIB: Final = 1024
_MINUTE: Final = 60
_HOUR: Final = 3600
_PARTS: Final = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "\u00b5s"), (0.0, 1.0, "s"))
_LARGE: Final = 100_000
_SAME: Final = 0.02
_TWICE: Final = 1.8
_MANY: Final = 10


def size(nbytes: float | None) -> str:
    """Bytes in the largest unit that leaves more than one."""
    if nbytes is None:
        return DASH
    if nbytes >= GIB:
        return format_bytes(int(nbytes))
    if nbytes >= MIB:
        return f"{nbytes / MIB:.1f} MiB"
    return f"{nbytes / _KIB:.1f} KiB" if nbytes >= _KIB else f"{nbytes:.0f} B"


def short_size(nbytes: float) -> str:
    """Bytes on an axis, without a decimal that says nothing."""
    return "0" if nbytes == 0 else size(nbytes).replace(".0 ", " ")


def span(seconds: float | None) -> str:
    """Seconds in the unit that fits: 12.3 ms, 1.25 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if abs(seconds) < _MINUTE:
        return next(f"{seconds * times:.3g} {unit}" for least, times, unit in _PARTS if abs(seconds) >= least)
    if abs(seconds) < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"
    return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return DASH if value is None or not math.isfinite(value) else f"{value:,.0f}"


def loss(value: float | None) -> str:
    """A loss with the digits that matter."""
    if value is None:
        return DASH
    return f"{value:.4f}" if math.isfinite(value) else "not a number"


def short(value: float) -> str:
    """A number on an axis."""
    if value == 0:
        return "0"
    if abs(value) >= _LARGE:
        power, sign = next(step for step in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(value) >= step[0])
        return f"{value / power:.4g}{sign}"
    return f"{value:,.10g}" if abs(value) >= 1e-4 else f"{value:.0e}"  # noqa: PLR2004


def deviation(predicted: float | None, measured: float | None) -> float | None:
    """Measured over predicted, minus one; None where there is nothing to compare."""
    return None if not predicted or measured is None else measured / predicted - 1


def percent(share: float | None) -> str:
    """A deviation with its sign; factors where percent would be hard to read."""
    if share is None:
        return DASH
    if share >= 4:  # noqa: PLR2004 - +400%
        return f"\u00d7{share + 1:.3g}"
    return f"{share:+.0%}".replace("-", "\u2212") if round(share, 2) else "\u00b10%"


def compared(share: float | None) -> str:
    """A deviation in words: 19% less than planned, twice what was planned."""
    if share is None:
        return ""
    if abs(share) < _SAME:
        return "as planned"
    if share + 1 >= _TWICE:
        times = f"{share + 1:.3g}" if share < _MANY else f"{share + 1:.0f}"
        return "twice what was planned" if times.startswith("2.0") else f"{times} times what was planned"
    return f"{abs(share):.0%} {'more' if share > 0 else 'less'} than planned"


def several(number: int, noun: str, plural: str = "") -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def moment(time: object) -> str:
    """A time of day in UTC."""
    if not isinstance(time, int | float) or not math.isfinite(time):
        return DASH
    try:
        return datetime.fromtimestamp(time, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return DASH


def number(value: object) -> float | None:
    """A finite number from JSON, else None."""
    if type(value) is float:  # nearly always, and asked a million times for a long run
        return value if value - value == 0 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def inside(body: object, *names: str) -> Any:  # noqa: ANN401 - a JSON value
    """Return what stands under the names in nested objects; None where a step is missing."""
    for name in names:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def listed(value: object) -> Sequence[Any]:
    """A list from JSON; empty for anything else."""
    return value if isinstance(value, list | tuple) else ()
