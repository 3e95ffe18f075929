"""Lines of long files."""

import json
from pathlib import Path

from orchestrator.report.page.files import spread_lines


def test_spread_lines_hold_the_first_and_none_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"step": at, "fill": "x" * (9000 if at == 40 else 700)}) + "\n" for at in range(200))
    )
    steps = [record["step"] for record in spread_lines(path, 50).records]
    assert steps[0] == 0
    assert steps == sorted(set(steps))
    assert 40 <= len(steps) <= 50
