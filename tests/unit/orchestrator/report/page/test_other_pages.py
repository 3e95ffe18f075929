"""The pages about two runs and about sweeps."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.report.page.document import load_assets
from orchestrator.report.page.parallel import parallel, uprights
from orchestrator.report.page.read_sweep import is_sweep, read_sweep
from orchestrator.report.page.sweep_page import sweep_page
from orchestrator.report.page.sweep_record import SweepRecord, tried
from orchestrator.report.trained import peak_of
from orchestrator.reporting import against_name, page_of

HOSTILE = "<script>alert(1)</script>"


def _trial(number: int, loss: float | None, **values: str) -> dict[str, Any]:
    return {
        "number": number,
        "overrides": [f"{key}={value}" for key, value in values.items()],
        "values": values,
        "status": "done" if loss is not None else "failed",
        "eval_loss_before": 5.0,
        "eval_loss_after": loss,
        "train_loss": loss,
        "steps": 8 if loss is not None else None,
        "step_seconds": 0.1 * (number + 1) if loss is not None else None,
        "tokens_per_second": 100.0,
        "peak_bytes": 2**30,
        "exit_code": 0 if loss is not None else 4,
        "reason": "" if loss is not None else "rank 0 ran out of memory",
        "devices": "",
        "run_dir": f"sweep/{number}",
    }


@pytest.fixture
def sweep_dir(tmp_path: Path, run_dir: Path) -> Path:
    folder = tmp_path / "sweep"
    shutil.copytree(run_dir, folder / "0")
    trials = [
        _trial(0, 3.5, **{"optimizer.lr": "0.001", "adapter.targets": HOSTILE}),
        _trial(1, 3.2, **{"optimizer.lr": "0.1", "adapter.targets": "all"}),
        _trial(2, None, **{"optimizer.lr": "1.0", "adapter.targets": "all"}),
    ]
    (folder / "sweep.json").write_text(json.dumps({"schema": 1, "folder": str(folder), "best": 1, "trials": trials}))
    (folder / "multirun.yaml").write_text(
        "hydra:\n  overrides:\n    hydra: []\n    task: ['optimizer.lr=0.001,0.1,1.0']\n"
    )
    return folder


def test_comparisons_with_trials_of_two_sweeps_have_names_of_their_own(run_dir: Path, tmp_path: Path) -> None:
    others = [tmp_path / name / "0" for name in ("sweepA", "sweepB", "deep/sweepA")]
    for other in others:
        shutil.copytree(run_dir, other)
    names = [page_of(str(run_dir), str(other)).path.name for other in others]
    assert len(set(names)) == 3
    assert names[0].startswith("report-against-sweepA-0-")
    assert names[1].startswith("report-against-sweepB-0-")
    assert against_name(run_dir, run_dir.parent / "x" / ".." / "b") == "report-against-b.html"
    assert against_name(run_dir, others[0].parent / "." / "0") == names[0]


def test_a_sweep_names_its_best_trial_and_why_others_failed(sweep_dir: Path) -> None:
    page = page_of(str(sweep_dir))
    assert page.kind == "sweep"
    assert page.path == sweep_dir / "report.html"
    assert "The best is trial 1 with optimizer.lr=0.1" in page.text
    assert "rank 0 ran out of memory" in page.text
    assert "trainmaster train -m optimizer.lr=0.001,0.1,1.0" in page.text
    assert "<script>alert" not in page.text
    assert page.text.count('data-trial="1"') == 2  # its line and its row
    assert 'href="0/report.html"' not in page.text  # that page was not made
    (sweep_dir / "0" / "report.html").write_text("")
    assert 'href="0/report.html"' in page_of(str(sweep_dir)).text


def test_axes_are_in_proportion_logarithmic_or_options(sweep_dir: Path) -> None:
    axes = {axis.name: axis for axis in uprights(read_sweep(sweep_dir))}
    assert axes["optimizer.lr"].places == pytest.approx((0.0, 2 / 3, 1.0))  # three powers of ten
    assert len(set(axes["adapter.targets"].places)) == 2
    assert axes["held-out loss"].places[2] is None
    assert list(axes)[-1] == "held-out loss"


def test_a_sweep_that_has_not_ended_is_told_from_its_trials(sweep_dir: Path, run_dir: Path) -> None:
    (sweep_dir / "sweep.json").unlink()
    shutil.copytree(run_dir, sweep_dir / "10")
    plan = json.loads((sweep_dir / "10" / "plan.json").read_text())
    plan["config"]["optimizer"]["lr"] = 0.5
    (sweep_dir / "10" / "plan.json").write_text(json.dumps(plan))
    (sweep_dir / "10" / "summary.json").unlink()
    assert is_sweep(sweep_dir)
    assert not is_sweep(run_dir)
    sweep = read_sweep(sweep_dir)
    assert [trial.number for trial in sweep.trials] == [0, 10]
    assert sweep.keys == ("optimizer.lr",)
    assert sweep.trials[0].loss == pytest.approx(3.6017, abs=1e-3)
    assert sweep.trials[1].status == "not ended"
    assert "The sweep has not ended" in page_of(str(sweep_dir)).text
    summary = json.loads((sweep_dir / "0" / "summary.json").read_text())
    assert sweep.trials[0].results["peak_bytes"] == peak_of(summary["measured"]["memory"])
    summary["measured"]["memory"] = {"train": {"device_bytes": 9, "host_bytes": 70}, "save": {"host_bytes": 80}, "x": 1}
    (sweep_dir / "0" / "summary.json").write_text(json.dumps(summary))
    assert read_sweep(sweep_dir).trials[0].results["peak_bytes"] == 9
    shutil.copytree(run_dir, sweep_dir / "11")
    (sweep_dir / "11" / "plan.json").write_text("{")
    sweep = read_sweep(sweep_dir)
    assert [dict(trial.values).keys() for trial in sweep.trials] == [{"optimizer.lr"}, {"optimizer.lr"}, set()]


@pytest.mark.parametrize(
    "trials", [[], [_trial(0, None, lr="1")], [_trial(0, 3.0)], [_trial(n, 3.0, lr="1") for n in range(3)]]
)
def test_sweeps_with_little_to_tell(trials: list[dict[str, Any]]) -> None:
    made = tuple(tried(one, "", ()) for one in trials)
    keys = tuple(dict.fromkeys(key for one in made for key in one.values))
    sweep = SweepRecord(name="s", folder="s", made=0.0, trials=made, keys=keys)
    assert sweep_page(sweep, version="1", assets=load_assets()).endswith("</html>\n")


def test_a_thousand_trials_stay_small() -> None:
    made = tuple(tried(_trial(n, 3.0 + n / 999, lr=str(0.001 * (n + 1))), "", ()) for n in range(1000))
    sweep = SweepRecord(name="s", folder="s", made=0.0, trials=made, keys=("lr",))
    assert len(sweep_page(sweep, version="1", assets=load_assets())) < 2_000_000
    assert parallel(sweep).count("<path") == 1000 + 4


def test_two_runs_side_by_side(run_dir: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run_dir, tmp_path / "other"))
    plan = json.loads((other / "plan.json").read_text())
    plan["config"]["seed"] = 7
    (other / "plan.json").write_text(json.dumps(plan))
    summary = json.loads((other / "summary.json").read_text())
    summary["eval_loss_after"] = 3.0
    (other / "summary.json").write_text(json.dumps(summary))
    page = page_of(str(run_dir), str(other))
    assert page.kind == "comparison"
    assert page.path == run_dir / "report-against-other.html"
    assert "The held-out loss of a_run is 20.1% higher (3.6017 against 3.0000), which is worse." in page.text
    rows = page.text.split('id="differences"')[1].split("</section>")[0]
    assert '<th scope="row">seed</th><td>0</td><td>7</td>' in rows
    assert "optimizer.lr" not in rows
    for one in ("r1-event-1", "r2-event-1", "r1-command", "r2-command"):
        assert page.text.count(f'id="{one}"') == 1


def test_a_run_against_itself_differs_in_nothing(run_dir: Path) -> None:
    text = page_of(str(run_dir), str(run_dir)).text
    assert "Both runs had the same settings" in text
    assert "The held-out loss is the same" in text


def test_a_sweep_is_not_compared_with_a_run(sweep_dir: Path, run_dir: Path) -> None:
    with pytest.raises(UserError, match="is a sweep"):
        page_of(str(sweep_dir), str(run_dir))


def test_a_sweep_record_is_a_value(sweep_dir: Path) -> None:
    sweep = read_sweep(sweep_dir)
    assert replace(sweep) == sweep
    assert sweep.best is not None
    assert sweep.best.number == 1


def test_a_sweep_of_plans_is_told_from_its_table(tmp_path: Path) -> None:
    head = "adapter.rank,model,step_seconds,tokens_per_second,device_bytes,host_bytes,devices,engine,strategy,note"
    rows = [
        "8,llama,0.5,2000,1073741824,1,2,ddp,ddp on 2 ranks,",
        "16,llama,0.4,2500,2147483648,1,2,ddp,ddp on 2 ranks,",
        f"64,{HOSTILE},,,,,,,,nothing fits",
    ]
    (tmp_path / "sweep.csv").write_text("\n".join([head, *rows]) + "\n")
    text = page_of(str(tmp_path)).text
    assert "The fastest is trial 1 with adapter.rank=16 model=llama: 2,500 tokens/s, 400 ms a step." in text
    assert "nothing fits" in text
    assert "<script>alert" not in text
    assert 'id="course"' not in text
    (tmp_path / "sweep.csv").write_text("")
    assert "Nothing fits." in page_of(str(tmp_path)).text
