"""Readings as scalars of TensorBoard, by its own writer, which needs neither torch nor TensorFlow."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import Problem, UserError
from orchestrator.monitor.readings import DeviceReading, RankReading
from orchestrator.monitor.store import Reading, folder_of

_IDENTITY: Final = frozenset({"time", "rank", "host", "device", "step", "xids"})


def scalars_folder(run_dir: Path, host: int) -> Path:
    """Where the scalars of a host go; `tensorboard --logdir RUN_DIR/telemetry` shows those of all."""
    return folder_of(run_dir) / "tensorboard" / f"host-{host:05d}"


def check_tensorboard(*, wanted: bool) -> None:
    """See that TensorBoard can be written, without importing it.

    Raises:
        UserError: it is asked for and not installed.
    """
    if wanted and importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            Problem(
                where="monitor.tensorboard=true",
                found="the package tensorboard is not installed",
                remedy="Install it (pip install tensorboard), or leave monitor.tensorboard=false.",
            )
        )


def scalars_of(reading: Reading) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each number in a reading."""
    prefix = _prefix(reading)
    for name in type(reading).__dataclass_fields__:
        value = getattr(reading, name)
        if name in _IDENTITY or value is None:
            continue
        if name == "network":
            for port, sent, received in value:
                yield f"{prefix}/network/{port}/sent_bytes", float(sent)
                yield f"{prefix}/network/{port}/received_bytes", float(received)
        elif isinstance(value, tuple):
            yield from ((f"{prefix}/{name}/{part}", float(number)) for part, number in value)
        else:
            yield f"{prefix}/{name}", float(value)
    if isinstance(reading, RankReading) and reading.tokens is not None and reading.step_seconds > 0:
        yield f"{prefix}/tokens_per_second", reading.tokens / reading.step_seconds


def _prefix(reading: Reading) -> str:
    if isinstance(reading, RankReading):
        return f"rank-{reading.rank:05d}"
    return f"device/{reading.device}" if isinstance(reading, DeviceReading) else f"host-{reading.host:05d}"


class ScalarWriter:
    """Writes readings as they come. The x of a rank is its step, that of devices and hosts seconds since the start."""

    def __init__(self, run_dir: Path, host: int, began: float) -> None:
        """Open a file of events; `began` is the wall clock at the start of the run."""
        from tensorboard.summary import Writer

        self._writer: Any = Writer(str(scalars_folder(run_dir, host)))
        self._began = began

    def write(self, readings: Iterable[Reading]) -> None:
        """Write all numbers of the readings."""
        for reading in readings:
            at = reading.step if isinstance(reading, RankReading) else int(reading.time - self._began)
            for tag, value in scalars_of(reading):
                self._writer.add_scalar(tag, value, at, wall_time=reading.time)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
