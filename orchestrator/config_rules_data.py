"""Rules between values of the group `data`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from orchestrator.config import RunConfig
from orchestrator.config_mixture import check_sources
from orchestrator.errors import Problem


def check_data(config: RunConfig) -> Iterator[Problem]:
    """Yield one problem for each rule that is broken."""
    data = config.data
    if config.preview < 0:
        yield Problem(where="preview", found=f"found {config.preview}", remedy="Give 0 or more rows.")
    if not data.sources:
        if not data.path:
            remedy = "Give one, such as data=rows.jsonl, or data.sources=[{path: a.jsonl, weight: 2}, {path: b.jsonl}]."
            yield Problem(where="data", found="neither a path nor sources given", remedy=remedy)
        return
    yield from check_sources(data.sources)
    if data.path and data.path != "none":
        found = f"found {data.path} beside {len(data.sources)} sources"
        yield Problem(where="data.path", found=found, remedy="Give one of the two: data.path='' takes the path away.")
    for key, value in (("eval_path", data.eval_path), ("max_rows", data.max_rows)):
        if value:
            remedy = f"Give it to a source: {{path: rows.jsonl, {key}: {value}}}."
            yield Problem(where=f"data.{key}", found="each source of a mixture has its own", remedy=remedy)
    names = Counter(source.name or PurePath(source.path).name for source in data.sources if source.path)
    for name, count in names.items():
        if count > 1:
            remedy = "Give each a name of its own: {path: rows.jsonl, name: other}."
            yield Problem(where="data.sources", found=f"{count} sources are called {name!r}", remedy=remedy)
