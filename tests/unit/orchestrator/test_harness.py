"""The harness runs in a process of its own; whatever becomes of it, the run is done."""

from pathlib import Path

from orchestrator.harness import command_of, run_harness
from orchestrator.train.harness import _numbers


def test_a_failure_is_told_and_the_summary_stays(tmp_path: Path) -> None:
    said: list[str] = []
    assert run_harness(tmp_path, {"status": "done"}, said.append) == {"status": "done"}
    assert f"{tmp_path}/plan.json: No such file or directory" in said[-1]
    assert " ".join(command_of(tmp_path)) in said[-1]  # how to try again
    assert (tmp_path / "logs" / "lm_eval.log").is_file()


def test_metrics_are_taken_by_their_names() -> None:
    found = {
        "alias": "arc_easy",
        "acc,none": 0.5,
        "acc_stderr,none": 0.1,
        "acc_norm,none": 1,
        "exact_match,strict": 0.25,
        "exact_match_stderr,strict": "N/A",
        "sample_len": 20,
    }
    assert _numbers(found) == {"acc": 0.5, "acc_norm": 1.0, "exact_match,strict": 0.25}
