"""The LM evaluation harness, where it is installed, on a task of our own: no network, no data set of others."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

TASK = """\
task: stdlib_words
dataset_path: json
dataset_kwargs:
  data_files: {{test: {rows}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Python's {{{{name}}}} is a"
doc_to_choice: ["module", "banana"]
doc_to_target: "{{{{gold}}}}"
metric_list:
  - metric: acc
"""


def test_a_task_before_and_after(runs: Any, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"name": name, "gold": 0}) + "\n" for name in ("os", "json", "math")))
    (tmp_path / "words.yaml").write_text(TASK.format(rows=rows))
    summary = runs.train(
        "harness", "batch.max_steps=2", "devices=1", "eval.lm_eval=[stdlib_words]", f"eval.lm_eval_folder={tmp_path}"
    )
    found = summary["lm_eval"]
    assert found["tasks"] == ["stdlib_words"]
    for block in (found["before"], found["after"]):
        assert 0 <= block["stdlib_words"]["acc"] <= 1
    assert json.loads((runs.root / "harness" / "lm_eval.json").read_text()) == found
