"""The generated pages of docs/reference are those of the configuration as it is."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", REFERENCE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_up_to_date(make: ModuleType) -> None:
    names = make.stale()
    assert not names, f"{', '.join(names)}: run `python docs/reference/make.py` and commit what it writes"


def test_each_key_has_a_text(make: ModuleType) -> None:
    rows = [line for line in make.configuration().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert not [line for line in rows if re.search(r"\|\s*\|$", line)], "put a comment under the key in configs/"


def test_each_verb_has_a_line(make: ModuleType) -> None:
    text = make.command_line()
    assert all(f"| `{verb.name}` |" in text for verb in make.VERBS)


def test_comments_belong_to_the_keys_above_them(make: ModuleType) -> None:
    text = (
        "a: 1\n# First.\n\nb: 2\nc: 3\n# Both,\n# in two lines.\n\n# About nothing.\n\nd:\n  e: 4\n  # Inner.\nf: 5\n"
    )
    found = make.comments_of(text)
    assert found == {"a": "First.", "b": "Both, in two lines.", "c": "Both, in two lines.", "d.e": "Inner."}


def test_defaults_are_shown_as_they_are_typed(make: ModuleType) -> None:
    shown = [make.default_of(value) for value in (True, 0.05, "", [None, "a"], "???")]
    assert shown == ["`true`", "`0.05`", "empty", "`[None,a]`", "must be given"]


def test_a_page_that_is_missing_or_changed_is_stale(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "HERE", tmp_path)
    assert make.stale() == list(make.PAGES)
    for name, write in make.PAGES.items():
        (tmp_path / name).write_text(write(), encoding="utf-8")
    assert make.stale() == []
    (tmp_path / "command-line.md").write_text("old", encoding="utf-8")
    assert make.stale() == ["command-line.md"]
