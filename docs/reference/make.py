"""Write the generated pages of docs/reference anew: `python docs/reference/make.py`, from the root of the repository.

Keys, values and defaults come from the dataclasses, their text from the comments in configs/, verbs from the table of
the command line, machines and models from the presets. `--check` writes nothing and ends with 1 where a page is out of
date.
"""  # noqa: INP001 - a script

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from orchestrator.compose import config_folder, groups
from orchestrator.config import RunConfig
from orchestrator.errors import ExitCode
from orchestrator.verbs.table import VERBS, Needs
from orchestrator.workload.named import presets
from topology.presets import preset, preset_names
from topology.units import GIB

HERE = Path(__file__).resolve().parent
MADE = "Made by `python docs/reference/make.py` from the configuration itself; changes belong there.\n"
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[a-z_0-9]+):(?: (?P<value>.*))?$")
_SHOWN_WORDS = 12
EXIT_TEXTS = {
    ExitCode.DONE: "done",
    ExitCode.BAD_INPUT: "bad input: one line for each problem, no traceback",
    ExitCode.NOTHING_FITS: "no strategy fits; the reason of each is printed",
    ExitCode.RUN_FAILED: "the run failed; the message names the logs",
    ExitCode.RESUMABLE: "stopped, can be resumed",
}


def comments_of(text: str) -> dict[str, str]:
    """Text of each key of a YAML file, by its path in it (`bench.only`): the comment below the key.

    Keys in a row without a comment between them share the one below the last.
    """
    found: dict[str, str] = {}
    open_keys: list[str] = []
    parents: list[tuple[int, str]] = []
    words: list[str] = []

    def close() -> None:
        for key in open_keys if words else ():
            found[key] = " ".join(words)
        if words:
            open_keys.clear()
        words.clear()

    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("#") and open_keys:
            words.append(comment.lstrip("# "))
            continue
        close()
        match = _KEY.match(line)
        if not match:
            open_keys[:] = [] if not line.strip() else open_keys
            continue
        depth = len(match["indent"])
        if parents and parents[-1][0] < depth:
            open_keys.clear()  # the text below is the child's
        parents = [one for one in parents if one[0] < depth]
        parents.append((depth, match["key"]))
        open_keys.append(".".join(key for _, key in parents))
    close()
    return found


def words_of(hint: object) -> str:
    """What a field takes, in words."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = [f"`{member.value}`" for member in hint]
        more = len(values) - _SHOWN_WORDS
        return ", ".join(values[:_SHOWN_WORDS]) + (f" and {more} more" if more > 0 else "")
    if isinstance(hint, types.UnionType):
        inner = next(one for one in typing.get_args(hint) if one is not type(None))
        return f"`auto` or {words_of(inner)}"
    if typing.get_origin(hint) is tuple:
        return f"list of {'numbers' if typing.get_args(hint)[0] is float else 'names'}"
    return {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}.get(hint, str(hint))  # type: ignore[call-overload]


def default_of(value: object) -> str:
    """A default as one would type it."""
    if value == "???":
        return "must be given"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value in ("", None):
        return "empty"
    if isinstance(value, list):
        return f"`[{','.join(map(str, value))}]`"
    return f"`{value}`"


def cell(text: str) -> str:
    """A text inside a table."""
    return text.replace("|", "\\|")


def read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and comments of a file of configs/."""
    text = path.read_text(encoding="utf-8")
    return yaml.safe_load(text) or {}, comments_of(text)


def rows_of(cls: type, values: dict[str, Any], texts: dict[str, str], prefix: str) -> list[str]:
    """Table rows of the keys of one dataclass."""
    hints = typing.get_type_hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        name = field.name.removesuffix("_")
        if dataclasses.is_dataclass(hints[field.name]) or name not in values:
            continue
        text = texts.get(name, "")
        cells = (f"`{prefix}{name}`", words_of(hints[field.name]), default_of(values[name]), text)
        rows.append(f"| {' | '.join(map(cell, cells))} |")
    return rows


HEAD = ["| Key | Takes | Default | Meaning |", "|---|---|---|---|"]


def default_options() -> dict[str, str]:
    """The option of each group that counts when none is given."""
    body = yaml.safe_load((config_folder() / "config.yaml").read_text(encoding="utf-8"))
    pairs = [item for item in body["defaults"] if isinstance(item, dict)]
    return {key: value for item in pairs for key, value in item.items() if not key.startswith("override")}


