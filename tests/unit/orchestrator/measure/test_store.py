"""Which calibration a plan takes: the machine's own, the one named, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.calibration_file import Calibration, dumps
from orchestrator.calibration_store import cache_path, choose_calibration
from orchestrator.errors import UserError
from topology.fingerprint import fingerprint
from topology.model import Topology
from topology.presets import preset

Make = Callable[..., Calibration]
GEMM = {"gemm": {"bf16.4096": 2e14}}


@pytest.fixture
def machine() -> Topology:
    return preset("pcie_4090x2")


@pytest.fixture
def own(make_calibration: Make, machine: Topology) -> Calibration:
    return make_calibration(GEMM, device=machine.devices[0].name, fingerprint=fingerprint(machine), ranks=0, threads=0)


def keep(calibration: Calibration, root: Path, text: str | None = None) -> dict[str, str]:
    environ = {"XDG_CACHE_HOME": str(root)}
    path = cache_path(calibration.fingerprint, environ)
    path.parent.mkdir(parents=True)
    path.write_text(dumps(calibration) if text is None else text)
    return environ


def test_auto_takes_that_of_the_same_hardware(own: Calibration, machine: Topology, tmp_path: Path) -> None:
    environ = keep(own, tmp_path)
    chosen = choose_calibration("auto", machine, environ)
    assert chosen.calibration == own
    assert Path(chosen.path).is_relative_to(tmp_path)
    assert choose_calibration("none", machine, environ).calibration is None
    assert choose_calibration("auto", preset("pcie_4090x8"), environ).calibration is None


def test_auto_goes_on_without_a_damaged_one_and_says_so(own: Calibration, machine: Topology, tmp_path: Path) -> None:
    environ = keep(own, tmp_path, text="{")
    chosen = choose_calibration("auto", machine, environ)
    assert chosen.calibration is None
    assert "not used" in chosen.warnings[0]
    assert "no JSON" in chosen.warnings[0]


def test_a_file_that_was_renamed_is_not_taken_for_this_machine(own: Calibration, tmp_path: Path) -> None:
    other = preset("pcie_4090x8")
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    path = cache_path(fingerprint(other), environ)
    path.parent.mkdir(parents=True)
    path.write_text(dumps(own))
    chosen = choose_calibration("auto", other, environ)
    assert chosen.calibration is None
    assert "of another machine" in chosen.warnings[0]


def test_a_named_file_serves_more_of_the_same_cards(own: Calibration, machine: Topology, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(dumps(own))
    same = choose_calibration(str(path), machine, {})
    assert (same.calibration, same.warnings) == (own, ())
    more = choose_calibration(str(path), preset("pcie_4090x8"), {})
    assert more.calibration == own
    assert "another machine (host)" in more.warnings[0]


def test_a_named_file_of_other_cards_is_refused(own: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(dumps(own))
    with pytest.raises(UserError, match=r"measured on .*4090, and this machine has .*H100"):
        choose_calibration(str(path), preset("dgx_h100"), {})


def test_what_belongs_to_no_device_serves_every_machine(make_calibration: Make, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(dumps(make_calibration({"stack": {"trl.logit_bytes": 2.5}})))
    assert choose_calibration(str(path), preset("dgx_h100"), {}).calibration is not None


@pytest.mark.parametrize(
    "content", [None, b"\xff\xfe", b"{}", b"x" * (17 * 2**20)], ids=["missing", "bytes", "empty", "large"]
)
def test_a_named_file_that_is_none_is_refused(machine: Topology, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as found:
        choose_calibration(str(path), machine, {})
    assert found.value.problems[0].where.startswith(f"calibration={path}")


def test_the_cache_folder_follows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_path("ab", {"XDG_CACHE_HOME": "/c"}) == Path("/c/trainmaster/calibration/ab.json")
    assert cache_path("ab", {"XDG_CACHE_HOME": "relative"}) == Path("/home/me/.cache/trainmaster/calibration/ab.json")
    assert cache_path("ab", {}) == Path("/home/me/.cache/trainmaster/calibration/ab.json")
    monkeypatch.setenv("HOME", "nowhere")
    assert cache_path("ab", {}) is None
