"""One rank: `python -m orchestrator.train.worker RUN_DIR/plan.json`, under any launcher.

Nothing heavy is imported before the variables that libraries read at import time are set.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path

from launch.parent_death import die_with_parent
from launch.srun_rank import variables_of_srun, wrong_variables
from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.monitor.beat import ENDED, Heart, attempt_of
from orchestrator.planner.plan import Plan, loads
from orchestrator.recovery.memory_errors import memory_error

ERROR_PREFIX = "trainmaster-error: "  # a line the launching side reads back


def read_plan(path: Path) -> Plan:
    """Read the plan of a run.

    Raises:
        UserError: when it is missing or not a plan.
    """
    try:
        return loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            Problem(
                where=str(path),
                found=error.strerror or str(error),
                remedy="Write it with `trainmaster plan run_dir=RUN_DIR`.",
            )
        ) from error


def plan_path(arguments: list[str]) -> Path:
    """Return the one argument.

    Raises:
        UserError: when there are none or more.
    """
    if len(arguments) == 1:
        return Path(arguments[0]).resolve()
    raise UserError(
        Problem(
            where="worker",
            found=f"found {len(arguments)} arguments",
            remedy="Give the path of plan.json and nothing else.",
        )
    )


def check_variables() -> None:
    """Look at what the launcher, or whoever started this rank by hand, says of it.

    Raises:
        UserError: naming each variable that is missing or makes no sense.
    """
    remedy = "Let torchrun, deepspeed or srun start the ranks, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
    wrong = wrong_variables(os.environ)
    if wrong:
        raise UserError(*(Problem(where=name, found=found, remedy=remedy) for name, found in wrong))


def _meeting_problem(error: Exception) -> Problem:
    where = f"MASTER_ADDR={os.environ.get('MASTER_ADDR')}, MASTER_PORT={os.environ.get('MASTER_PORT')}"
    remedy = "Choose another MASTER_PORT if it is taken; rank 0 must run on the host of MASTER_ADDR."
    return Problem(where=where, found=str(error).splitlines()[0], remedy=remedy)


def set_environment(plan: Plan) -> None:
    """Set what the launcher sets, for ranks that were started by hand; the user's values win."""
    wanted = {
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(plan.chosen.strategy.threads_of(int(os.environ.get("RANK", "0")))),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    if plan.device_kind == "cpu":
        wanted |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}
    if plan.chosen.strategy.allocator:
        wanted["PYTORCH_ALLOC_CONF"] = plan.chosen.strategy.allocator
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    # With this switch accelerate ignores that DeepSpeed is in charge; the device is ours to say.
    os.environ.pop("ACCELERATE_USE_CPU", None)


def quiet_libraries() -> None:
    """Keep notices that a user can do nothing about off the console.

    The libraries warn about each other's deprecated names, and bitsandbytes about an optional
    package of CPU kernels.
    """
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


def report(error: UserError) -> None:
    """Say a user's error once, in a form the launching side can pass on."""
    if os.environ.get("RANK", "0") == "0" or wrong_variables(os.environ):
        problems = [{"where": p.where, "found": p.found, "remedy": p.remedy} for p in error.problems]
        body = {"exit_code": int(error.exit_code), "problems": problems}
        print(ERROR_PREFIX + json.dumps(body), flush=True)


def _told_of_memory(error: Exception, heart: Heart | None, arguments: list[str]) -> bool:
    """Tell where memory ran out outside of the run itself: while libraries were imported, or rows read."""
    if heart is None or memory_error(error) is None:
        return False
    with contextlib.suppress(Exception):  # importing what tells it needs memory, too
        from orchestrator.train.out_of_memory import tell

        tell(error, heart, plan_path(arguments).parent)
    return True


def _failed(code: int, heart: Heart | None) -> int:
    return code if heart is None else heart.fail(code)


def main(arguments: list[str] | None = None) -> int:
    """Run this rank to its end; torchrun turns any other code than 0 into a failed run."""
    die_with_parent()
    arguments = sys.argv[1:] if arguments is None else arguments
    os.environ |= variables_of_srun(os.environ)
    heart: Heart | None = None
    try:
        check_variables()
        path = plan_path(arguments)
        plan = read_plan(path)
        set_environment(plan)
        quiet_libraries()
        is_shared = plan.chosen.strategy.num_nodes > 1
        heart = Heart(path.parent, int(os.environ.get("RANK", "0")), attempt_of(path.parent), is_shared=is_shared)
        if os.environ.get("RANK", "0") == "0":
            print("loading torch, transformers and TRL", flush=True)
        from orchestrator.train.rank import run_rank

        run_rank(plan, path.parent, heart)
        heart.beat(ENDED)
    except UserError as error:
        if _told_of_memory(error, heart, arguments):  # a library's failure that was taken for a damaged file
            return _failed(1, heart)
        report(error)
        return _failed(int(ExitCode.BAD_INPUT), heart)
    except Exception as error:  # noqa: BLE001 - whatever it is, the log must hold it
        _told_of_memory(error, heart, arguments)
        if type(error).__name__ == "DistNetworkError":  # torch is imported late
            report(UserError(_meeting_problem(error)))
            return _failed(int(ExitCode.BAD_INPUT), heart)
        # The other ranks wait in a collective: the traceback must be out before they are ended.
        traceback.print_exc()
        sys.stderr.flush()
        return _failed(1, heart)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Skip interpreter shutdown: threads of communication libraries may outlive their groups there.
    os._exit(code)
