"""A fault in the rank that it comes to, at exactly the step that was asked for.

Before anything is done, a marker file and a line `fault_injected` of `events.jsonl` are brought to the disk. What
cannot be done for real, or not without harm to others, is left out with a line `fault_refused`.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from orchestrator.config import Fault, FaultPhase, FaultsConfig
from orchestrator.faults import act, marks, replay
from orchestrator.faults.fault import KINDS, Moment, Who, due, rank_of

_RANK_0: Final = frozenset({Fault.disk_full})  # it writes the checkpoints


class Injector:
    """Waits for the moment of a fault; without one, `reached` costs a comparison."""

    def __init__(
        self,
        config: FaultsConfig,
        run_dir: Path,
        *,
        rank: int,
        world_size: int,
        attempt: int,
        device: str = "cpu",
        local_rank: int = 0,
        host: int = 0,
    ) -> None:
        """Learn what has come in this run already.

        Args:
            config: which fault, and when.
            run_dir: of the run.
            rank: of this process.
            world_size: number of ranks.
            attempt: of the run.
            device: of this rank, as torch calls it.
            local_rank: number of this rank among those of its host.
            host: number of its host.
        """
        self._config, self._run_dir, self._rank, self._attempt = config, run_dir, rank, attempt
        wanted = 0 if config.name in _RANK_0 else rank_of(config, world_size)
        self.is_on = config.name is not Fault.none and rank == wanted
        self._fired = set(marks.fired(run_dir, config.name)) if self.is_on else set()
        if self.is_on and KINDS[config.name].who is Who.scheduler:
            why = "only `trainmaster faults run` does this"
            marks.tell(run_dir, "fault_refused", fault=config.name.value, attempt=attempt, rank=rank, why=why)
            self.is_on = False
        self._is_slow = config.name is Fault.slow_rank and bool(self._fired)
        self._cpu_seconds = time.thread_time()
        self._hooks: list[Any] = []
        self._hooked_step = 0
        self._device, self._device_number, self._host = device, f"#{local_rank}", host
        self.parameters: Callable[[], Iterable[Any]] = tuple

    def reached(self, phase: FaultPhase, step: int, micro: int = 0) -> None:
        """Say where this rank is; may not return.

        Args:
            phase: what the rank does.
            step: that it works on, from 1; while it evaluates or saves, the one it has done.
            micro: micro-steps of it that are done.

        Raises:
            MemoryError, RuntimeError: what an allocator says when it refuses.
        """
        if not self.is_on:
            return
        moment = Moment(phase=phase, step=step, micro=micro)
        if self._hooks and step != self._hooked_step:
            self._unhook()
        wanted = due(self._config, moment, self._attempt, self._fired)
        if wanted is not None and not (KINDS[self._config.name].waits and act.newest_checkpoint(self._run_dir) is None):
            self._inject(wanted, moment)
        if self._is_slow:
            self._sleep()

    def _inject(self, wanted: int, moment: Moment) -> None:
        self._fired.add(wanted)
        told = {
            "fault": self._config.name.value,
            "attempt": self._attempt,
            "step": moment.step,
            "rank": self._rank,
            "phase": moment.phase.value,
            "steps_done": moment.step - (moment.phase is FaultPhase.training),
        }
        if not marks.mark(self._run_dir, self._config.name, wanted, told):
            return
        try:
            self._ready()
            marks.tell(self._run_dir, "fault_injected", **told)
            self._act(moment)
        except act.Refused as error:
            marks.tell(self._run_dir, "fault_refused", **told, why=str(error))

    def _ready(self) -> None:
        """Find out whether a fault can be done before it is told of."""
        if self._config.name is Fault.kill_supervisor:
            act.supervisor_pid()
        elif self._config.name in {Fault.kill_launcher, Fault.stop_launcher}:
            act.launcher_pid()
        elif self._config.name is Fault.disk_full:
            act.check_small(self._run_dir / "checkpoints")
        elif self._config.name in {Fault.slow_link, Fault.cut_link}:
            act.interface()

    def _act(self, moment: Moment) -> None:  # noqa: C901, PLR0912 - one case a fault
        match self._config.name:
            case Fault.kill_rank:
                act.kill_self()
            case Fault.stop_rank:
                act.stop_self()
            case Fault.kill_launcher:
                os.kill(act.launcher_pid(), signal.SIGKILL)
            case Fault.stop_launcher:
                os.kill(act.launcher_pid(), signal.SIGSTOP)
            case Fault.kill_supervisor:
                os.kill(act.supervisor_pid(), signal.SIGKILL)
            case Fault.hang:
                act.hang()
            case Fault.slow_rank:
                self._is_slow, self._cpu_seconds = True, time.thread_time()
            case Fault.out_of_memory if self._device.startswith("cuda"):
                act.exhaust_device(self._device)
            case Fault.out_of_memory:
                act.exhaust_host()
            case Fault.nan_gradients:
                self._hook(moment.step)
            case Fault.corrupt_checkpoint | Fault.truncate_checkpoint:
                self._damage()
            case Fault.disk_full:
                act.fill(self._run_dir / "checkpoints")
            case Fault.slow_link:
                act.slow_link(self._config.factor)
            case Fault.cut_link:
                act.cut_link(self._config.seconds)
            case _:
                replay.play(self._run_dir, self._config.name, self._device_number, self._host)

    def _damage(self) -> None:
        newest = act.newest_checkpoint(self._run_dir)
        if newest is not None:
            is_cut = self._config.name is Fault.truncate_checkpoint
            path = act.cut(newest) if is_cut else act.flip_bit(newest)
            marks.tell(self._run_dir, "checkpoint_damaged", path=str(path))
        act.kill_self()

    def _hook(self, step: int) -> None:
        """Make this rank's gradients NaN as they are made, before any sum over ranks sees them."""
        self._hooked_step = step
        self._hooks = [parameter.register_hook(_not_a_number) for parameter in self.parameters()]

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _sleep(self) -> None:
        """Take `factor` times the CPU seconds of what was done since the last boundary.

        Of the thread, not of the wall: waits for the others must not make this rank slower still.
        """
        taken = time.thread_time() - self._cpu_seconds
        time.sleep(taken * (self._config.factor - 1))
        self._cpu_seconds = time.thread_time()


def _not_a_number(gradient: Any) -> Any:  # noqa: ANN401 - a tensor; torch is not imported here
    return gradient * math.nan
