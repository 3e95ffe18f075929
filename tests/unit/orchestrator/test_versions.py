"""`--version`: what a report of a bug needs, without importing what takes seconds."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.versions import SHOWN, VERSION, versions


def test_versions_are_those_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"trainmaster {VERSION}"
    shown = {line.split()[0]: line.split()[1] for line in lines[1:]}
    assert shown["torch"] == importlib.metadata.version("torch")
    assert set(SHOWN) <= set(shown)
    assert main(["-V", "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["packages"]["trl"] == importlib.metadata.version("trl")
    assert body["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_version_is_that_of_the_distribution() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'\nversion = "{VERSION}"\n' in text


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from orchestrator.cli import main; main(['--version']);"
        "print([name for name in ('torch', 'transformers', 'pynvml', 'numpy', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Jan 17 2025\nGCC version: 12.2.0\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
    ],
)
def test_the_driver_is_read_from_the_kernel(tmp_path: Path, text: str) -> None:
    assert versions(tmp_path)["driver"] is None
    path = tmp_path / "proc" / "driver" / "nvidia" / "version"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert versions(tmp_path)["driver"] == "570.86.15"


def test_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "all"]) == 2
    assert "format=text|json" in capsys.readouterr().err
