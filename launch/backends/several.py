"""What torchrun and deepspeed share on several hosts: one file that tells each its part, and a command for all."""

import zlib
from collections.abc import Callable
from pathlib import PurePosixPath

from launch import environment
from launch.backends.paths import output_path
from launch.errors import LaunchError
from launch.host_job import HostJob, HostPart, candidate_ports, dumps
from launch.request import FileToWrite, Request
from launch.spec import Backend, DeviceKind, HostShare, LaunchSpec

__all__ = ["Part", "build", "host_env", "hostfile", "job_of", "job_path"]

Part = Callable[[LaunchSpec, int], HostPart]
"""What a launcher makes of the host of that number."""


def build(backend: Backend, spec: LaunchSpec, part: Part) -> Request:
    """Run one agent on each host through `spec.ssh`; ends on all hosts as soon as one fails.

    Raises LaunchError where several hosts have no names.
    """
    if not all(share.name for share in spec.shares):
        raise LaunchError(
            asked=f"launch={backend.value} on {len(spec.shares)} hosts",
            found="their names are not known, so processes start on this host alone",
            remedy="name them (launch.hosts=[a,b] or launch.hostfile=FILE), use launch=slurm, or nodes=1",
        )
    command = (spec.python, "-P", "-u", "-m", "launch.fan_out", job_path(spec), spec.python, *spec.ssh)
    return Request(
        files=(
            FileToWrite(path=job_path(spec), text=dumps(job_of(spec, part))),
            FileToWrite(path=f"{_folder(spec)}/hostfile", text=hostfile(spec)),
        ),
        argv=command,
        env=environment.build(spec),
        cwd=spec.run_dir,
        log_path=output_path(spec),
        backend=backend,
    )


def job_of(spec: LaunchSpec, part: Part, *, is_batch: bool = False) -> HostJob:
    """The parts of all hosts. In a batch job the port follows from the job's number, which is not known yet."""
    own = (spec.master_port,) if spec.master_port else candidate_ports(zlib.crc32(spec.name.encode()))
    return HostJob(
        name=spec.name,
        run_dir=spec.run_dir,
        parts=tuple(part(spec, at) for at in range(len(spec.shares))),
        env=environment.build(spec),
        ports=() if is_batch and not spec.master_port else own,
        must_see=tuple(arg for arg in spec.args if PurePosixPath(arg).is_relative_to(spec.run_dir)),
        packages=tuple(sorted({"launch", spec.module.partition(".")[0], *spec.packages})),
        interfaces=spec.interfaces,
        join_seconds=spec.join_seconds,
        met_before=spec.met_before,
        uses_devices=spec.device_kind is DeviceKind.gpu,
    )


def job_path(spec: LaunchSpec) -> str:
    """Where the hosts find their parts."""
    return f"{_folder(spec)}/{spec.name}.json"


def host_env(spec: LaunchSpec, share: HostShare) -> dict[str, str]:
    """Variables of one host alone: its devices, where they are known, and threads, where hosts differ."""
    values = {"CUDA_VISIBLE_DEVICES": ",".join(share.device_ids)} if share.device_ids else {}
    if share.threads is not None and environment.THREADS not in dict(spec.env):
        values[environment.THREADS] = str(share.threads)
    return values


def hostfile(spec: LaunchSpec) -> str:
    """The hosts in the form that deepspeed, mpirun and others read, for a start by hand."""
    return "".join(f"{host.name or 'localhost'} slots={host.processes}\n" for host in spec.shares)


def _folder(spec: LaunchSpec) -> str:
    return f"{spec.run_dir}/launch"
