"""Commands with flags of Hydra: `-m`, `--cfg`, `--info`, `--help`. Trials are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.compose import compose_plain, config_folder, refused, register_resolvers, rewritten, swept_keys
from orchestrator.config_codec import parse_config
from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.hydra_flags import COMPLETION_FLAGS, SWEEP_FLAGS, check_flags, is_sweep, shows_config, split_flags
from orchestrator.hydra_words import OPTIONS, problem_of

SCHEMA: Final = 1
_PACKAGES: Final = Path(__file__).resolve().parent.parent
_FULL_ERRORS: Final = "HYDRA_FULL_ERROR"
_NOTHING_SWEPT: Final = "note: no key has several values, so there is one trial; KEY=A,B would try both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of a sweep: what it was asked, its exit code, and its result as JSON (empty: there is none)."""

    overrides: tuple[str, ...]
    code: int
    document: str


Finish = Callable[[Sequence[Trial], Path], None]


def run_hydra(verb: str, arguments: Sequence[str], *, needs_job: bool, finish: Finish | None = None) -> int:
    """Serve Hydra's own flags (--multirun, --cfg, --info, --help, shell completion).

    Args:
        verb: of the command line.
        arguments: flags and overrides after it.
        needs_job: whether model and data are required.
        finish: called at the end of a sweep with its trials and a folder for what belongs to all of them; each
            trial's result is then saved in that folder, unless `save` names another file.

    Raises:
        UserError: for flags that make no sense here and for wrong overrides.
    """
    overrides, flags = split_flags(arguments)
    check_flags(flags)
    register_resolvers()
    sweep = any(flag in flags for flag in SWEEP_FLAGS)
    words = overrides if any(flag in flags for flag in COMPLETION_FLAGS) else _checked(verb, overrides, sweep=sweep)
    if not sweep and words is not overrides:
        raw = compose_plain(words)
        if shows_config(flags):
            _check_values(raw, needs_job=needs_job)
    if is_sweep(arguments):
        say_if_nothing_swept(words)
    is_json = sweep and "format=json" in words
    trials: list[Trial] = []
    folder = Path("runs") / time.strftime(f"{verb}-sweep-%Y%m%d-%H%M%S")
    saves = folder if sweep and finish is not None else None
    sys.argv = [f"trainmaster {verb}", *flags, *words]
    code = _hydra(lambda _config: trials.append(_run_trial(verb, saves, is_json=is_json)))
    if is_json and trials:
        print(json.dumps(_body(trials), indent=2))
    if finish is not None and sweep and trials:
        finish(trials, folder)
    return code or max((trial.code for trial in trials), default=0)


def _checked(verb: str, overrides: Sequence[str], *, sweep: bool) -> list[str]:
    """Return the overrides as Hydra takes them, once nothing in them is wrong."""
    chosen = [item for item in overrides if item.lstrip("+").partition("=")[0] in OPTIONS]
    if sweep and chosen and not all(item.endswith("=basic") for item in chosen):
        remedy = "Only `trainmaster train -m` has other launchers and sweepers; leave it out."
        found = f"`{verb} -m` tries its values one after the other"
        raise UserError(Problem(where=chosen[0], found=found, remedy=remedy))
    words = rewritten(overrides, sweep=sweep)
    if wrong := list(refused(words, sweep=sweep)):
        raise UserError(*wrong)
    return words


def say_if_nothing_swept(words: Sequence[str]) -> None:
    """Tell who writes -m with single values only that there is one trial."""
    if not swept_keys(words) and not any(item.startswith("hydra") for item in words):
        print(_NOTHING_SWEPT, file=sys.stderr)


def _hydra(task: Callable[[Any], None]) -> int:
    """Let Hydra read `sys.argv` and call the task for each trial; returns the exit code of Hydra itself."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    main = hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(task)
    try:
        with errors_as_they_are():
            main()
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(problem_of(str(error), "`trainmaster VERB --cfg all` prints every key.")) from error
    except SystemExit as end:
        return 0 if end.code in (0, None) else int(ExitCode.BAD_INPUT)
    return 0


@contextmanager
def errors_as_they_are() -> Iterator[None]:
    """Hydra prints errors and ends the process unless this variable is set; trials shall not see it."""
    before = os.environ.get(_FULL_ERRORS)
    os.environ[_FULL_ERRORS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FULL_ERRORS]
        else:
            os.environ[_FULL_ERRORS] = before


def _run_trial(verb: str, folder: Path | None, *, is_json: bool) -> Trial:
    """Run one trial of a sweep as a process of its own: two in one would share GPU memory and environment."""
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    overrides = tuple(job.overrides.task)
    saved = next((item.partition("=")[2] for item in overrides if item.startswith("save=")), "").strip("'\"")
    extra: tuple[str, ...] = ()
    if folder is not None and not saved:
        saved = str(folder / f"{job.job.num}.json")
        extra = (f"save={saved}",)
    path = Path(saved)
    if folder is not None:
        path.unlink(missing_ok=True)  # of the trial before, which may have been the last to fit
    packages = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "orchestrator.cli", verb, *overrides, *extra],
        # The working directory may hold folders with the names of our packages.
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": packages},
        stdout=subprocess.PIPE if is_json else None,
        check=False,
    )
    if is_json:
        document = done.stdout.decode()
    else:
        document = path.read_text(encoding="utf-8") if folder is not None and path.is_file() else ""
    return Trial(overrides=overrides, code=done.returncode, document=document)


def _body(trials: Sequence[Trial]) -> dict[str, Any]:
    """One document for all trials; `result` is what the verb prints for one, null where it has none."""
    return {
        "schema": SCHEMA,
        "trials": [
            {"overrides": list(one.overrides), "exit_code": one.code, "result": _parsed(one.document)} for one in trials
        ],
    }


def _parsed(document: str) -> Any:  # noqa: ANN401 - a JSON value
    try:
        return json.loads(document)
    except ValueError:
        return None


def _check_values(raw: dict[str, Any], *, needs_job: bool) -> None:
    """Report wrong values; model and data may still be missing when one only looks at the keys."""
    try:
        parse_config(raw)
    except UserError as error:
        wrong = [problem for problem in error.problems if problem.found != "no value given" and needs_job]
        if wrong:
            raise UserError(*wrong) from error
