"""The rank's half of telemetry: what it knows of each step, written off the path of training."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from orchestrator.config import Fault, RunConfig
from orchestrator.monitor.copy_request import take
from orchestrator.monitor.gpu import Target
from orchestrator.monitor.process import SamplerProcess
from orchestrator.monitor.readings import CopyReading, RankReading
from orchestrator.monitor.recorder import Recorder
from orchestrator.monitor.sampler import Options
from orchestrator.monitor.store import rank_file
from orchestrator.monitor.tables import write_tables
from orchestrator.planner.plan import Plan
from orchestrator.trackers.process import TrackerProcess, names_of
from orchestrator.train.gradients import TOPOLOGY_FILE
from orchestrator.train.run_files import EventLog
from orchestrator.train.settings import TrainSettings
from orchestrator.train.timed_copy import copy_bytes_per_second
from orchestrator.train.waits import StepWaits
from topology.codec import from_json
from topology.errors import TopologyError
from topology.model import Device

_LIVE_SECONDS: Final = 30.0
_LIVE_SHARE: Final = 1e-3  # of the time, at most, that counting live bytes again may take
_LIVE_SOURCE: Final = "faults/readings.jsonl"  # a fault that is injected adds its readings there


class RankTelemetry:
    """Records the steps of one rank, and runs the sampler of its host where it is the first rank there."""

    def __init__(self, plan: Plan, config: RunConfig, settings: TrainSettings) -> None:
        """Start the sampler; with `monitor.enabled=false` nothing is ever done."""
        self._settings, self.is_on = settings, config.monitor.enabled
        self._host = host_of(plan, settings)
        ids = plan.chosen.strategy.device_ids
        self._device_id = ids[settings.rank % len(ids)]
        self._sampler: SamplerProcess | None = None
        self._recorder: Recorder | None = None
        self._waits: StepWaits | None = None
        self._memory = _MemoryReader(settings.device)
        self._step: tuple[float, float | None, float | None] = (math.nan, None, None)
        self._live: tuple[tuple[str, int], ...] = ()
        self._live_due = math.inf
        self._cpu_seconds, self._step_seconds, self._num_steps = 0.0, 0.0, 0
        self._count_live: Callable[[], Mapping[str, int]] | None = None
        self._trackers = _trackers(config, settings)
        if not self.is_on:
            return
        self._recorder = Recorder(rank_file(settings.run_dir, settings.rank))
        if settings.local_rank == 0:
            with contextlib.suppress(OSError):
                self._sampler = SamplerProcess(sampler_options(plan, config, settings))

    def attach(self, trainer: Any, group: Any, parameters: Sequence[nn.Parameter]) -> None:  # noqa: ANN401
        """Time the waits of the steps of a trainer, whose model is wrapped by now."""
        if self.is_on:
            settings = self._settings
            self._waits = StepWaits(trainer.model_wrapped, parameters, settings.device, settings.world_size)
            self._waits.attach(trainer.accelerator, group)

    def follow(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        """Go on with a model that was wrapped anew."""
        if self._waits is not None:
            self._waits.follow(model, parameters)

    def restart(self) -> None:
        """Leave a pause out of the step that follows."""
        if self._waits is not None:
            self._waits.restart()

    def step_ended(self, step_seconds: float) -> None:
        """Take the times of a step, as soon as it has ended."""
        began = time.thread_time()
        busy, communication = (None, None) if self._waits is None else self._waits.take(step_seconds)
        self._step = (step_seconds, busy, communication)
        self._cpu_seconds += time.thread_time() - began

    def first_live(self, count: Callable[[], dict[str, int]]) -> dict[str, int]:
        """Count the live bytes by term, which is done again now and then: one of them may grow."""
        began = time.monotonic()
        live = count()
        self._count_live = count
        self._set_live(live, time.monotonic() - began)
        return live

    def _set_live(self, live: Mapping[str, int], seconds: float) -> None:
        self._live = tuple(live.items())
        self._live_due = time.monotonic() + max(_LIVE_SECONDS, seconds / _LIVE_SHARE)

    def record(
        self,
        step: int,
        *,
        tokens: float | None = None,
        loss: float | None = None,
        grad_norm: float | None = None,
        prefetch_seconds: float | None = None,
    ) -> None:
        """Write the step that has ended."""
        if self._recorder is None:
            return
        began = time.thread_time()
        self._count_again()
        step_seconds, busy, communication = self._step
        if busy is not None and prefetch_seconds is not None:
            busy = max(0.0, busy - prefetch_seconds)
        reading = RankReading(
            time=time.time(),
            rank=self._settings.rank,
            host=self._host,
            step=step,
            step_seconds=step_seconds,
            busy_seconds=busy,
            communication_seconds=communication,
            prefetch_seconds=prefetch_seconds,
            tokens=tokens,
            rows=self._settings.shares[self._settings.rank],
            loss=loss,
            grad_norm=grad_norm,
            live_bytes=self._live,
            **self._memory.read(sum(held for _, held in self._live)),
        )
        self._recorder.put(reading)
        self._copy_if_asked()
        self._num_steps += 1
        self._step_seconds += step_seconds
        self._cpu_seconds += time.thread_time() - began

    def _copy_if_asked(self) -> None:
        """Time a copy to the device where somebody suspects its link."""
        settings = self._settings
        if self._recorder is None or not take(settings.run_dir, settings.rank):
            return
        rate = copy_bytes_per_second(settings.device)
        if rate is not None:
            self._recorder.put(
                CopyReading(time=time.time(), device=self._device_id, host=self._host, bytes_per_second=rate)
            )

    def _count_again(self) -> None:
        began = time.monotonic()
        if self._count_live is None or began < self._live_due:
            return
        self._live_due = began + _LIVE_SECONDS
        with contextlib.suppress(RuntimeError):  # no room for it on the device: it may be later
            live = self._count_live()
            self._set_live(live, time.monotonic() - began)

    def cost(self) -> dict[str, float]:
        """Return what recording took: CPU seconds of a step, and its share of the steps."""
        if self._recorder is None or not self._num_steps:
            return {}
        used = self._cpu_seconds + self._recorder.cpu_seconds
        return {
            "cpu_seconds_per_step": used / self._num_steps,
            "share_of_step": used / self._step_seconds if self._step_seconds > 0 else math.nan,
            "lost_readings": self._recorder.lost,
        }

    def flush(self, events: EventLog) -> None:
        """Write the last steps, before the ranks meet for the last time."""
        if self._recorder is not None:
            self._recorder.end()
            events.add("telemetry", **self.cost())

    def end(self) -> None:
        """End the sampler, once all ranks have written; on the first rank, write the tables of the run."""
        if self._sampler is not None:
            self._sampler.end()
        if self.is_on and self._settings.is_main:
            # What a full disk does not take is in the lines, too.
            with contextlib.suppress(OSError):
                write_tables(self._settings.run_dir)
        if self._trackers is not None:
            self._trackers.end()


def _trackers(config: RunConfig, settings: TrainSettings) -> TrackerProcess | None:
    """Start what tells W&B and the like, on rank 0: early, so that their libraries load while the model does."""
    names = names_of(config.monitor.report_to)
    if not names or not settings.is_main:
        return None
    with contextlib.suppress(OSError):
        return TrackerProcess(settings.run_dir, names, lambda line: print(line, flush=True))
    return None


class _MemoryReader:
    """Memory of this process and of its device, a few microseconds each step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, live_bytes: int) -> dict[str, int | None]:
        found = {"host_bytes": self._host_bytes()}
        if self._device.type != "cuda":
            return {**found, "device_bytes": live_bytes or None}
        stats = torch.cuda.memory.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return {
            **found,
            "device_bytes": int(allocated["current"]),
            "device_peak_bytes": int(allocated["peak"]),
            "reserved_bytes": int(reserved["current"]),
        }

    def _host_bytes(self) -> int | None:
        """Resident pages without those of files and shared memory, see proc(5)."""
        if self._file is None:
            return None
        try:
            _, resident, shared, *_ = os.pread(self._file, 256, 0).split()
        except (OSError, ValueError):
            return None
        return (int(resident) - int(shared)) * self._page_bytes


