"""Starts of the ranks within a batch job."""

from pathlib import Path

from launch.environment import merge
from orchestrator.slurm_supervise import _request


def test_each_start_has_its_number_whatever_the_job_began_with() -> None:
    request = _request(("srun", "x"), Path("/runs/a"), 3, ())
    values, _ = merge(request.env, {"TRAINMASTER_ATTEMPT": "1", "SLURM_JOB_ID": "7"})
    assert values == {"TRAINMASTER_ATTEMPT": "3", "SLURM_JOB_ID": "7"}
    assert request.log_path == "/runs/a/logs/ranks-3.log"
