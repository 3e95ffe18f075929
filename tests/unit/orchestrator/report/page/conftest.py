import shutil
from pathlib import Path

import pytest

A_RUN = Path(__file__).parent / "a_run"  # 12 steps on two CPU ranks, one of which was killed before step 5


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A copy of a run directory, to be done harm to."""
    return Path(shutil.copytree(A_RUN, tmp_path / "a_run"))
