"""`preview=N`: rows as the model would get them, and nothing trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.verbs.emit import emit

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def preview(config: RunConfig) -> int:
    """Show the first training rows after the template, with what carries loss.

    Raises:
        UserError: what is wrong with the data, the model or the tokenizer.
    """
    from orchestrator.config_codec import dump_config
    from orchestrator.inputs import gather
    from orchestrator.report.preview import preview_text
    from orchestrator.terminal import wants_colour
    from orchestrator.workload.row_facts import sequence_length

    inputs = gather(config, download=True)
    for note in inputs.notes:
        print(f"note: {note}", file=sys.stderr)
    if config.data.packing is None:
        print("note: data.packing=auto is settled by a plan; rows are shown unpacked", file=sys.stderr)
    request = {"config": dump_config(config), "seq_len": sequence_length(config, inputs.model), "rows": config.preview}
    body = _asked(request)
    emit(config, body, preview_text(body, colour=wants_colour(sys.stdout)))
    return 0


def _asked(request: dict[str, Any]) -> dict[str, Any]:
    """Ask a process that may import the tokenizer's library."""
    from orchestrator.errors import Problem, UserError
    from orchestrator.launch_inputs import told_error

    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.train.preview"],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    lines = done.stdout.splitlines()
    for line in lines:
        error = told_error(line)
        if error is not None:
            raise error
    if done.returncode or not lines:
        found = f"reading the rows ended with code {done.returncode}"
        raise UserError(Problem(where="preview", found=found, remedy="What it printed stands above."))
    body: dict[str, Any] = json.loads(lines[-1])
    return body
