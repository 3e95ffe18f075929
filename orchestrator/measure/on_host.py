"""The parts that ranks of one host measure together: `python -m orchestrator.measure.on_host REQUEST` (see `serve`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

from orchestrator.measure.device import versions
from orchestrator.measure.serve import Entry, Request, serve
from orchestrator.measure.use import COLLECTIVES, LINKS

_MOST_CPU_RANKS: Final = 4
_LAST_WORDS: Final = 300
_LOOK_SECONDS: Final = 0.2


def main(arguments: list[str]) -> int:
    """Measure; returns the exit code."""
    wanted = ",".join(json.loads(arguments[0])["parts"])

    def part(name: str) -> Any:  # noqa: ANN401 - a function of a request
        def measure(request: Request) -> list[Entry]:
            return [Entry(**body) for body in _found(request.device, wanted)[name]]

        return measure

    return serve(arguments, {LINKS: part(LINKS), COLLECTIVES: part(COLLECTIVES)}, versions)


@cache
def _found(device: str, parts: str) -> dict[str, list[dict[str, Any]]]:
    """What the ranks measured: once for both parts, since the collectives need the links."""
    size = _ranks(device)
    with tempfile.TemporaryDirectory() as folder:
        entries = Path(folder) / "entries.json"
        command = [sys.executable, "-m", "orchestrator.measure.group", "--parts", parts]
        command += ["--init", f"file://{folder}/meet", "--entries", str(entries)]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            codes = _run(command, size, errors)
            if any(codes):
                errors.seek(0)
                last = [line.strip() for line in errors.read().splitlines() if line.strip()][-1:]
                raise RuntimeError(f"ranks ended with {codes}: {' '.join(last)[:_LAST_WORDS]}")
        found: dict[str, list[dict[str, Any]]] = json.loads(entries.read_text(encoding="utf-8"))
        return found


def _ranks(device: str) -> int:
    if device != "cpu":
        import torch

        size = torch.cuda.device_count()
        if size < 2:  # noqa: PLR2004 - one device copies to nobody
            raise RuntimeError("one device: nothing to copy to")
        return int(size)
    return min(_MOST_CPU_RANKS, max(2, len(os.sched_getaffinity(0))))


def _run(command: list[str], size: int, errors: Any) -> list[int]:  # noqa: ANN401 - an open file
    ranks: list[subprocess.Popen[bytes]] = []
    environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "WORLD_SIZE": str(size), "GROUP_RANK": "0"}
    try:
        for rank in range(size):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env=own, stdout=errors, stderr=errors))  # noqa: S603 - our module
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break  # the others would wait for the one that failed
            time.sleep(_LOOK_SECONDS)
        return [rank.poll() or 0 for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
