"""Verbs that look at a machine: `probe`, `route`, `doctor`, `bench`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from orchestrator.outputs import write_and_say, write_whole
from orchestrator.verbs.emit import emit, is_json

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def probe(config: RunConfig) -> int:
    """Show this host, the nodes of a SLURM partition, or a description."""
    from orchestrator.show import probe as show

    machine = None
    if config.launch.backend.value == "slurm" and not (config.topology.path or config.topology.preset):
        from orchestrator.slurm_probe import cluster, commands

        if config.dry_run:
            print(commands(config), end="")
            return 0
        machine = cluster(config, lambda line: print(line, file=sys.stderr, flush=True))
    shown = show(config, machine)
    for key, path, text in shown.files:
        write_and_say(Path(path), text, key)
    print(shown.json if is_json(config) else shown.text, end="")
    return 0


def route(config: RunConfig) -> int:
    """Show the routes of collectives."""
    from orchestrator.route import route as ask

    shown = ask(config)
    for key, path, text in shown.files:
        write_and_say(Path(path), text, key)
    emit(config, shown.body, shown.text)
    return 0


def check_doctor(arguments: Sequence[str]) -> None:
    """Refuse keys that examine no machine."""
    from orchestrator.doctor import check_arguments

    if problems := check_arguments(list(arguments)):
        raise UserError(*problems)


def doctor(config: RunConfig) -> int:
    """Examine this machine."""
    from orchestrator import doctor as examination

    findings = examination.examine(load=config.load)
    emit(config, examination.to_json(findings), examination.to_text(findings))
    return 0


def help_bench(arguments: Sequence[str]) -> None:
    """Name the parts of `bench` above the keys."""
    if {"-h", "--help"}.intersection(arguments):
        from orchestrator.measure.bench import HELP

        print(HELP)


def bench(config: RunConfig) -> int:
    """Measure this machine, and keep what later plans use."""
    from orchestrator.measure.bench import measure, store, to_json, to_text

    def say(line: str) -> None:
        print(f"bench: {line}", file=sys.stderr, flush=True)

    measured = measure(config, time.strftime("%Y-%m-%d"), say)
    stored = store(measured.calibration, os.environ, say, write_whole)
    emit(config, to_json(measured, stored), to_text(measured, stored))
    return 0
