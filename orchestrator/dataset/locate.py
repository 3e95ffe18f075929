"""A path from the user -> the files to train on and to evaluate on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.dataset.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
FORMATS = "JSONL (.jsonl, .ndjson), JSON (.json), CSV (.csv), TSV (.tsv) and Parquet (.parquet)"
# Hub repositories name splits like this; shards look like train-00000-of-00004.parquet.
_TRAIN = re.compile(r"^train([-_.].*)?$", re.IGNORECASE)
# In the order of preference: with several of them, only the first kind found is the eval set.
_EVAL = tuple(
    re.compile(rf"^{name}([-_.].*)?$", re.IGNORECASE) for name in ("eval", "validation", "valid", "val", "dev", "test")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Files by purpose; `eval_files` is empty when the user gave none."""

    train_files: tuple[Path, ...]
    eval_files: tuple[Path, ...] = ()


def data_suffix(path: Path) -> str:
    """The extension that tells the format, in lower case, with `.gz` looked through."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def locate(path: Path) -> Located:
    """The files behind a file or directory.

    Raises:
        DataError: nothing there, or a directory in which the training file is not evident.
    """
    if path.is_file():
        return Located(train_files=(path,))
    if path.is_dir():
        return _locate_in_directory(path)
    problem = "it is neither a file nor a directory" if path.exists() else "there is no such file"
    raise DataError(path=path, line=None, problem=problem, remedy=_missing_remedy(path))


def _missing_remedy(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"The directory {parent} does not exist either; check the path for a typing error."
    siblings = sorted(p.name for p in parent.iterdir() if data_suffix(p) in SUFFIXES)[:5]
    seen = f"Data files in {parent}: {', '.join(siblings)}" if siblings else f"No data in {parent}"
    return f"{seen}. Set data to a file or to a directory that holds train.*"


def _locate_in_directory(path: Path) -> Located:
    files = sorted(p for p in path.iterdir() if p.is_file() and data_suffix(p) in SUFFIXES)
    train = tuple(p for p in files if _TRAIN.match(_stem(p)))
    evals = next((found for kind in _EVAL if (found := tuple(p for p in files if kind.match(_stem(p))))), ())
    if not train and len(files) == 1 and not evals:
        train = (files[0],)
    if train:
        return Located(train_files=train, eval_files=evals)
    names = ", ".join(p.name for p in files[:8]) or "no data file"
    raise DataError(
        path=path,
        line=None,
        problem=f"the directory has no train.* file; it holds {names}",
        remedy="Name the training file train.jsonl (or .json, .csv, .tsv, .parquet), or set data to one file.",
    )


def _stem(path: Path) -> str:
    return path.name.split(".", maxsplit=1)[0]
