"""Samples one host of a run: `python -m orchestrator.monitor.sampler RUN_DIR --host 0 ...`, a process of its own.

The first rank of each host starts it and never waits for it. It imports no torch, runs at a low priority, and ends
with the rank that started it. SIGTERM makes it write what it has and end; the end of that rank sends it, so that an
error of a GPU that took the rank with it is still written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from launch.parent_death import die_with_parent
from orchestrator.errors import UserError
from orchestrator.monitor.driver import DriverThread
from orchestrator.monitor.gpu import Target
from orchestrator.monitor.host import HostMeter
from orchestrator.monitor.log import MOST_HOST_BYTES, ReadingLog
from orchestrator.monitor.prometheus import Exposition
from orchestrator.monitor.readings import DeviceReading
from orchestrator.monitor.replay import Replay, read_replay
from orchestrator.monitor.scalars import ScalarWriter
from orchestrator.monitor.store import Follower, Reading, folder_of, host_file
from orchestrator.monitor.xid_log import KernelLog, XidMerger, with_xids

_NICE: Final = 10
_SILENT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to sample, and where it goes.

    Attributes:
        devices: of this host, in the order of its ranks; without `has_gpus` they matter to a replay alone.
        replay: a file of device readings that stand in for the driver, timed from the start of the run.
        followed: a file to which such readings are added while the run goes on, by the wall clock.
        prometheus_port: 0 for none.
        parent: process that this one ends with; 0 for none.
    """

    run_dir: Path
    host: int = 0
    every_seconds: float = 1.0
    devices: tuple[Target, ...] = ()
    has_gpus: bool = False
    replay: Path | None = None
    followed: Path | None = None
    tensorboard: bool = False
    prometheus_port: int = 0
    prometheus_address: str = "127.0.0.1"
    parent: int = 0


def arguments_of(options: Options) -> list[str]:
    """Return the command line that `options_of` reads back."""
    found = [str(options.run_dir), "--host", str(options.host), "--every-seconds", repr(options.every_seconds)]
    for target in options.devices:
        found += ["--device", target.device, target.uuid, target.pci]
    found += ["--has-gpus"] if options.has_gpus else []
    found += ["--replay", str(options.replay)] if options.replay is not None else []
    found += ["--followed", str(options.followed)] if options.followed is not None else []
    found += ["--tensorboard"] if options.tensorboard else []
    if options.prometheus_port:
        found += ["--prometheus-port", str(options.prometheus_port)]
        found += ["--prometheus-address", options.prometheus_address]
    return [*found, "--parent", str(options.parent)]


def options_of(arguments: Sequence[str]) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.monitor.sampler", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--every-seconds", type=float, default=1.0)
    parser.add_argument("--device", nargs=3, action="append", default=[], metavar=("ID", "UUID", "PCI"))
    parser.add_argument("--has-gpus", action="store_true")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--followed", type=Path)
    parser.add_argument("--tensorboard", action="store_true")
    parser.add_argument("--prometheus-port", type=int, default=0)
    parser.add_argument("--prometheus-address", default="127.0.0.1")
    parser.add_argument("--parent", type=int, default=0)
    found = vars(parser.parse_args(arguments))
    targets = tuple(Target(device=name, uuid=uuid, pci=pci) for name, uuid, pci in found.pop("device"))
    return Options(devices=targets, **found)


