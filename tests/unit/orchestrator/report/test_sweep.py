"""A sweep's plans side by side."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import main
from orchestrator.compose import compose
from orchestrator.config import RunConfig
from orchestrator.hydra_run import Trial
from orchestrator.inputs import Inputs, gather, located
from orchestrator.overrides import quote
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan, dumps
from orchestrator.planner.solve import Asked
from orchestrator.planner.view import view_of
from orchestrator.report.plan_svg import _contrast, plan_svg
from orchestrator.report.sweep import csv_text, rows_of, table_text

ROOT = Path(__file__).parents[4]


def _asked(*overrides: str) -> tuple[RunConfig, Inputs]:
    config = located(compose(["experiment=demo", *overrides])[0])
    return config, gather(config, by_name=True)


def _plan(*overrides: str) -> Plan:
    config, inputs = _asked(*overrides)
    return make_plan(config, inputs.topology, inputs.model, inputs.data, "test")


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    small, large = (dumps(_plan("topology=2x24gb-pcie", "devices=2", f"adapter.rank={rank}")) for rank in (8, 64))
    common = ("experiment=demo", "save=x.json")
    return [
        Trial(overrides=(*common, "adapter.rank=8"), code=0, document=small),
        Trial(overrides=(*common, "adapter.rank=64"), code=0, document=large),
        Trial(overrides=(*common, "adapter.rank=9999"), code=3, document=""),
    ]


def test_table_has_a_line_for_each_trial_and_the_swept_key_alone(trials: list[Trial]) -> None:
    lines = table_text(rows_of(trials)).splitlines()
    assert lines[0].split()[:2] == ["adapter.rank", "step"]
    assert [line.split()[0] for line in lines[1:]] == ["8", "64", "9999"]
    assert "experiment" not in lines[0]
    assert "nothing fits" in lines[3]
    assert sum("most tokens/s" in line for line in lines) >= 1


def test_csv_reads_back(trials: list[Trial]) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(rows_of(trials)))))
    assert [row["adapter.rank"] for row in rows] == ["8", "64", "9999"]
    assert float(rows[0]["step_seconds"]) > 0
    assert int(rows[0]["device_bytes"]) < int(rows[1]["device_bytes"])
    assert (rows[2]["step_seconds"], rows[2]["note"]) == ("", "nothing fits")


def test_what_a_trial_left_damaged_is_a_note() -> None:
    (row,) = rows_of([Trial(overrides=("seed=1",), code=0, document="{")])
    assert row.plan is None
    assert "no JSON" in row.note


@pytest.mark.parametrize("overrides", [("topology=2x24gb-pcie", "devices=2", "engine=zero3"), ("topology=cpu",)])
def test_picture_shows_every_term_and_is_xml(overrides: tuple[str, ...]) -> None:
    config, inputs = _asked(*overrides)
    plan = make_plan(config, inputs.topology, inputs.model, inputs.data, "test")
    view = view_of(Asked(config=config, topology=inputs.topology, model=inputs.model, data=inputs.data))
    assert view is not None
    picture = plan_svg(plan, view)
    assert picture == plan_svg(plan, view)
    root = ET.fromstring(picture)
    shown = " ".join(element.text or "" for element in root.iter())
    assert plan.chosen.strategy.label in shown
    for term in plan.chosen.estimate.time_terms:
        assert term.name in shown
    assert all(phase in shown for phase in ("load", "train", "save"))
    assert sum(bar.count for bar in view.bars) == plan.chosen.strategy.world_size
    (bar,) = [bar for bar in view.bars if bar.rows == max(plan.chosen.strategy.shares)]
    assert {name: size for name, _, size in bar.phases}["train"] == plan.chosen.estimate.memory.train.device_bytes
    assert not re.search(r'"[^"]*(?:nan|inf)', picture)


def test_a_sweep_ends_with_one_table_and_a_csv(tmp_path: Path) -> None:
    """Through the command line: two trials that fit, and one that does not."""
    command = [sys.executable, "-m", "orchestrator.cli", "plan", "-m", "experiment=demo", "topology=1x24gb"]
    command += ["devices=1", "model=llama-3-8b", "data.seq_len=4096", "data.packing=true", "batch.micro=1,16"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 3, done.stderr
    (path,) = tmp_path.glob("runs/plan-sweep-*/sweep.csv")
    assert f"This table: {path.relative_to(tmp_path)}" in done.stdout
    rows = list(csv.DictReader(path.open()))
    assert [(row["batch.micro"], bool(row["step_seconds"])) for row in rows] == [("1", True), ("16", False)]
    assert rows[1]["note"] == "nothing fits"
    table = done.stdout.split("\nbatch.micro")[1].splitlines()
    assert len(table) == 4
    assert "way out 1: batch.micro=auto" in done.stderr


def test_picture_of_a_plan_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.svg"
    assert main(["plan", "experiment=demo", "topology=dgx_h100", "devices=0", f"picture={path}"]) == 0
    assert ET.fromstring(path.read_text()).tag.endswith("svg")
    assert main(["plan", "experiment=demo", f"picture={tmp_path}/plan.png"]) == 2
    assert "SVG" in capsys.readouterr().err


@given(value=st.text(alphabet="ab'\"\\${} ,=", max_size=12))
def test_values_are_shown_as_they_were_typed(value: str) -> None:
    """Hydra's grammar needs quotes; nobody typed them."""
    trials = [Trial(overrides=(f"model.path={quote(x)}",), code=2, document="") for x in (value, value + "!")]
    rows = rows_of(trials)
    assert [row.values for row in rows] == [(("model.path", value),), (("model.path", value + "!"),)]


def test_a_swept_model_has_no_quotes(trials: list[Trial]) -> None:
    named = [replace(trial, overrides=(f"model.path='{name}'",)) for trial, name in zip(trials, "abc", strict=True)]
    rows = rows_of(named)
    assert "'" not in table_text(rows).split("micro-batch")[0]
    assert [line.split(",")[0] for line in csv_text(rows).splitlines()] == ["model.path", "a", "b", "c"]


def test_every_part_of_a_plan_stands_out_from_the_page() -> None:
    config, inputs = _asked("topology=2x24gb-pcie")
    view = view_of(Asked(config=config, topology=inputs.topology, model=inputs.model, data=inputs.data))
    assert view is not None
    plan = make_plan(config, inputs.topology, inputs.model, inputs.data, "test")
    picture = plan_svg(plan, view)
    assert "what a plan may fill" in picture
    assert "all the device has" in picture
    for colour in [*plan_colours(picture, "fill", "stroke")]:
        assert max(map(_contrast, colour)) >= 3, colour
    assert _contrast("#ffffff") == pytest.approx(1)
    assert _contrast("#000000") == pytest.approx(21)


def plan_colours(picture: str, *keys: str) -> list[list[str]]:
    """Fill and outline of each rectangle that tells something (of a part, or of the legend)."""
    found = []
    for node in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}rect"):
        pair = [node.attrib[key] for key in keys if node.attrib.get(key, "none").startswith("#")]
        if pair and pair[0] not in {"#ffffff", "#f8fafc"}:  # the page, and empty lanes
            found.append(pair)
    assert found
    return found
