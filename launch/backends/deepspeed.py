"""DeepSpeed's launcher, one per host. Flags checked against DeepSpeed 0.19.8.

This is `deepspeed.launcher.launch`, the program that the `deepspeed` command starts on every host, called
without that command around it, which does harm:
- it picks devices by index, and the launcher then overwrites CUDA_VISIBLE_DEVICES with these indices; given to
  the launcher directly, device ids may be UUIDs;
- it reads /job/hostfile when there is one, and asks for ssh to this host when a hostfile names it;
- it dies on SIGTERM without telling the launcher, and exits with 0 when the launcher is killed;
- on several hosts it leaves the ranks of the others alive when its own ssh or pdsh is killed.
"""

import base64
import json

from launch import environment
from launch.backends import several
from launch.backends.paths import output_path
from launch.errors import LaunchError
from launch.host_job import ADDRESS, PORT, HostPart
from launch.request import Request
from launch.spec import Backend, DeviceKind, LaunchSpec

__all__ = ["build"]


def build(spec: LaunchSpec) -> Request:
    """Run the ranks under DeepSpeed's launcher, all ranks' output in one stream.

    Raises LaunchError on one host without a port, and on GPU without device ids.
    """
    if spec.device_kind is DeviceKind.gpu and not all(share.device_ids for share in spec.shares):
        raise LaunchError(
            asked="launch=deepspeed on GPU without device_ids",
            found="DeepSpeed's launcher would take devices 0, 1, ... of the host, whatever CUDA_VISIBLE_DEVICES says",
            remedy="give the UUIDs of the devices, or use launch=torchrun",
        )
    if not spec.is_here:
        return several.build(Backend.deepspeed, spec, _part)
    if spec.master_port is None:
        raise LaunchError(
            asked="launch=deepspeed without a master_port",
            found="DeepSpeed's launcher cannot look for a free port (its default is 29500 for every run)",
            remedy="set master_port; launch.execute.free_port() finds one",
        )
    # The launcher sets RANK, LOCAL_RANK, WORLD_SIZE and MASTER_*, and CUDA_VISIBLE_DEVICES from the world info;
    # LOCAL_WORLD_SIZE it does not set.
    own = {"LOCAL_WORLD_SIZE": str(spec.processes_per_node)}
    return Request(
        argv=_argv(spec, 0, "127.0.0.1", str(spec.master_port)),
        env=tuple(sorted({**dict(environment.build(spec)), **own}.items())),
        cwd=spec.run_dir,
        log_path=output_path(spec),
        backend=Backend.deepspeed,
    )


def _part(spec: LaunchSpec, at: int) -> HostPart:
    share = spec.shares[at]
    env = {**several.host_env(spec, share), "LOCAL_WORLD_SIZE": str(share.processes)}
    return HostPart(
        name=share.name,
        processes=share.processes,
        argv=_argv(spec, at, ADDRESS, PORT),
        env=tuple(sorted(env.items())),
    )


def _argv(spec: LaunchSpec, at: int, address: str, port: str) -> tuple[str, ...]:
    flags = (
        f"--world_info={_world_info(spec)}",
        f"--node_rank={at}",
        f"--master_addr={address}",
        f"--master_port={port}",
        "--module",
        # The ranks read LOCAL_RANK, as under torchrun.
        "--no_local_rank",
        "--log_level=warning",
    )
    return (spec.python, "-u", "-m", "deepspeed.launcher.launch", *flags, spec.module, *spec.args)


def _world_info(spec: LaunchSpec) -> str:
    """Encode {host: device ids}; the number of ids is the number of ranks, their text is CUDA_VISIBLE_DEVICES."""
    world: dict[str, tuple[str, ...]] = {}
    first = 0
    for at, share in enumerate(spec.shares):
        # CUDA stops reading at -1, so a rank that should use the CPU sees no GPU.
        ids = share.device_ids or ("-1",) * share.processes
        # DeepSpeed's LOCAL_RANK is the rank modulo the ranks of its host: where hosts differ it does not begin at 0,
        # and each rank must still get the device of the plan.
        turned = tuple(ids[(local - first) % share.processes] for local in range(share.processes))
        world["localhost" if spec.is_here else f"{at}:{share.name}"] = turned
        first += share.processes
    return base64.urlsafe_b64encode(json.dumps(world, separators=(",", ":")).encode()).decode()
