"""Rules for what `export` is asked."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config_around import ExportConfig
from orchestrator.config_options import ExportFormat, ExportOnto
from orchestrator.errors import Problem

NEWEST, BEST = "newest", "best"


def check_export(export: ExportConfig) -> Iterator[Problem]:
    """Yield one problem for each rule that is broken."""
    if not export.shard_gib > 0:
        yield Problem(where="export.shard_gib", found=f"found {export.shard_gib}", remedy="Give a number above 0.")
    word = export.checkpoint
    if word not in {NEWEST, BEST} and not word.isdecimal():
        remedy = "Use newest, best or the step of a checkpoint."
        yield Problem(where="export.checkpoint", found=f"found {word!r}", remedy=remedy)
    if export.format is ExportFormat.peft and export.onto is not ExportOnto.auto:
        yield Problem(
            where="export.onto",
            found=f"found {export.onto.value}, but an adapter is merged into nothing with export.format=peft",
            remedy="Use export.format=merged, or leave export.onto on auto.",
        )
