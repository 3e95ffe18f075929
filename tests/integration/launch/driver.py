"""Run as a process of its own by the tests: build a request, execute it, print the outcome."""

import json
import os
import sys
from pathlib import Path

from launch import backends
from launch.execute import execute, free_port
from launch.spec import Backend, DeviceKind, LaunchSpec


def main(backend_name: str, module: str, run_dir: str, grace_seconds: str) -> None:
    """Run `module` (a file in `run_dir`) on two ranks, or on one without a launcher."""
    backend = Backend[backend_name]
    repository = Path(backends.__file__).parents[2]
    spec = LaunchSpec(
        module=module,
        args=("--text=a b",),
        run_dir=run_dir,
        processes_per_node=1 if backend is Backend.local else 2,
        env=(("PYTHONPATH", f"{run_dir}{os.pathsep}{repository}"),),
        python=sys.executable,
        master_port=free_port() if backend is Backend.deepspeed else None,
        name="attempt-1",
        device_kind=DeviceKind.cpu,
    )
    user_env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    outcome = execute(
        backends.build(backend, spec),
        user_env=user_env,
        on_line=lambda line: print(line, flush=True),
        grace_seconds=float(grace_seconds),
    )
    result = {
        "returncode": outcome.returncode,
        "stopped_by_signal": outcome.stopped_by_signal,
        "leftovers": outcome.leftovers,
    }
    Path(run_dir, "outcome.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
