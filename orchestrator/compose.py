"""Hydra at the edge: the config folder, its groups, and one composed configuration."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import RunConfig
from orchestrator.config_codec import parse_config
from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.overrides import rewrite

_PACKAGE = Path(__file__).resolve().parent
SWEEP_FLAGS = ("-m", "--multirun")
_COMPLETION_FLAGS = ("--shell-completion", "-sc")
_FLAGS_WITH_VALUE = frozenset({"--cfg", "-c", "--package", "-p", *_COMPLETION_FLAGS})
_INFO_FLAGS = ("--info", "-i")
_INFO_VALUES = frozenset({"all", "config", "defaults", "defaults-tree", "plugins", "searchpath"})
_REFUSED_FLAGS = frozenset(
    {"--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--experimental-rerun", "--run", "-r"}
)


def shipped_folder(name: str) -> Path:
    """Return a folder that ships with the package: beside it in a checkout, inside it in a wheel."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def config_folder() -> Path:
    """Return the folder of the config groups."""
    return shipped_folder("configs")


def groups() -> dict[str, list[str]]:
    """Return the options of every config group but Hydra's own."""
    return {
        folder.name: sorted(path.stem for path in folder.glob("*.yaml"))
        for folder in sorted(config_folder().iterdir())
        if folder.is_dir() and folder.name != "hydra"
    }


def register_resolvers() -> None:
    """Make `${example:NAME}` stand for a folder of the shipped examples."""
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("example"):
        OmegaConf.register_new_resolver("example", lambda name: str(shipped_folder("examples") / name))


def compose(arguments: Sequence[str], *, needs_job: bool = True) -> tuple[RunConfig, list[str]]:
    """Compose the configuration from overrides; returns it with the overrides as Hydra got them.

    Args:
        arguments: what the user typed after the verb.
        needs_job: whether model and data are required (probing a machine needs neither).

    Raises:
        UserError: for unknown keys, groups, options and values, all at once where possible.
    """
    overrides = rewrite(arguments, groups())
    raw = _compose_plain(overrides)
    if not needs_job:
        for group in ("model", "data"):
            raw[group] = {**raw[group], "path": raw[group].get("path", "").replace("???", "") or "none"}
    return parse_config(raw), overrides


def _compose_plain(overrides: Sequence[str]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    register_resolvers()
    try:
        with initialize_config_dir(config_dir=str(config_folder()), version_base="1.3"):
            node = hydra_compose(config_name="config", overrides=list(overrides))
        return plain(OmegaConf.to_container(node, resolve=True))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_compose_problem(overrides, error)) from error


def _compose_problem(overrides: Sequence[str], error: Exception) -> Problem:
    """Name the override that Hydra refuses, if it is one of them."""
    found = str(error).strip().splitlines()[0]
    general = Problem(where="configuration", found=found, remedy="`trainmaster VERB --cfg job` prints every key.")
    return next(_refused(overrides, sweep=False), general)


