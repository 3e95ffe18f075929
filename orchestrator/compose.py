"""Hydra at the edge: the config folder, its groups, and one composed configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.config import RunConfig
from orchestrator.config_codec import parse_config
from orchestrator.errors import Problem, UserError
from orchestrator.overrides import rewrite

_PACKAGE = Path(__file__).resolve().parent
SWEEP_FLAGS = ("-m", "--multirun")
_FLAGS_WITH_VALUE = frozenset({"--cfg", "-c", "--package", "-p", "--config-dir", "-cd"})


def shipped_folder(name: str) -> Path:
    """Return a folder that ships with the package: beside it in a checkout, inside it in a wheel."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def config_folder() -> Path:
    """Return the folder of the config groups."""
    return shipped_folder("configs")


def groups() -> dict[str, list[str]]:
    """Return the options of every config group."""
    return {
        folder.name: sorted(path.stem for path in folder.glob("*.yaml"))
        for folder in sorted(config_folder().iterdir())
        if folder.is_dir()
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
    except (HydraException, OmegaConfBaseException) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            Problem(
                where=" ".join(overrides) or "configuration",
                found=first,
                remedy="`trainmaster VERB --cfg job` prints every key with its value.",
            )
        ) from error


def plain(container: object) -> dict[str, Any]:
    """Check that Hydra gave a mapping, and drop its own node."""
    if not isinstance(container, dict):
        raise TypeError(f"expected a mapping, found {type(container).__name__}")
    return {str(key): value for key, value in container.items() if key != "hydra"}


def run_hydra(verb: str, arguments: Sequence[str]) -> int:
    """Serve Hydra's own flags (--multirun, --cfg, --info, shell completion).

    Each trial of a sweep runs as a process of its own: trials in one process would share
    GPU memory and environment.
    """
    import subprocess
    import sys

    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    register_resolvers()
    overrides, flags = _split_flag_values(arguments)
    sweep = any(flag in arguments for flag in SWEEP_FLAGS)
    sys.argv = [f"trainmaster {verb}", *flags, *rewrite(overrides, groups(), sweep=sweep)]
    worst = 0

    def task(_config: DictConfig) -> int:
        nonlocal worst
        chosen = list(HydraConfig.get().overrides.task)
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "orchestrator.cli", verb, *chosen], check=False
        )
        worst = max(worst, done.returncode)
        return done.returncode

    decorate = hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")
    decorate(task)()
    return worst


def _split_flag_values(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell flags and their values from overrides: the value of --cfg is a word of its own."""
    overrides: list[str] = []
    flags: list[str] = []
    takes_value = False
    for item in arguments:
        if takes_value or item.startswith("-"):
            flags.append(item)
            takes_value = not takes_value and item in _FLAGS_WITH_VALUE
        else:
            overrides.append(item)
    return overrides, flags
