"""Keys that would silently do nothing."""

from __future__ import annotations

import pytest

from orchestrator.doctor import check_arguments


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["load=false", "format=json", "save=out.json"],
        ["+load=false"],
        ["--cfg", "job"],
        ["load=false", "hydra.verbose=true", "--help"],
    ],
)
def test_its_own_keys_and_flags_are_taken(arguments: list[str]) -> None:
    assert check_arguments(arguments) == []


@pytest.mark.parametrize(
    "item", ["topology=dgx_h100", "picture=a.svg", "runs/first", "run_dir=x", "model.path=y", "++nodes=4", "~model"]
)
def test_other_keys_are_refused(item: str) -> None:
    (problem,) = check_arguments([item, "load=false"])
    assert problem.where == item
    assert "load=, format= and save=" in problem.remedy
    assert ("trainmaster probe" in problem.remedy) == item.startswith("topology")


def test_all_of_them_are_told_in_one_line() -> None:
    (problem,) = check_arguments(["topology=a.json", "load=false", "picture=b.svg"])
    assert str(problem).startswith("topology=a.json, picture=b.svg: ")
    assert "\n" not in str(problem)