def _refused(overrides: Sequence[str], *, sweep: bool) -> Iterator[Problem]:
    """Yield the overrides that Hydra's grammar does not take."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    for override in overrides:
        try:
            parsed = parser.parse_override(override)
        except (HydraException, ValueError) as error:  # a number of thousands of digits is a ValueError
            found = str(error).strip().splitlines()[0]
            yield Problem(where=override[:_SHOWN], found=found, remedy="Put the value in quotes: KEY='VALUE'.")
        else:
            if parsed.is_sweep_override() and not sweep:
                remedy = "Put it in quotes, or in brackets for a list; add -m to sweep over the values."
                yield Problem(where=override, found="commas separate the values of a sweep", remedy=remedy)


_SHOWN = 120  # characters of an override that a message repeats


def plain(container: object) -> dict[str, Any]:
    """Check that Hydra gave a mapping, and drop its own node."""
    if not isinstance(container, dict):
        raise TypeError(f"expected a mapping, found {type(container).__name__}")
    return {str(key): value for key, value in container.items() if key != "hydra"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of a sweep: what it was asked, its exit code, and what it saved (empty: nothing)."""

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
    import hydra

    overrides, flags = split_flags(arguments)
    _check_flags(flags)
    register_resolvers()
    sweep = any(flag in flags for flag in SWEEP_FLAGS)
    chosen = [item for item in overrides if item.lstrip("+").startswith(("hydra/sweeper=", "hydra/launcher="))]
    if sweep and chosen and not all(item.endswith("=basic") for item in chosen):
        remedy = "Only `trainmaster train -m` has other launchers and sweepers; leave it out."
        raise UserError(
            Problem(where=chosen[0], found=f"`{verb} -m` tries its values one after the other", remedy=remedy)
        )
    completes = any(flag in flags for flag in _COMPLETION_FLAGS)
    rewritten = list(overrides) if completes else rewrite(overrides, groups(), sweep=sweep)
    refused = [] if completes else list(_refused(rewritten, sweep=sweep))
    if refused:
        raise UserError(*refused)
    if not sweep and not completes:
        raw = _compose_plain(rewritten)
        if any(flag in flags for flag in ("--cfg", "-c")):
            _check_values(raw, needs_job=needs_job)
    sys.argv = [f"trainmaster {verb}", *flags, *rewritten]
    trials: list[Trial] = []
    folder = Path("runs") / time.strftime(f"{verb}-sweep-%Y%m%d-%H%M%S")
    saves = folder if sweep and finish is not None else None
    task = hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(
        lambda _config: trials.append(_run_trial(verb, saves))
    )
    try:
        task()
    except SystemExit as end:
        if end.code not in (0, None):
            return int(ExitCode.BAD_INPUT)
    if finish is not None and sweep and trials:
        finish(trials, folder)
    return max((trial.code for trial in trials), default=0)


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether these words start a sweep, rather than ask Hydra for something."""
    flags = split_flags(arguments)[1]
    asks = ("--cfg", "-c", "--help", "-h", "--hydra-help", *_INFO_FLAGS, *_COMPLETION_FLAGS)
    return any(flag in flags for flag in SWEEP_FLAGS) and not any(flag.split("=")[0] in asks for flag in flags)


def sweep_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return flags and overrides of a sweep, as Hydra takes them.

    Raises:
        UserError: for flags that make no sense here and for wrong overrides.
    """
    overrides, flags = split_flags(arguments)
    _check_flags(flags)
    rewritten = rewrite(overrides, groups(), sweep=True)
    refused = list(_refused(rewritten, sweep=True))
    if refused:
        raise UserError(*refused)
    return flags, rewritten


def swept_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that a sweep varies, in their order."""
    return tuple(dict.fromkeys(one.get_key_element() for one in _parsed(overrides) if one.is_sweep_override()))


def interval_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that have an interval to choose from."""
    return tuple(one.get_key_element() for one in _parsed(overrides) if one.is_interval_sweep())


def _parsed(overrides: Sequence[str]) -> list[Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return list(OverridesParser.create().parse_overrides(list(overrides)))


def _run_trial(verb: str, folder: Path | None) -> Trial:
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
    packages = os.pathsep.join(filter(None, (str(_PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "orchestrator.cli", verb, *overrides, *extra],
        # The working directory may hold folders with the names of our packages.
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": packages},
        check=False,
    )
    document = path.read_text(encoding="utf-8") if folder is not None and path.is_file() else ""
    return Trial(overrides=overrides, code=done.returncode, document=document)


def _check_values(raw: dict[str, Any], *, needs_job: bool) -> None:
    """Report wrong values; model and data may still be missing when one only looks at the keys."""
    try:
        parse_config(raw)
    except UserError as error:
        wrong = [problem for problem in error.problems if problem.found != "no value given" and needs_job]
        if wrong:
            raise UserError(*wrong) from error


def _check_flags(flags: Sequence[str]) -> None:
    for flag in flags:
        if flag.split("=", 1)[0] in _REFUSED_FLAGS:
            raise UserError(
                Problem(
                    where=flag,
                    found="the configuration lies in the package",
                    remedy="Set single keys with KEY=VALUE, or pick options of the groups that VERB --help lists.",
                )
            )


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell flags and their values from overrides: the value of --cfg is a word of its own."""
    overrides: list[str] = []
    flags: list[str] = []
    for item in arguments:
        before = flags[-1] if flags else ""
        is_value = before in _FLAGS_WITH_VALUE or (before in _INFO_FLAGS and item in _INFO_VALUES)
        if item.startswith("-") or (is_value and flags and arguments[arguments.index(item) - 1] == before):
            flags.append(item)
        else:
            overrides.append(item)
    return overrides, flags
