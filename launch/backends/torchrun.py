"""torch.distributed.run (torchrun), one agent per host. Flags checked against torch 2.13."""

from launch import environment
from launch.backends import several
from launch.backends.paths import logs_dir, output_path
from launch.host_job import ADDRESS, LOCAL, PORT, HostPart
from launch.request import Request
from launch.spec import Backend, LaunchSpec

__all__ = ["build", "part"]

# torchrun puts "[default0]:" before each line it shows. An empty template means that default again, so the
# template is the role's name, and the role's name is empty.
_NO_PREFIX = ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${role_name}")


def build(spec: LaunchSpec) -> Request:
    """Run the ranks under torchrun's agents.

    Each rank writes to `logs/NAME_*/attempt_0/LOCAL_RANK/{stdout,stderr}.log` (of several hosts, to such a folder in
    `logs/hostN`), and rank 0 is shown live as well. torchrun restarts nothing: an attempt is a fresh launch.
    """
    if not spec.is_here:
        return several.build(Backend.torchrun, spec, part)
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
        **_ends(logs_dir(spec), shows_rank_0=True),
    }
    return Request(
        argv=_argv(spec, flags),
        # spec.env may still replace the template.
        env=tuple(sorted({**dict([_NO_PREFIX]), **dict(environment.build(spec))}.items())),
        cwd=spec.run_dir,
        log_path=output_path(spec),
        backend=Backend.torchrun,
    )


def part(spec: LaunchSpec, at: int) -> HostPart:
    """Say what the host of that number runs among several.

    The store of c10d, but not torchrun's c10d rendezvous: that one numbers hosts by the text of their addresses, while
    rows and devices belong to ranks. Here host 0 holds rank 0 and the store, whatever the addresses are.
    """
    share = spec.shares[at]
    flags = {
        "--nnodes": str(len(spec.shares)),
        "--node-rank": str(at),
        "--nproc-per-node": str(share.processes),
        "--max-restarts": "0",
        "--rdzv-backend": "static",
        "--master-addr": ADDRESS,
        "--master-port": PORT,
        "--rdzv-id": spec.name,
        "--rdzv-conf": f"timeout={spec.join_seconds}",
        "--local-addr": LOCAL,
        **_ends(f"{logs_dir(spec)}/host{at}", shows_rank_0=at == 0),
    }
    env = {**dict([_NO_PREFIX]), **several.host_env(spec, share)}
    own = {name for name, _ in spec.env}
    return HostPart(
        name=share.name,
        processes=share.processes,
        argv=_argv(spec, flags),
        env=tuple(sorted((name, value) for name, value in env.items() if name not in own)),
    )


def _ends(folder: str, *, shows_rank_0: bool) -> dict[str, str]:
    shown = {"--tee": "0:3"} if shows_rank_0 else {}
    return {"--role": "", "--log-dir": folder, "--redirects": "3", **shown}


def _argv(spec: LaunchSpec, flags: dict[str, str]) -> tuple[str, ...]:
    launcher = (spec.python, "-u", "-m", "torch.distributed.run")
    return (*launcher, *(word for flag in flags.items() for word in flag), "-m", spec.module, *spec.args)
