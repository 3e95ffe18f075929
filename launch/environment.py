"""Environment variables of the ranks, and how they meet the user's own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launch.spec import ATTEMPT_MARK, RESERVED_NAMES, RUN_MARK, DeviceKind, LaunchSpec

__all__ = ["THREADS", "Override", "build", "merge", "world"]

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A variable that both we and the user set, to different values."""

    name: str
    ours: str
    users: str

    @property
    def kept(self) -> str:
        """The value that the ranks get: the user's, except for RESERVED_NAMES."""
        return self.ours if self.name in RESERVED_NAMES else self.users

    def __str__(self) -> str:
        """One line for a log."""
        whose, other = ("the plan's", self.users) if self.name in RESERVED_NAMES else ("the user's", self.ours)
        return f"{self.name}: {whose} value {self.kept!r} is used, not {other!r}"


def build(spec: LaunchSpec) -> tuple[tuple[str, str], ...]:
    """Variables for every rank, sorted by name. `spec.env` replaces a default of the same name.

    Threads that differ by host are not among them: a host would take them for what the user has set.
    """
    values = {
        # A launch/ or topology/ folder in the working directory must not shadow the installed packages.
        "PYTHONSAFEPATH": "1",
        # A killed rank's last lines are the ones that matter.
        "PYTHONUNBUFFERED": "1",
        **_threads(spec),
        # The tokenizer's thread pool does not survive the fork of a data loader.
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **_device_values(spec),
        **dict(spec.env),
        **({ATTEMPT_MARK: str(spec.attempt)} if spec.attempt else {}),
        RUN_MARK: spec.run_dir,
    }
    return tuple(sorted(values.items()))


def world(*, master_port: int) -> tuple[tuple[str, str], ...]:
    """Say where a world of one rank meets: it has no launcher to set these variables."""
    return (
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", str(master_port)),
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
    )


def merge(
    ours: Iterable[tuple[str, str]],
    users: Mapping[str, str],
) -> tuple[dict[str, str], tuple[Override, ...]]:
    """Lay our variables under the user's environment: the user's value wins and is reported.

    RESERVED_NAMES alone stay ours: `RANK=3` inherited from a container would start a wrong world, and a batch
    system's `CUDA_VISIBLE_DEVICES` would undo the plan's choice among those same devices. That is reported too.
    """
    values = dict(ours)
    overrides = tuple(
        Override(name=name, ours=value, users=users[name])
        for name, value in sorted(values.items())
        if name in users and users[name] != value
    )
    return {**values, **users, **{override.name: override.kept for override in overrides}}, overrides


def _threads(spec: LaunchSpec) -> dict[str, str]:
    found = {share.threads or spec.threads_per_process for share in spec.shares}
    return {THREADS: str(found.pop())} if len(found) == 1 else {}


def _device_values(spec: LaunchSpec) -> dict[str, str]:
    if spec.device_kind is DeviceKind.cpu:
        # DeepSpeed and torch each look for a GPU in a way of their own.
        # Threads that spin at a barrier take the core from the one they wait for when a core is shared: measured
        # on two cores at a load of 8, a step took 30 s instead of 1 s.
        return {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}
    # The bus order is the one nvidia-smi and NVML print; CUDA's own default is fastest first.
    values = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if spec.device_ids:
        values["CUDA_VISIBLE_DEVICES"] = ",".join(spec.device_ids)
    return values
