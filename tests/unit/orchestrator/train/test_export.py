"""The finished adapter replaces an older one only when it is on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.train import export


class _Saved:
    """Stands for a model and for a tokenizer: leaves one file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def save_pretrained(self, folder: str, **_: object) -> None:
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / self.name).write_text('{"peft_type": "LORA"}')


def _save(folder: Path) -> None:
    model: Any = _Saved("adapter_config.json")
    tokenizer: Any = _Saved("tokenizer.json")
    export.save_adapter(model, tokenizer, {}, folder)


def test_everything_is_on_the_disk_before_the_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    rename = Path.rename
    monkeypatch.setattr(export, "sync", lambda path: done.append(f"sync {path.name}"))
    monkeypatch.setattr(Path, "rename", lambda own, to: (done.append(f"rename {own.name} {to.name}"), rename(own, to)))
    _save(tmp_path / "adapter")
    assert set(done[:2]) == {"sync adapter_config.json", "sync tokenizer.json"}
    assert done[2:] == ["sync .adapter.incomplete", "rename .adapter.incomplete adapter", f"sync {tmp_path.name}"]
    done.clear()
    (tmp_path / "adapter" / "old").touch()
    _save(tmp_path / "adapter")
    assert done[3:5] == ["rename adapter .adapter.old", "rename .adapter.incomplete adapter"]
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {"adapter_config.json", "tokenizer.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_the_old_adapter_stays_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refused(own: Path, to: Path) -> Path:
        if own.name.endswith(".incomplete"):
            raise OSError(5, "Input/output error")
        return rename(own, to)

    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "old").touch()
    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(UserError, match="could not write the adapter"):
        _save(tmp_path / "adapter")
    assert [path.name for path in tmp_path.rglob("*")] == ["adapter", "old"]