def option_lines(group: str, chosen: str) -> list[str]:
    """The options of a group, each with the text under its first key."""
    options = groups()[group]
    if len(options) == 1 or group == "topology":
        return []
    lines = ["", f"Options (`{group}=NAME`):", ""]
    for option in options:
        values, texts = read(config_folder() / group / f"{option}.yaml")
        first = next((key for key in values if key != "defaults"), "")
        text = texts.get(first, "")
        if group == "base":
            text = f"double quantisation {'on' if values.get('double_quant') else 'off'}"
        if group == "experiment":
            text = _head_comment(config_folder() / group / f"{option}.yaml") or "nothing"
        mark = ", the default" if option == chosen else ""
        lines.append(f"- `{option}`{mark}: {text.rstrip('.')}.")
    return lines


def _head_comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line)


def _group_values(group: str, option: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of the default option, with those it takes from others of the group (`defaults:`)."""
    values, texts = read(config_folder() / group / f"{option}.yaml")
    for base in values.pop("defaults", []):
        if base != "_self_":
            more, words = _group_values(group, base)
            values, texts = {**more, **values}, {**words, **texts}
    return values, texts


def configuration() -> str:
    """The page of all keys."""
    lines = [
        "# Configuration",
        "",
        MADE,
        "A key is set on the command line as `KEY=VALUE`; `trainmaster VERB --cfg job` prints all of them composed. A",
        "group is set as a whole with one of its options (`engine=zero3`), its keys one by one (`engine.window=3`).",
        "For `model`, `data` and `topology` a value that is no option is a path or a hub id.",
        "",
        "| Group | Keys of | Options |",
        "|---|---|---|",
    ]
    hints = typing.get_type_hints(RunConfig)
    chosen = default_options()
    whole, whole_texts = read(config_folder() / "config.yaml")
    nested = {f.name: hints[f.name] for f in dataclasses.fields(RunConfig) if dataclasses.is_dataclass(hints[f.name])}
    for name in nested:
        about = " ".join((nested[name].__doc__ or "").strip().split("\n\n")[0].split())
        options = groups().get(name, [])
        shown = (
            ", ".join(f"`{one}`" for one in options) if len(options) <= _SHOWN_WORDS else f"{len(options)}, see below"
        )
        lines.append(f"| [`{name}`](#{name}) | {cell(about.split('. ')[0].rstrip('.'))} | {shown or '-'} |")
    lines += ["", "## Keys without a group", "", *HEAD]
    lines += rows_of(RunConfig, whole, whole_texts, "")
    for name, cls in nested.items():
        lines += ["", f"## {name}", ""]
        if name in chosen:
            values, texts = _group_values(name, chosen[name])
        else:
            values, texts = whole.get(name, {}), {}
        # Keys that config.yaml adds to a group.
        added = whole.get(name, {})
        values = {**values, **added} if isinstance(added, dict) else values
        texts = {**texts, **{k.removeprefix(f"{name}."): v for k, v in whole_texts.items() if k.startswith(f"{name}.")}}
        lines += [*HEAD, *rows_of(cls, values, texts, f"{name}.")]
        if name in groups():
            lines += option_lines(name, chosen.get(name, ""))
        if name == "topology":
            lines += ["", "Machines that can be named: [Machines and models](machines-and-models.md)."]
    if "experiment" in groups():
        lines += ["", "## experiment", "", "Several keys at once.", *option_lines("experiment", chosen["experiment"])]
    return "\n".join(lines) + "\n"


def command_line() -> str:
    """The page of all verbs."""
    whole_texts = comments_of((config_folder() / "config.yaml").read_text(encoding="utf-8"))
    lines = [
        "# Command line",
        "",
        MADE,
        "    trainmaster VERB [KEY=VALUE ...]",
        "",
        "A bare path after the verb means `run_dir=PATH`. All keys: [Configuration](configuration.md).",
        "",
        "| Verb | What it does | Must be given |",
        "|---|---|---|",
    ]
    needs = {Needs.JOB: "`model=` and `data=`", Needs.MACHINE: "nothing", Needs.RUN: "a run directory"}
    lines += [f"| `{verb.name}` | {cell(verb.text)} | {needs.get(verb.needs, verb.needs.value)} |" for verb in VERBS]
    lines += [
        "",
        "## Keys of one verb",
        "",
        "The other keys are those of a run.",
        "",
        "| Verb | Key | Meaning |",
        "|---|---|---|",
    ]
    for verb in VERBS:
        texts = {**whole_texts, **_other_texts()}
        for key, text in texts.items():
            if re.search(rf"(?:^|\. )For (?:`\w+`(?:, | and ))*`{verb.name}(?: [^`]*)?`", text):
                lines.append(f"| `{verb.name}` | `{key}` | {cell(text)} |")
    lines += [
        "",
        "## Flags",
        "",
        "| Flag | What it does |",
        "|---|---|",
        "| `--help` | after a verb: the groups and their options; alone: the verbs |",
        "| `--version` | alone: versions of trainmaster and of the libraries below it |",
        "| `--cfg job` | after a verb: prints the whole configuration and runs nothing |",
        "| `--info` | after a verb: what Hydra composed, from which files |",
        "| `-m`, `--multirun` | after `plan` or `train`: one trial for each combination of values with commas |",
        "| `--completion bash`, `zsh`, `fish` | alone: prints what makes TAB complete, and how to install it |",
        "",
        "## Exit codes",
        "",
        "| Code | Meaning |",
        "|---|---|",
        *(f"| {int(code)} | {EXIT_TEXTS[code]} |" for code in ExitCode),
        "",
        "Each with an example: [Exit codes](exit-codes.md).",
    ]
    return "\n".join(lines) + "\n"


def _other_texts() -> dict[str, str]:
    found = {}
    for group, option in default_options().items():
        if group != "experiment":
            _, texts = _group_values(group, option)
            found.update({f"{group}.{key}": text for key, text in texts.items()})
    return found


def machines_and_models() -> str:
    """The page of names that stand for machines and models."""
    lines = [
        "# Machines and models by name",
        "",
        MADE,
        "## Machines",
        "",
        "`topology=NAME`, in any spelling (`DGX-H100`), draws a machine; `nodes=N` draws it N times, and `network=`",
        "says how hosts are joined. Nothing is probed. `trainmaster probe topology=NAME` shows one.",
        "",
        "| Name | Hosts | Devices | Memory of a device | Memory of a host |",
        "|---|---|---|---|---|",
    ]
    for name in preset_names():
        drawn = preset(name)
        kinds = [(d.name, d.memory_bytes) for host in drawn.hosts for d in host.devices]
        names = ", ".join(f"{kinds.count(kind)} x {kind[0]}" for kind in dict.fromkeys(kinds))
        sizes = ", ".join(f"{size / GIB:.0f} GiB" for _, size in dict.fromkeys(kinds) if size)
        sums = [f"{host.memory_bytes / GIB:.0f} GiB" for host in drawn.hosts if host.memory_bytes]
        memory = ", ".join(dict.fromkeys(sums))
        lines.append(f"| `{name}` | {len(drawn.hosts)} | {names} | {sizes} | {memory} |")
    lines += [
        "",
        "## Models",
        "",
        "`plan` and `estimate` know these without their files; `train` needs the files (a folder, or an id that is",
        "cached or can be downloaded). Other ids of the same shape, in any spelling, mean the same.",
        "",
        "| Id | Parameters | Short names |",
        "|---|---|---|",
    ]
    for model in presets():
        short = ", ".join(f"`{name}`" for name in model.names if "/" not in name)
        lines.append(f"| `{model.id}` | {model.parameters / 1e9:.2f} B | {short} |")
    return "\n".join(lines) + "\n"


PAGES = {
    "configuration.md": configuration,
    "command-line.md": command_line,
    "machines-and-models.md": machines_and_models,
}


def stale() -> list[str]:
    """Pages that are not as they would be made now."""
    return [
        name
        for name, make in PAGES.items()
        if not (HERE / name).is_file() or (HERE / name).read_text(encoding="utf-8") != make()
    ]


def main() -> int:
    """Write the pages, or check them; returns the exit code."""
    if sys.argv[1:] == ["--check"]:
        for name in (names := stale()):
            print(f"out of date: docs/reference/{name}. Run python docs/reference/make.py")
        return 1 if names else 0
    for name, make in PAGES.items():
        (HERE / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
