"""Where a run keeps its logs, and what the single-host backends refuse: shared by all of them."""

from launch.errors import LaunchError
from launch.spec import Backend, LaunchSpec

__all__ = ["logs_dir", "output_path", "require_one_node"]


def logs_dir(spec: LaunchSpec) -> str:
    """Directory of the ranks' logs."""
    return f"{spec.run_dir}/logs"


def output_path(spec: LaunchSpec) -> str:
    """File that receives what the launcher and, through it, rank 0 (deepspeed: all ranks) print."""
    return f"{logs_dir(spec)}/{spec.name}.log"


def require_one_node(backend: Backend, spec: LaunchSpec) -> None:
    """Raise LaunchError for more than one node."""
    if spec.num_nodes > 1:
        raise LaunchError(
            asked=f"launch={backend.value} on {spec.num_nodes} nodes",
            found=f"launch={backend.value} starts processes on this host alone",
            remedy="use nodes=1, or start the worker on each host with your own torchrun or deepspeed command",
        )
