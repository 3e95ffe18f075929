"""What a SLURM job asks for, in the words of sbatch. Options checked against SLURM 22.05."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum

from launch.errors import LaunchError

__all__ = ["ContainerRuntime", "SlurmOptions", "is_plain"]

# sbatch reads these lines itself: no shell expands them, quotes and spaces end a value, # begins a comment.
_NOT_PLAIN = re.compile(r"[\s$`\"'\\#]|[^\x20-\x7e]")
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_MEMORY = re.compile(r"\d+[KMGT]?")
_ONE_BY_ONE = re.compile(r"(\d+|\d+-\d+(:\d+)?)(,(\d+|\d+-\d+(:\d+)?))*%1|\d+")
_LONGEST_SIGNAL_SECONDS = 65_535

_AS_IT_IS = (
    "write values as they are: sbatch expands no variable or command, and takes no quotes, spaces or comments in them"
)
_CHAIN = (
    "let its jobs run one after another (1-5%1), for all work in one run directory; for different runs use train -m"
)


class ContainerRuntime(Enum):
    """What runs the ranks in a container."""

    pyxis = "pyxis"
    apptainer = "apptainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """Values for #SBATCH lines and the script around srun; an empty one leaves the cluster's default.

    Raises LaunchError with all problems at once.
    """

    job_name: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    gres: str = ""
    """In place of the GPUs per node that follow from the plan: `gpu:a100:4`."""
    cpus: int = 0
    """Per node; 0: what its ranks need."""
    memory: str = ""
    """Per node: `64G`; `0` for all."""
    time: str = ""
    """`30` (minutes), `4:00:00`, `2-12`."""
    exclusive: bool = False
    array: str = ""
    """`1-5%1`: a chain of jobs, each going on where the last one stopped."""
    mail: str = ""
    mail_on: str = "END,FAIL,REQUEUE"
    extra: tuple[str, ...] = ()
    """Further options, each as sbatch takes it (`--licenses=x`)."""
    modules: tuple[str, ...] = ()
    conda: str = ""
    """Environment to activate: a name or a folder."""
    venv: str = ""
    """Folder of a virtual environment."""
    container: str = ""
    """Image that the ranks run in."""
    container_runtime: ContainerRuntime = ContainerRuntime.pyxis
    mounts: tuple[str, ...] = ()
    """FROM:TO folders of the container, besides the run directory."""
    signal_seconds: int = 180
    """How long before the time limit the run is asked to stop; a step and a checkpoint must fit in."""
    max_requeues: int = 20

    def __post_init__(self) -> None:
        """Refuse what sbatch would misread or a shell would have to expand."""
        problems = [*self._plain_problems(), *self._form_problems()]
        if problems:
            raise LaunchError(
                asked="launch=slurm",
                found="; ".join(found for found, _ in problems),
                remedy="; ".join(dict.fromkeys(remedy for _, remedy in problems)),
            )

    def _plain_problems(self) -> Iterator[tuple[str, str]]:
        for field in fields(self):
            value = getattr(self, field.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not is_plain(text):
                    yield f"launch.{field.name}={text!r}", _AS_IT_IS

    def _form_problems(self) -> Iterator[tuple[str, str]]:
        if self.time and not _TIME.fullmatch(self.time):
            yield f"launch.time={self.time!r}", "give minutes, hours:minutes:seconds or days-hours"
        if self.memory and not _MEMORY.fullmatch(self.memory):
            yield f"launch.memory={self.memory!r}", "give a number with K, M, G or T"
        if self.array and not _ONE_BY_ONE.fullmatch(self.array):
            yield f"launch.array={self.array!r}", _CHAIN
        yield from self._combinations()
        for name, value, most in (
            ("cpus", self.cpus, 1_000_000),
            ("signal_seconds", self.signal_seconds, _LONGEST_SIGNAL_SECONDS),
            ("max_requeues", self.max_requeues, 1_000_000),
        ):
            if not 0 <= value <= most:
                yield f"launch.{name}={value}", f"give 0 to {most}"

    def _combinations(self) -> Iterator[tuple[str, str]]:
        if self.conda and self.venv:
            yield "both launch.conda and launch.venv", "give one of them"
        if (self.conda or self.venv) and self.container:
            yield "a container and launch.conda or launch.venv", "the container has its own Python: give one of them"
        if self.mounts and not self.container:
            yield "launch.mounts without launch.container", "give both or none"
        for line in self.extra:
            if not line.startswith("--"):
                yield f"launch.extra has {line!r}", "write each option as sbatch takes it: --name=value"


def is_plain(text: str) -> bool:
    """Whether sbatch takes the text of a #SBATCH line as it is."""
    return not _NOT_PLAIN.search(text)
