"""The readings of a run as Parquet: `telemetry/ranks.parquet`, `devices.parquet`, `hosts.parquet`, `copies.parquet`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from orchestrator.monitor.store import KINDS, Reading, folder_of, read_run

_ROWS: Final = 10_000  # of a row group: a run of weeks is not held in memory
_PLURAL: Final = {"copy": "copies"}
_NESTED: Final = frozenset({"throttle_ns", "live_bytes", "network", "xids"})


def table_file(run_dir: Path, kind: str) -> Path:
    """The table of a kind of readings."""
    return folder_of(run_dir) / f"{_PLURAL.get(kind, f'{kind}s')}.parquet"


def write_tables(run_dir: Path) -> list[Path]:
    """Write a table of each kind that there are readings of, each whole or not at all.

    Returns:
        What was written; nothing where pyarrow is not installed.

    Raises:
        OSError: the disk does not take it.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return []
    written: list[Path] = []
    for kind in KINDS:
        readings = read_run(run_dir, (kind,))
        first = list(itertools.islice(readings, _ROWS))
        if not first:
            continue
        schema = _schema(pa, kind)
        path = table_file(run_dir, kind)
        temporary = path.with_name(f".{path.name}")
        with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
            rows = first
            while rows:
                writer.write_table(pa.Table.from_pylist([_row(reading) for reading in rows], schema=schema))
                rows = list(itertools.islice(readings, _ROWS))
        temporary.replace(path)
        written.append(path)
    return written


def _row(reading: Reading) -> dict[str, Any]:
    found = {name: getattr(reading, name) for name in type(reading).__dataclass_fields__}
    for name in _NESTED & found.keys():
        value = found[name]
        if name == "xids":
            found[name] = [{"time": x.time, "number": x.number, "device": x.device, "words": x.words} for x in value]
        elif name == "network":
            found[name] = [{"port": port, "sent_bytes": sent, "received_bytes": got} for port, sent, got in value]
        else:
            found[name] = dict(value)
    return found


def _schema(arrow: Any, kind: str) -> Any:  # noqa: ANN401 - pyarrow ships without types
    count, text, real = arrow.int64(), arrow.string(), arrow.float64()
    nested: Mapping[str, Any] = {
        "throttle_ns": arrow.map_(text, count),
        "live_bytes": arrow.map_(text, count),
        "network": arrow.list_(arrow.struct({"port": text, "sent_bytes": count, "received_bytes": count})),
        "xids": arrow.list_(arrow.struct({"time": real, "number": count, "device": text, "words": text})),
    }
    plain = {"str": text, "bool": arrow.bool_(), "int": count, "float": real}

    def column(name: str, hint: str) -> Any:  # noqa: ANN401
        return nested[name] if name in nested else plain[hint.removesuffix(" | None")]

    return arrow.schema([arrow.field(one.name, column(one.name, str(one.type))) for one in fields(KINDS[kind])])
