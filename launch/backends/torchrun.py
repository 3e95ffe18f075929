"""torch.distributed.run (torchrun) on one host. Flags checked against torch 2.13."""

from launch import environment
from launch.backends.paths import logs_dir, output_path, require_one_node
from launch.request import Request
from launch.spec import Backend, LaunchSpec

__all__ = ["build"]

# torchrun puts "[default0]:" before each line it shows. An empty template means that default again, so the
# template is the role's name, and the role's name is empty.
_NO_PREFIX = ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${role_name}")


def build(spec: LaunchSpec) -> Request:
    """Run `processes_per_node` ranks under torchrun's agent.

    Each rank writes to `logs/NAME_*/attempt_0/LOCAL_RANK/{stdout,stderr}.log`, and rank 0 is shown live as well.
    torchrun restarts nothing: an attempt is a fresh launch. Raises LaunchError for more than one node.
    """
    require_one_node(Backend.torchrun, spec)
    flags = {
        "--nnodes": "1",
        "--nproc-per-node": str(spec.processes_per_node),
        "--max-restarts": "0",
        "--rdzv-backend": "c10d",
        # Port 0: the agent takes a free one, so two runs on a host never meet.
        "--rdzv-endpoint": f"127.0.0.1:{spec.master_port or 0}",
        "--rdzv-id": spec.name,
        # Otherwise MASTER_ADDR is this host's full name, which a laptop or container often cannot resolve.
        "--local-addr": "127.0.0.1",
        "--role": "",
        "--log-dir": logs_dir(spec),
        "--redirects": "3",
        "--tee": "0:3",
    }
    launcher = (spec.python, "-u", "-m", "torch.distributed.run")
    return Request(
        argv=(*launcher, *(word for flag in flags.items() for word in flag), "-m", spec.module, *spec.args),
        # spec.env may still replace the template.
        env=tuple(sorted({**dict([_NO_PREFIX]), **dict(environment.build(spec))}.items())),
        cwd=spec.run_dir,
        log_path=output_path(spec),
        backend=Backend.torchrun,
    )
