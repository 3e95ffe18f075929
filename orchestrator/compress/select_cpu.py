"""Places of the largest magnitudes of each chunk, for tensors in host memory: exact, in about two passes over memory.

1. Elements are put into groups, 4,096 / groups of them each, and the largest of every group is found.
2. The kept-th largest of these is a bound: so many groups have an element at or above it, so the kept-th largest of the
   whole chunk is not below it. Few elements reach the bound: for normal gradients at 1%, 43 where 40 are kept.
3. Among those the exact choice is made.

Work goes in tiles that stay in the core's own cache. Everything is compared as whole numbers: see
`orchestrator.compress.topk`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.planner.compression import CHUNK

_Ints = npt.NDArray[np.int32]
_Flags = npt.NDArray[np.bool_]
_Places = npt.NDArray[np.int64]
_MAGNITUDE: Final = np.int32(0x7FFFFFFF)
_PLACE_BITS: Final = 12
TILE: Final = 64  # chunks: 1 MiB, and as much again for their magnitudes
_GROUPS_PER_KEPT: Final = 4
_FEWEST_GROUPS: Final = 256
_MOST_GROUPS: Final = 2048  # groups of two elements; above, chunks are searched as they are
_CROWDED: Final = 4  # times as many candidates as are kept: most are equal, as in a chunk of zeros


def largest(x: npt.NDArray[np.float32], kept: int) -> _Places:
    """Places of the `kept` largest magnitudes of each row, ascending; of equal ones the lower place goes first.

    Args:
        x: [chunks, 4096], contiguous.
        kept: of each, less than 4096.

    Returns:
        [chunks, kept].
    """
    bits = x.view(np.int32)
    places = np.empty((len(x), kept), np.int64)
    magnitude = np.empty((min(TILE, len(x)), CHUNK), np.int32)
    for begin in range(0, len(x), TILE):
        tile = bits[begin : begin + TILE]
        np.bitwise_and(tile, _MAGNITUDE, out=magnitude[: len(tile)])
        places[begin : begin + TILE] = _of_tile(magnitude[: len(tile)], kept)
    return places


def _of_tile(magnitude: _Ints, kept: int) -> _Places:
    bound = _bound(magnitude, kept)
    found = np.flatnonzero(magnitude >= bound)
    rows = len(magnitude)
    if len(found) == rows * kept:  # each row has at least as many as are kept, so each has exactly as many
        return (found & (CHUNK - 1)).reshape(rows, kept)
    row = found >> _PLACE_BITS
    counts = np.bincount(row, minlength=rows)
    crowded = counts > _CROWDED * kept
    if crowded.any():  # one such row would make the table of candidates wide for all
        places = np.empty((rows, kept), np.int64)
        for at in np.flatnonzero(crowded):
            places[at] = _of_row(magnitude[at], kept, bound[at, 0])
        if not crowded.all():
            places[~crowded] = _of_tile(magnitude[~crowded], kept)
        return places
    return _trimmed(magnitude.reshape(-1)[found], found, row, counts, kept)


def groups_for(kept: int) -> int:
    """Into how many groups the elements of a chunk go; as many as there are elements where groups save nothing."""
    groups = _FEWEST_GROUPS
    while groups < _GROUPS_PER_KEPT * kept:
        groups *= 2
    return groups if groups <= _MOST_GROUPS else CHUNK


def _bound(magnitude: _Ints, kept: int) -> _Ints:
    """For each row a number [rows, 1] that its kept-th largest is not below."""
    groups = groups_for(kept)
    tops: _Ints = magnitude
    if groups < CHUNK:
        tops = np.maximum.reduce(magnitude.reshape(len(magnitude), -1, groups), axis=1)
    at = groups - kept
    bound: _Ints = np.partition(tops, at, axis=1)[:, at : at + 1]
    return bound


def _trimmed(magnitude: _Ints, found: _Places, row: _Places, counts: _Places, kept: int) -> _Places:
    """The kept largest of the candidates of each row.

    Args:
        magnitude: of each candidate.
        found: their places in the tile, ascending: row * 4096 + place.
        row: of each.
        counts: candidates of each row.
        kept: of each row.
    """
    rows = len(counts)
    begins = np.cumsum(counts) - counts
    padded = np.full((rows, int(counts.max())), -1, np.int32)
    padded[row, np.arange(len(found)) - begins[row]] = magnitude
    at = padded.shape[1] - kept
    exact = np.partition(padded, at, axis=1)[:, at]  # of each row the kept-th largest
    mine = exact[row]
    keep = magnitude >= mine
    if np.count_nonzero(keep) > rows * kept:  # equal to the kept-th largest, and more than there is room for
        keep = _first_of_equal(magnitude > mine, keep, row, rows, kept)
    places: _Places = (found[keep] & (CHUNK - 1)).reshape(rows, kept)
    return places


def _first_of_equal(above: _Flags, keep: _Flags, row: _Places, rows: int, kept: int) -> _Flags:
    """Of those that equal the kept-th largest, as many as there is room for, lower places first."""
    room = kept - np.bincount(row[above], minlength=rows)
    equal = keep & ~above
    before: _Places = np.cumsum(equal) - equal  # equal ones before each, over all rows
    counts = np.bincount(row[equal], minlength=rows)
    mine: _Places = before - (np.cumsum(counts) - counts)[row]
    return above | (equal & (mine < room[row]))


def _of_row(magnitude: _Ints, kept: int, bound: np.int32) -> _Places:
    """The same for one row with many equal elements, among them rows of zeros."""
    above = np.flatnonzero(magnitude > bound)
    if len(above) >= kept:
        at = CHUNK - kept
        bound = np.partition(magnitude, at)[at]
        above = np.flatnonzero(magnitude > bound)
    equal = np.flatnonzero(magnitude == bound)  # now the kept-th largest itself
    return np.sort(np.concatenate((above, equal[: kept - len(above)])))
