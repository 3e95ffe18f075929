"""Composes topology and launch: plans a fine-tune, starts it, watches it, reports it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def _pin(name: str) -> None:
    """Bind a package of ours to its own folder: on PYTHONPATH a user's folder of that common name may come first."""
    known = sys.modules.get(name)
    start = _ROOT / name / "__init__.py"
    if known is not None and known.__file__ is not None and Path(known.__file__).resolve() == start:
        return
    spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[str(start.parent)])
    if spec is None or spec.loader is None or not start.is_file():
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


for _name in ("topology", "launch"):
    _pin(_name)
