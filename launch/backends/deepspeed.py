"""DeepSpeed's launcher on one host. Flags checked against DeepSpeed 0.19.8.

This is `deepspeed.launcher.launch`, the program that the `deepspeed` command starts on every host, called
without that command around it, for on one host the command only does harm:
- it picks devices by index, and the launcher then overwrites CUDA_VISIBLE_DEVICES with these indices; given to
  the launcher directly, device ids may be UUIDs;
- it reads /job/hostfile when there is one, and asks for ssh to this host when a hostfile names it;
- it dies on SIGTERM without telling the launcher, and exits with 0 when the launcher is killed.
"""

import base64
import json

from launch import environment
from launch.backends.paths import output_path, require_one_node
from launch.errors import LaunchError
from launch.request import Request
from launch.spec import Backend, DeviceKind, LaunchSpec

__all__ = ["build"]


def build(spec: LaunchSpec) -> Request:
    """Run `processes_per_node` ranks under DeepSpeed's launcher, all ranks' output in one stream.

    Raises LaunchError for more than one node, without a port, and on GPU without device ids.
    """
    require_one_node(Backend.deepspeed, spec)
    if spec.device_kind is DeviceKind.gpu and not spec.device_ids:
        raise LaunchError(
            asked="launch=deepspeed on GPU without device_ids",
            found="DeepSpeed's launcher would take devices 0, 1, ... of the host, whatever CUDA_VISIBLE_DEVICES says",
            remedy="give the UUIDs of the devices, or use launch=torchrun",
        )
    if spec.master_port is None:
        raise LaunchError(
            asked="launch=deepspeed without a master_port",
            found="DeepSpeed's launcher cannot look for a free port (its default is 29500 for every run)",
            remedy="set master_port; launch.execute.free_port() finds one",
        )
    flags = (
        f"--world_info={_world_info(spec)}",
        "--node_rank=0",
        "--master_addr=127.0.0.1",
        f"--master_port={spec.master_port}",
        "--module",
        # The ranks read LOCAL_RANK, as under torchrun.
        "--no_local_rank",
        "--log_level=warning",
    )
    # The launcher sets RANK, LOCAL_RANK, WORLD_SIZE and MASTER_*, and CUDA_VISIBLE_DEVICES from the world info;
    # LOCAL_WORLD_SIZE it does not set.
    own = {"LOCAL_WORLD_SIZE": str(spec.processes_per_node)}
    return Request(
        argv=(spec.python, "-u", "-m", "deepspeed.launcher.launch", *flags, spec.module, *spec.args),
        env=tuple(sorted({**dict(environment.build(spec)), **own}.items())),
        cwd=spec.run_dir,
        log_path=output_path(spec),
        backend=Backend.deepspeed,
    )


def _world_info(spec: LaunchSpec) -> str:
    """Encode {host: device ids}; the number of ids is the number of ranks, their text is CUDA_VISIBLE_DEVICES."""
    # CUDA stops reading at -1, so a rank that should use the CPU sees no GPU.
    ids = spec.device_ids or ("-1",) * spec.processes_per_node
    text = json.dumps({"localhost": ids}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()