class Sampler:
    """One host: `tick` reads it once."""

    def __init__(self, options: Options) -> None:
        """Open what readings come from and go to; nothing of the driver is called in this thread.

        Raises:
            UserError: a replay that cannot be read.
        """
        self._options = options
        self._host = HostMeter(options.host)
        self._log = ReadingLog(host_file(options.run_dir, options.host), MOST_HOST_BYTES)
        self._began = _began(options)
        self._driver: DriverThread | None = None
        self._replay: Replay | None = None
        self._kernel: KernelLog | None = None
        self._merger = XidMerger()
        self._is_silent = False
        if options.replay is not None or options.followed is not None:
            self._replay = Replay([target.device for target in options.devices], options.host, options.followed)
            if options.replay is not None:
                self._replay.add(read_replay(options.replay, self._began))
            self._replay.skip(time.time())
        if options.devices and options.has_gpus:
            self._driver = DriverThread(options.devices, options.host, options.every_seconds, say)
            self._kernel = KernelLog({target.pci: target.device for target in options.devices if target.pci})
            if self._kernel.refusal:
                say(f"XID errors are not read from the kernel log ({self._kernel.refusal})")
        self._ranks = Follower(options.run_dir, ("rank",))
        self._exposition = _exposition(options)
        self._scalars = ScalarWriter(options.run_dir, options.host, self._began) if options.tensorboard else None

    def start(self) -> None:
        """Begin to ask the driver."""
        if self._driver is not None:
            self._driver.start()

    def tick(self) -> None:
        """Read all that there is, and pass it on."""
        now = time.time()
        readings: list[Reading] = [self._host.read(now), *self._devices(now)]
        self._log.append(readings)
        if self._exposition is not None or self._scalars is not None:
            # Ranks are shown by the host they run on: another one may see the same files.
            ranks = [reading for reading in self._ranks.read() if reading.host == self._options.host]
            self._show([*readings, *ranks])

    def _devices(self, now: float) -> list[DeviceReading]:
        played = [] if self._replay is None else self._replay.read(now)
        return [*self._driven(now), *played]

    def _driven(self, now: float) -> list[DeviceReading]:
        if self._driver is None or self._kernel is None:
            return []
        found, told = self._driver.take()
        is_silent = self._driver.silent_seconds() > max(_SILENT_SECONDS, 3 * self._options.every_seconds)
        if is_silent != self._is_silent:
            say("the NVIDIA driver does not answer" if is_silent else "the NVIDIA driver answers again")
            self._is_silent = is_silent
        xids = self._merger.take(told, self._kernel.read(now))
        return with_xids(found, xids, time=now, host=self._options.host)

    def _show(self, readings: Sequence[Reading]) -> None:
        if self._exposition is not None:
            self._exposition.update(readings)
        if self._scalars is not None:
            try:
                self._scalars.write(readings)
            except OSError as error:
                say(f"TensorBoard's file ends here ({error.strerror})")
                self._scalars = None

    def close(self) -> None:
        """Take a last reading and end."""
        self.tick()
        self._log.close()
        if self._scalars is not None:
            with contextlib.suppress(OSError):
                self._scalars.close()


def _began(options: Options) -> float:
    """Wall clock at the first start of this run on this host, which a restart does not move: replays go on."""
    path = folder_of(options.run_dir) / f"host-{options.host:05d}.started.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(path.read_text(encoding="utf-8"))["time"])
    now = time.time()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"time": now}) + "\n", encoding="utf-8")
    return now


def _exposition(options: Options) -> Exposition | None:
    if not options.prometheus_port:
        return None
    try:
        return Exposition(options.prometheus_address, options.prometheus_port)
    except (OSError, OverflowError) as error:
        address = f"{options.prometheus_address}:{options.prometheus_port}"
        say(f"no metrics for Prometheus: {address}: {getattr(error, 'strerror', None) or error}")
        return None


def say(message: str) -> None:
    """Say something in the log of this process."""
    print(message, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Sample until SIGTERM, or until the parent ends."""
    options = options_of(arguments)
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the launcher, which ends the ranks
    if options.parent:
        die_with_parent(signal_number=signal.SIGTERM, expected_parent_pid=options.parent)
    os.nice(_NICE)
    began = time.monotonic()
    try:
        sampler = Sampler(options)
    except UserError as error:
        say(str(error))
        return int(error.exit_code)
    sampler.start()
    due = began
    while not stopped.wait(max(0.0, due - time.monotonic())):
        sampler.tick()
        # Ticks that were missed are not made up for.
        due = max(due + options.every_seconds, time.monotonic())
    sampler.close()
    used, taken = time.process_time(), time.monotonic() - began
    say(f"sampled for {taken:.1f} s with {used:.2f} s of a CPU")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # A thread may hang in the driver: nothing waits for it.
    os._exit(code)
