"""The sources of a mixture, as `data.sources` lists them, and the rules between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.config_options import Shape
from orchestrator.errors import Problem

MAX_WEIGHT: Final = 1_000_000  # far above any use: what an epoch holds must stay a number


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """One source of rows.

    Attributes:
        path: file or folder, as `data=PATH` takes it.
        name: what reports call it; empty: the name of the file.
        weight: times a row is seen in an epoch; None: once, unless there is a share.
        share: part of the rows of an epoch that comes from here (of the blocks, where rows are packed).
        eval_path, shape, max_rows: as in `data`.
        eval_fraction: part of the rows to hold out; None: that of `data`.
    """

    path: str
    name: str = ""
    weight: float | None = None
    share: float | None = None
    eval_path: str = ""
    eval_fraction: float | None = None
    shape: Shape = Shape.auto
    max_rows: int = 0


def check_sources(sources: Sequence[SourceConfig]) -> Iterator[Problem]:
    """Yield one problem for each rule that they break, alone and together."""
    for at, source in enumerate(sources):
        yield from _check_one(f"data.sources[{at}]", source)
    shares = [source.share for source in sources if source.share is not None]
    if not shares or any(not 0 < share <= 1 for share in shares):
        return
    total = sum(shares)
    is_whole = math.isclose(total, 1.0, abs_tol=1e-6)
    if total > 1 and not is_whole:
        found = f"the shares add up to {total:g}"
        yield Problem(where="data.sources", found=found, remedy="Lower them: together they may be 1 at most.")
    elif len(shares) < len(sources) and is_whole:
        found = f"the shares add up to 1, which leaves nothing for the {len(sources) - len(shares)} others"
        yield Problem(where="data.sources", found=found, remedy="Lower the shares, or give each source one.")
    elif len(shares) == len(sources) and not is_whole:
        found = f"the shares add up to {total:g}, and no source takes the rest"
        yield Problem(where="data.sources", found=found, remedy="Let them add up to 1, or leave one source without.")


def _check_one(where: str, source: SourceConfig) -> Iterator[Problem]:
    if not source.path:
        yield Problem(
            where=f"{where}.path", found="no path given", remedy="Give a file or a folder: {path: rows.jsonl}."
        )
    if source.weight is not None and source.share is not None:
        found = f"found weight {source.weight:g} and share {source.share:g}"
        yield Problem(where=where, found=found, remedy="Give one of the two.")
    if source.weight is not None and not 0 < source.weight <= MAX_WEIGHT:
        remedy = f"Give a number above 0, up to {MAX_WEIGHT:,}, or take the source away."
        yield Problem(where=f"{where}.weight", found=f"found {source.weight:g}", remedy=remedy)
    if source.share is not None and not 0 < source.share <= 1:
        remedy = "Give a number above 0, up to 1."
        yield Problem(where=f"{where}.share", found=f"found {source.share:g}", remedy=remedy)
    if source.eval_fraction is not None and not 0 <= source.eval_fraction < 1:
        remedy = "Give a number from 0 up to, not including, 1."
        yield Problem(where=f"{where}.eval_fraction", found=f"found {source.eval_fraction:g}", remedy=remedy)
    if source.max_rows < 0:
        yield Problem(where=f"{where}.max_rows", found=f"found {source.max_rows}", remedy="Give 0 or more.")
