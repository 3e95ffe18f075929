"""What a page about a run is made of: frozen values, read by `read`. Most of it is JSON as the run left it.

A run may be of an older or newer version, cut or unfinished: what stands in the files is looked at, never trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading
from orchestrator.report.page.html import Markup
from orchestrator.report.page.words import inside, listed, number

Body = Mapping[str, Any]
_NO_PICTURE = Markup("")
_EMPTY: Body = MappingProxyType({})


def _empty() -> Body:
    return _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run.

    Attributes:
        name, folder: of its run directory.
        status: as `trainmaster status` says it.
        made: wall clock when this was read.
        plan: `plan.json`; empty where it cannot be read.
        labels: names of the ranked strategies, where this version knows them.
        reasons: why the choice.
        config: `key: value` of the configuration the run was started with.
        command: that starts the same run again; empty where the configuration cannot be read.
        metrics: records of `metrics.jsonl`, thinned out where there are very many.
        losses: those of them that are of training steps.
        num_metrics: lines of that file.
        events: records of `events.jsonl`.
        samples: records of `samples.jsonl`.
        summary: `summary.json`; empty before the end.
        ranks, devices, hosts: readings in time order, thinned out.
        picture: SVG of the machine with the route of the gradients; empty where there is none.
        picture_told: what it shows.
        log: last lines of the newest attempt.
        log_file: where they come from.
        notes: what could not be read, and other things a reader should know.
    """

    name: str
    folder: str
    status: str
    made: float
    plan: Body = field(default_factory=_empty)
    labels: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    config: Body = field(default_factory=_empty)
    command: str = ""
    metrics: Sequence[Body] = ()
    losses: Sequence[Body] = ()
    num_metrics: int = 0
    events: Sequence[Body] = ()
    samples: Sequence[Body] = ()
    summary: Body = field(default_factory=_empty)
    ranks: tuple[RankReading, ...] = ()
    devices: tuple[DeviceReading, ...] = ()
    hosts: tuple[HostReading, ...] = ()
    picture: Markup = _NO_PICTURE
    picture_told: str = ""
    log: tuple[str, ...] = ()
    log_file: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether ranks compute on GPUs; on CPUs the host's memory is all there is."""
        return self.plan.get("device_kind") == "gpu"

    @property
    def world_size(self) -> int:
        """Ranks; of the newest plan while there is no summary. 0: not known."""
        found = number(self.summary.get("world_size")) or number(inside(self.chosen, "strategy", "world_size"))
        return int(found or 0)

    @property
    def chosen(self) -> Body:
        """The chosen strategy with its estimate."""
        found = self.plan.get("chosen")
        return found if isinstance(found, Mapping) else _EMPTY

    @property
    def label(self) -> str:
        """Name of the chosen strategy."""
        return self.labels[0] if self.labels else plain_label(self.chosen)

    @property
    def predicted(self) -> Body:
        """Whole quantities, by the keys of the measured ones; of the plan where no summary holds them."""
        found = self.summary.get("predicted")
        if isinstance(found, Mapping):
            return found
        return {
            "step_seconds": self.chosen.get("step_seconds"),
            "tokens_per_second": self.chosen.get("tokens_per_second"),
            "memory": self.chosen.get("memory"),
        }

    @property
    def measured(self) -> Body:
        """As the summary has it; empty before the end."""
        found = self.summary.get("measured")
        return found if isinstance(found, Mapping) else _EMPTY

    @property
    def step(self) -> int:
        """Steps done."""
        last = self.losses[-1].get("step") if self.losses else self.summary.get("steps")
        return int(number(last) or 0)

    @property
    def planned_steps(self) -> int | None:
        """Steps of the whole run; None where that is not known."""
        found = number(self.summary.get("planned_steps")) or number(self.config.get("batch.max_steps"))
        return int(found) if found else None


def plain_label(choice: Body) -> str:
    """Name a strategy by what is sure to be in it."""
    strategy = choice.get("strategy")
    if not isinstance(strategy, Mapping):
        return "not known"
    ranks = number(strategy.get("world_size"))
    micro = ", ".join(map(str, sorted({int(rows) for rows in listed(strategy.get("micro")) if number(rows)})))
    parts = [
        str(strategy.get("engine", "?")),
        "" if ranks is None else f"on {ranks:.0f} ranks",
        f"micro-batch {micro}" if micro else "",
        str(strategy.get("precision", "")),
    ]
    return ", ".join(filter(None, (" ".join(filter(None, parts[:2])), *parts[2:])))
