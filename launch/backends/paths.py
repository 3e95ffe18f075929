"""Where a run keeps its logs: shared by all backends."""

from launch.spec import LaunchSpec

__all__ = ["logs_dir", "output_path"]


def logs_dir(spec: LaunchSpec) -> str:
    """Directory of the ranks' logs."""
    return f"{spec.run_dir}/logs"


def output_path(spec: LaunchSpec) -> str:
    """File that receives what the launcher and, through it, rank 0 (deepspeed: all ranks) print."""
    return f"{logs_dir(spec)}/{spec.name}.log"
