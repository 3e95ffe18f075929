"""Launchers, each a pure function from a LaunchSpec to a Request. `slurm` takes more than a spec: see there."""

from launch.backends import deepspeed, local, torchrun
from launch.request import Request
from launch.spec import Backend, LaunchSpec

__all__ = ["build"]

_BUILDERS = {Backend.local: local.build, Backend.torchrun: torchrun.build, Backend.deepspeed: deepspeed.build}


def build(backend: Backend, spec: LaunchSpec) -> Request:
    """Say exactly what `backend` would run for `spec`. Raises LaunchError where it cannot."""
    return _BUILDERS[backend](spec)
