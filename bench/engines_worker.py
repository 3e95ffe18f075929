"""One rank of a run of `bench/engines.py`, started by torchrun: `engines_worker.py JOB.json`.

It loads, takes its steps, and writes what it saw to RANK.json in the folder of the job.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from engines_contender import Contender, Replicated, Streamed, rows_of
from engines_host import beside_resident
from engines_job import Job
from engines_memory import AnonymousPeak, reset_peak, seconds_since_start, status_bytes
from transformers import logging

from launch.parent_death import die_with_parent
from orchestrator.engines.live import count_bytes, frozen_parameters

_TIMEOUT: Final = timedelta(seconds=600)


def maker(engine: str) -> Callable[[Job], Contender]:
    """Return what loads the base for an engine; libraries of the others are not imported."""
    if engine == "ddp":
        return Replicated
    if engine.startswith("streamed"):
        return Streamed
    if engine.startswith("zero3"):
        from engines_zero3 import Zero3

        return Zero3
    from engines_fsdp2 import Fsdp2

    return Fsdp2


class LiveMeter:
    """Counts the base's live bytes at every frozen linear module of a step, and keeps the largest moment.

    It looks when a module's forward pass begins (in the recomputation too) and when the gradient of its input is
    there. Its hooks run after the engine's own in the forward pass and before them in the backward pass, so that what
    was gathered for the module is still whole.
    """

    def __init__(self, contender: Contender) -> None:
        """Hook the modules."""
        self.most: dict[str, int] = {}
        self.looks = 0
        self._contender = contender
        modules = {module for module, _, is_linear in frozen_parameters(contender.model) if is_linear}
        modules.add(contender.model.get_output_embeddings())
        self._hooks = [module.register_forward_pre_hook(self._before) for module in modules]

    def _before(self, _module: object, args: tuple[torch.Tensor, ...]) -> None:
        self.look()
        if args[0].requires_grad:
            args[0].register_hook(self.look)  # type: ignore[no-untyped-call]

    def look(self, *_: object) -> None:
        """Count now."""
        self.looks += 1
        now = count_bytes(self._contender.live())
        if sum(now.values()) > sum(self.most.values()):
            self.most = now

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()


def measure(job: Job) -> dict[str, Any]:
    """Load, then take the steps."""
    make = maker(job.engine)
    dist.barrier()
    reset_peak()
    before = {"rss": status_bytes("VmRSS"), "anonymous": status_bytes("RssAnon", "RssShmem")}
    began = time.perf_counter()
    with AnonymousPeak() as anonymous:
        contender = make(job)
    loaded = {
        "load_seconds": time.perf_counter() - began,
        "rss_before_load_bytes": before["rss"],
        "load_peak_bytes": status_bytes("VmHWM") - before["rss"],
        "load_anonymous_peak_bytes": anonymous.peak_bytes - before["anonymous"],
        "load_peak_rss_bytes": status_bytes("VmHWM"),
    }
    reset_peak()
    dist.barrier()
    body = {**loaded, "startup_seconds": seconds_since_start(), **train(job, contender)}
    body["step_peak_rss_bytes"] = status_bytes("VmHWM")
    body["peak_rss_bytes"] = max(body["load_peak_rss_bytes"], body["step_peak_rss_bytes"])
    body["told"] = contender.told()
    contender.close()
    return body


def train(job: Job, contender: Contender) -> dict[str, Any]:
    """Take timed steps, then one in which live bytes are counted."""
    vocab = contender.model.config.vocab_size
    losses, seconds, cpu_seconds = [], [], []
    for step in range(job.steps):
        tokens = rows_of(job, vocab, step)
        dist.barrier()
        began, worked = time.perf_counter(), time.process_time()
        losses.append(contender.step(tokens))
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(time.process_time() - worked)
    meter = LiveMeter(contender)
    losses.append(contender.step(rows_of(job, vocab, job.steps)))
    meter.look()
    meter.close()
    timed = {"losses": losses, "step_seconds": seconds, "step_cpu_seconds": cpu_seconds}
    return {**timed, "live": meter.most, "looks": meter.looks}


def quiet() -> None:
    """Let libraries say nothing but errors."""
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main() -> int:
    """Do the job."""
    die_with_parent()
    body = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    job = Job(**{**body, "shares": tuple(body["shares"])})
    quiet()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    found = beside_resident(job) if job.engine == "one_device" else measure(job)
    (Path(job.out) / f"{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
