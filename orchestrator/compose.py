"""Hydra at the edge: the config folder, its groups, and one composed configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config import RunConfig
from orchestrator.config_codec import parse_config
from orchestrator.errors import Problem, UserError
from orchestrator.experiments import GROUP, with_own_experiments
from orchestrator.hydra_flags import check_flags, split_flags
from orchestrator.hydra_words import of_a_sweep_only, problem_of
from orchestrator.mixture_file import with_sources
from orchestrator.overrides import rewrite

_PACKAGE = Path(__file__).resolve().parent


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
    if alone := [problem for item in arguments if (problem := of_a_sweep_only(item)) is not None]:
        raise UserError(*alone)
    overrides = rewritten(arguments, sweep=False)
    raw = with_sources(compose_plain(overrides))
    if not needs_job:
        for group in ("model", "data"):
            raw[group] = {**raw[group], "path": raw[group].get("path", "").replace("???", "") or "none"}
    return parse_config(raw), overrides


def rewritten(arguments: Sequence[str], *, sweep: bool) -> list[str]:
    """Return overrides that Hydra understands, files of experiments included."""
    if not any(item.lstrip("+").startswith(f"{GROUP}=") for item in arguments):
        return rewrite(arguments, groups(), sweep=sweep)
    words, options = with_own_experiments(arguments, groups(), sweep=sweep)
    return rewrite(words, options, sweep=sweep)


def compose_plain(overrides: Sequence[str]) -> dict[str, Any]:
    """Let Hydra compose; returns plain values.

    Raises:
        UserError: naming what Hydra refuses.
    """
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
    general = problem_of(str(error), "`trainmaster VERB --cfg job` prints every key.")
    return next(refused(overrides, sweep=False), general)


def refused(overrides: Sequence[str], *, sweep: bool) -> Iterator[Problem]:
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


def sweep_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return flags and overrides of a sweep, as Hydra takes them.

    Raises:
        UserError: for flags that make no sense here and for wrong overrides.
    """
    overrides, flags = split_flags(arguments)
    check_flags(flags)
    words = rewritten(overrides, sweep=True)
    if wrong := list(refused(words, sweep=True)):
        raise UserError(*wrong)
    return flags, words


def swept_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that a sweep varies, in their order."""
    return tuple(dict.fromkeys(one.get_key_element() for one in _parsed(overrides) if one.is_sweep_override()))


def interval_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that have an interval to choose from."""
    return tuple(one.get_key_element() for one in _parsed(overrides) if one.is_interval_sweep())


def _parsed(overrides: Sequence[str]) -> list[Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return list(OverridesParser.create().parse_overrides(list(overrides)))
