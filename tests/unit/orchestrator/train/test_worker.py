"""What a rank leaves behind when it fails by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import Problem, UserError
from orchestrator.monitor.beat import ENDED, Beat, read_beats
from orchestrator.train import worker

WRONG = UserError(Problem(where="data.path", found="no rows", remedy="Give rows."))


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a rank that ends with an exception, or well; returns its exit code and its last beat."""
    plan = SimpleNamespace(chosen=SimpleNamespace(strategy=SimpleNamespace(num_nodes=2)))
    for name, made in (("read_plan", lambda _: plan), ("set_environment", lambda _: None)):
        monkeypatch.setattr(worker, name, made)
    for name in ("die_with_parent", "quiet_libraries", "check_variables"):
        monkeypatch.setattr(worker, name, lambda: None)
    for name, value in (("RANK", "1"), ("TRAINMASTER_ATTEMPT", "4")):
        monkeypatch.setenv(name, value)

    def run(error: Exception | None) -> tuple[int, Beat]:
        def run_rank(_plan: object, _run_dir: Path, heart: worker.Heart) -> None:
            heart.beat("training", step=2)
            if error is not None:
                raise error

        monkeypatch.setitem(sys.modules, "orchestrator.train.rank", SimpleNamespace(run_rank=run_rank))
        code = worker.main([str(tmp_path / "plan.json")])
        (beat,) = read_beats(tmp_path, 4)
        return code, beat

    return run


@pytest.mark.parametrize(("error", "code"), [(ValueError("row 5"), 1), (WRONG, 2), (MemoryError(), 1)])
def test_its_last_beat_tells_the_exit_code(ended: object, error: Exception, code: int) -> None:
    found, beat = ended(error)  # type: ignore[operator]
    assert (found, beat.code, beat.phase, beat.step) == (code, code, "training", 2)


def test_one_that_is_done_tells_none(ended: object) -> None:
    code, beat = ended(None)  # type: ignore[operator]
    assert (code, beat.code, beat.phase) == (0, None, ENDED)
