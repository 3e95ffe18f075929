"""The verb `report`: a page about a run, two runs or a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import Problem, UserError
from orchestrator.outputs import write_whole
from orchestrator.verbs.emit import is_json

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def report(config: RunConfig) -> int:
    """Make the page, and say where it is."""
    from orchestrator.reporting import page_of

    if config.save and not config.save.lower().endswith((".html", ".htm")):
        remedy = "The page is HTML: give a name in .html."
        raise UserError(Problem(where="save", found=f"found {config.save}", remedy=remedy))
    page = page_of(config.run_dir, config.report.against)
    path = Path(config.save).absolute() if config.save else page.path
    write_whole(path, page.text, "save" if config.save else "run_dir")
    body = {
        "schema": 1,
        "kind": page.kind,
        "status": page.status,
        "report": str(path),
        "bytes": len(page.text.encode()),
    }
    print(json.dumps(body, indent=2) if is_json(config) else f"{page.kind} report: {path}")
    return 0
