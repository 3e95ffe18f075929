"""One process, no launcher."""

from launch import environment
from launch.backends.paths import output_path
from launch.errors import LaunchError
from launch.request import Request
from launch.spec import Backend, LaunchSpec

__all__ = ["build"]


def build(spec: LaunchSpec) -> Request:
    """Run the module in a world of one rank. Raises LaunchError for more ranks."""
    if spec.world_size != 1:
        raise LaunchError(
            asked=f"launch=local with {spec.world_size} ranks",
            found="launch=local starts one process",
            remedy="use launch=torchrun, or devices=1",
        )
    # Rank 0 hosts the store, so with one rank it may listen on port 0: the system picks a free one and nobody
    # else has to know it.
    world = environment.world(master_port=spec.master_port or 0)
    return Request(
        argv=(spec.python, "-u", "-m", spec.module, *spec.args),
        env=tuple(sorted((*environment.build(spec), *world))),
        cwd=spec.run_dir,
        log_path=output_path(spec),
        backend=Backend.local,
    )
