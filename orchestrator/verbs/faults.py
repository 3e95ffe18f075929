"""The verb `faults`, which reads its words itself: `faults list`, `faults run`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import ExitCode
from orchestrator.outputs import check_can_save
from orchestrator.verbs.emit import emit, stream_of


def faults(arguments: Sequence[str]) -> int:
    """List the faults, or do them to a training and tabulate what came of it."""
    from orchestrator.compose import compose
    from orchestrator.fault_runs import command, present
    from orchestrator.faults.fault import listing
    from orchestrator.hydra_run import run_hydra
    from orchestrator.inputs import located

    what, rest = command.split(list(arguments))
    if what == "help":
        print(command.HELP, end="")
        return 0
    if any(item.startswith("-") for item in rest):
        return run_hydra("train", command.without_sweep(rest), needs_job=what == "run")
    config, _ = compose(rest, needs_job=what == "run")
    check_can_save(config)
    if what == "list":
        kinds = listing()
        emit(config, {"schema": present.SCHEMA, "faults": kinds}, present.listing_text(kinds))
        return 0
    from orchestrator.fault_runs.run import run_matrix

    stream = stream_of(config)
    folder, matrix = run_matrix(rest, located(config), lambda line: print(line, file=stream, flush=True))
    emit(config, present.to_json(matrix), f"\n{present.to_text(matrix)}This table: {folder / 'faults.md'}\n")
    return 0 if all(row.as_expected for row in matrix.rows) else int(ExitCode.RUN_FAILED)
