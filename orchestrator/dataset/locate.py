"""A path from the user -> the files to train on and to evaluate on."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.dataset.disk import exists, is_file, is_folder, names_in
from orchestrator.dataset.errors import DataError
from orchestrator.errors import Problem, UserError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
FORMATS = "JSONL (.jsonl, .ndjson), JSON (.json), CSV (.csv), TSV (.tsv) and Parquet (.parquet)"
_MAX_NAMES = 5
_MAX_COMPARED = 1000  # comparing names is slow, and a folder may hold a million
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


def locate(path: Path, key: str = "data") -> Located:
    """The files behind a file or directory.

    Args:
        path: from the user.
        key: the key of the configuration that holds the path.

    Raises:
        UserError: nothing there, no access, or a directory in which the training file is not evident.
    """
    if is_file(path):
        return Located(train_files=(path,))
    if is_folder(path):
        return _locate_in_directory(path, key)
    problem = "it is neither a file nor a directory" if exists(path) else "there is no such file"
    raise DataError(path=path, line=None, problem=problem, remedy=_missing_remedy(path, key))


def locate_sides(path: Path, eval_path: Path | None, key: str = "data") -> Located:
    """The files of both sides; a separate eval path wins over a directory's own eval files.

    `key` of the configuration is `data`, or an entry of `data.sources`.

    Raises:
        UserError: what is wrong with the two paths, together.
    """
    problems: list[Problem] = []
    sides: list[Located] = []
    for name, side in ((key if key == "data" else f"{key}.path", path), (f"{key}.eval_path", eval_path)):
        if side is None:
            continue
        try:
            sides.append(locate(side, name))
        except UserError as error:
            problems.extend(error.problems)
    if problems:
        raise UserError(*problems)
    if eval_path is None:
        return sides[0]
    given = sides[1]
    return Located(train_files=sides[0].train_files, eval_files=given.eval_files or given.train_files)


def _missing_remedy(path: Path, key: str) -> str:
    parent = path.parent
    if not is_folder(parent):
        return f"The directory {parent} does not exist either; check the path for a typing error."
    siblings = _nearest_first(path.name, [name for name in names_in(parent) if data_suffix(Path(name)) in SUFFIXES])
    seen = f"Data files in {parent}: {', '.join(siblings)}" if siblings else f"No data in {parent}"
    return f"{seen}. Set {key} to a file or to a directory that holds train.jsonl (or another format)."


def _nearest_first(name: str, names: list[str]) -> list[str]:
    return difflib.get_close_matches(name, names[:_MAX_COMPARED], n=_MAX_NAMES, cutoff=0.0)


def _locate_in_directory(path: Path, key: str) -> Located:
    names = [Path(name) for name in names_in(path)]
    files = tuple(path / name for name in names if data_suffix(name) in SUFFIXES and is_file(path / name))
    train = tuple(p for p in files if _TRAIN.match(_stem(p)))
    evals = next((found for kind in _EVAL if (found := tuple(p for p in files if kind.match(_stem(p))))), ())
    if not train and len(files) == 1 and not evals:
        train = (files[0],)
    if key.endswith(".eval_path") and evals:
        return Located(train_files=(), eval_files=evals)
    if train:
        return Located(train_files=train, eval_files=evals)
    shown = ", ".join(p.name for p in files[:8]) or "no data file"
    raise DataError(
        path=path,
        line=None,
        problem=f"the directory has no train.* file; it holds {shown}",
        remedy=f"Name the file train.jsonl (or .json, .csv, .tsv, .parquet), or set {key} to one file.",
    )


def _stem(path: Path) -> str:
    return path.name.split(".", maxsplit=1)[0]