def host_of(plan: Plan, settings: TrainSettings) -> int:
    """Number of the host that this rank runs on."""
    strategy = plan.chosen.strategy
    if settings.world_size == strategy.world_size:
        return strategy.host_of(settings.rank)
    told = os.environ.get("GROUP_RANK", "0")
    return int(told) if told.isdecimal() else 0


def sampler_options(plan: Plan, config: RunConfig, settings: TrainSettings) -> Options:
    """Return what the sampler of this rank's host is to do."""
    monitor, host = config.monitor, host_of(plan, settings)
    return Options(
        run_dir=settings.run_dir,
        host=host,
        every_seconds=monitor.every_seconds,
        devices=tuple(_targets(plan, settings, host)),
        has_gpus=settings.device.type == "cuda",
        replay=Path(monitor.replay) if monitor.replay else None,
        followed=settings.run_dir / _LIVE_SOURCE if config.faults.name is not Fault.none else None,
        tensorboard=monitor.tensorboard or "tensorboard" in monitor.report_to,
        prometheus_port=monitor.prometheus_port,
        prometheus_address=monitor.prometheus_address,
    )


def _targets(plan: Plan, settings: TrainSettings, host: int) -> list[Target]:
    """The devices of this host's ranks, by their ids in the topology and the driver's names."""
    strategy = plan.chosen.strategy
    ids = [name for rank, name in enumerate(strategy.device_ids) if strategy.host_of(rank) == host]
    known = _devices(settings.run_dir)
    planned = [_target(name, known.get(name)) for name in ids]
    if settings.device.type != "cuda":
        return planned
    # The devices that run are those that CUDA shows, whatever was planned.
    count = min(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count())
    shown = [_shown(index) for index in range(count)]
    by_uuid = {device.uuid: name for name, device in known.items() if device.uuid}
    if not all(shown) or any(target.uuid.startswith("MIG-") for target in planned):
        return planned
    return [_target(by_uuid.get(uuid, uuid), known.get(by_uuid.get(uuid, "")), uuid) for uuid in shown]


def _target(name: str, device: Device | None, uuid: str = "") -> Target:
    if device is None:
        return Target(device=name, uuid=uuid)
    return Target(device=name, uuid=uuid or device.uuid or "", pci=device.pci or "")


def _shown(index: int) -> str:
    found = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
    return f"GPU-{found}" if found and not found.startswith("GPU-") else found


def _devices(run_dir: Path) -> dict[str, Device]:
    try:
        topology = from_json(json.loads((run_dir / TOPOLOGY_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TopologyError):
        return {}
    return {device.id: device for device in topology.devices}
