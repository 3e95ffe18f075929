"""Which GPUs CUDA_VISIBLE_DEVICES leaves, by CUDA's rules: a pure function of the text and the UUIDs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Positions of the visible GPUs, in the order CUDA will number them, and what is worth telling."""

    positions: tuple[int, ...]
    notes: tuple[str, ...] = ()


def select_visible(uuids: Sequence[str | None], text: str | None) -> Visible:
    """Apply the text: indices, UUIDs and unique UUID prefixes, comma-separated.

    CUDA stops at the first entry it cannot resolve (`-1` is the customary one), keeps those before it, and
    shows no GPU at all if one is named twice.
    """
    if text is None:
        return Visible(positions=tuple(range(len(uuids))))
    shown = f"CUDA_VISIBLE_DEVICES={text!r}"
    positions: list[int] = []
    notes: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        position, fault = _resolve(entry, uuids)
        if position is None:
            # An empty text or -1 is how one asks for no GPU: no fault to explain.
            notes += [] if entry in {"", "-1"} else [f"{shown}: {entry!r} {fault}; CUDA ignores it and what follows"]
            break
        if position in positions:
            note = f"{shown}: {entry!r} names GPU {position} a second time; CUDA then shows no GPU"
            return Visible(positions=(), notes=(note,))
        positions.append(position)
    if not positions and uuids:
        notes.append(f"{shown} hides all {len(uuids)} GPU(s) of this host")
    return Visible(positions=tuple(positions), notes=tuple(notes))


def _resolve(entry: str, uuids: Sequence[str | None]) -> tuple[int | None, str]:
    if entry.isdecimal():
        index = int(entry)
        return (index, "") if index < len(uuids) else (None, f"is no index below {len(uuids)}")
    if not entry.startswith("GPU-"):
        return None, "is neither an index nor a GPU UUID (MIG slices are not understood)"
    matches = [at for at, uuid in enumerate(uuids) if uuid is not None and uuid.lower().startswith(entry.lower())]
    if len(matches) == 1:
        return matches[0], ""
    return None, "fits no GPU" if not matches else f"fits {len(matches)} GPUs"
