"""`resume=RUN_DIR` alone is enough: the saved configuration stands in for what is not repeated.

What the command that started the run left to the planner (`data.packing=auto`, `optimizer=auto`) was settled then. The
run goes on with what its plan holds, however the command that resumes it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.compose import compose, groups
from orchestrator.inputs import located
from orchestrator.overrides import quote
from orchestrator.run_dir import OF_THE_COMMAND, choose, folder_of, leaves, open_keys, saved_config

_LEFT_OPEN = frozenset({"auto", "null", "none", ""})


def with_saved_config(arguments: Sequence[str]) -> list[str]:
    """Put the saved values of the run to resume before the user's own overrides, which win.

    Raises:
        UserError: `resume=true` finds no such run, or the folder named holds none.
    """
    given = dict(item.split("=", 1) for item in arguments if "=" in item)
    resume = given.get("resume", "").strip("'\"")
    if resume.lower() in {"", "false"}:
        return list(arguments)
    if resume.lower() == "true":
        return [*arguments, *_settled(arguments)]
    path = folder_of(resume)
    own = [item for item in arguments if not _is_left_open(item)]
    chosen_groups = {item.split("=", 1)[0] for item in own} & set(groups())
    kept = {
        key: value
        for key, value in leaves(saved_config(path))
        if key not in OF_THE_COMMAND and key.split(".", 1)[0] not in chosen_groups
    }
    return [*(f"{key}={_text(value)}" for key, value in kept.items()), *own]


def _is_left_open(argument: str) -> bool:
    """Whether it leaves to the planner what the saved plan has settled."""
    key, _, value = argument.partition("=")
    names = {"optimizer", "optimizer.name", "data.packing", "adapter.rank"}
    return key in names and value.strip("'\"").lower() in _LEFT_OPEN


def _settled(arguments: Sequence[str]) -> Iterator[str]:
    """What the run that `resume=true` means has settled of what this command leaves open."""
    config = located(compose(arguments)[0])
    left = open_keys(config)
    if left:
        saved = dict(leaves(saved_config(choose(config).path)))
        yield from (f"{key}={_text(saved[key])}" for key in left if key in saved)


def _text(value: object) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        return f"[{','.join(_mapping(item) for item in value)}]"
    if isinstance(value, (list, tuple)) and any("," in item for item in value if isinstance(item, str)):
        return f"[{','.join(quote(str(item)) for item in value)}]"  # prompts and expressions hold commas of their own
    if isinstance(value, (list, tuple)):
        return quote(",".join(str(item) for item in value))
    return quote(value) if isinstance(value, str) else str(value)


def _mapping(item: Mapping[str, object]) -> str:
    """A group of keys as Hydra's grammar writes it."""
    values = ((key, "null" if value is None else _text(value)) for key, value in item.items())
    return "{" + ",".join(f"{key}:{value}" for key, value in values) + "}"
