"""The verbs: what each is for, where its function lies, and what it needs to start.

To add a verb: write `def NAME(config: RunConfig) -> int` in a module of this package, and one entry in `VERBS`:

    Verb(name="report", text="a page about a run", module="pages", needs=Needs.RUN),

Help, completion, nearest names and Hydra's flags follow from it. A module is imported when its verb is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Needs(Enum):
    """What a verb cannot do without."""

    JOB = "model and data"
    MACHINE = "nothing: it looks at this host, or at the one that is described"
    RUN = "a run directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb of the command line.

    Attributes:
        name: as it is typed.
        text: what it does, in a line of the help.
        module: of this package.
        function: of the module, takes the configuration and returns the exit code; empty: `name`.
        needs: what must be given.
        first: function of the module that sees the words after the verb before anything else; an exit code it returns
            ends the command, None goes on. Empty: there is none.
        finish: function of the module that ends a sweep (`hydra_run.Finish`). Empty: there is none.
    """

    name: str
    text: str
    module: str
    needs: Needs
    function: str = ""
    first: str = ""
    finish: str = ""


VERBS: Final = (
    Verb(name="probe", text="what this machine is: devices, links, islands", module="machine", needs=Needs.MACHINE),
    Verb(
        name="route",
        text="which way collectives take, how near the bound they come, what limits them",
        module="machine",
        needs=Needs.MACHINE,
    ),
    Verb(
        name="doctor",
        text="what is wrong with this machine or its software, and what to do",
        module="machine",
        needs=Needs.MACHINE,
        first="check_doctor",
    ),
    Verb(
        name="estimate",
        text="memory and step time of the configuration, term by term",
        module="planning",
        needs=Needs.JOB,
    ),
    Verb(
        name="plan",
        text="every strategy, ranked, with the reason for each rejection",
        module="planning",
        needs=Needs.JOB,
        finish="compare",
    ),
    Verb(
        name="train",
        text="plan, launch, watch and report",
        module="training",
        needs=Needs.JOB,
        first="sweep",
    ),
    Verb(
        name="bench",
        text="what this machine reaches; later plans use it",
        module="machine",
        needs=Needs.MACHINE,
        first="help_bench",
    ),
    Verb(name="status", text="how far a run is, here or under SLURM", module="of_a_run", needs=Needs.RUN),
    Verb(name="logs", text="what a run prints", module="of_a_run", needs=Needs.RUN),
    Verb(
        name="watch",
        text="a run as it goes on: progress, time left, loss, memory, what holds it back",
        module="of_a_run",
        needs=Needs.RUN,
    ),
    Verb(
        name="report",
        text="a page about a run, two runs or a sweep: predicted against measured",
        module="pages",
        needs=Needs.RUN,
    ),
    Verb(name="cancel", text="end a run with a checkpoint", module="of_a_run", needs=Needs.RUN),
    Verb(
        name="export",
        text="the adapter for PEFT, vLLM and SGLang, or a whole model with the adapter in its weights",
        module="exports",
        needs=Needs.RUN,
    ),
    Verb(
        name="faults",
        text="does harm to a training on purpose, and shows what came of it",
        module="faults",
        needs=Needs.JOB,
        first="faults",
    ),
)
