"""What nvidia-smi, or the shell that could not start it, prints in place of a matrix: the cause in plain words."""

from __future__ import annotations

import re
from typing import Final

from topology.probe.smi_clean import plain_lines

_MAX_CHARS: Final = 1 << 16
_MAX_LINE: Final = 400
_CAUSES: Final = (
    (
        re.compile(r"Driver/library version mismatch"),
        "the NVIDIA kernel module is of another version than the driver's library: reboot, or reload the module",
    ),
    (
        re.compile(r"NVIDIA-SMI has failed because it couldn't communicate|\bDriver Not Loaded"),
        "no NVIDIA driver answers on that machine: install it, or load it (`modprobe nvidia`; see `dmesg`)",
    ),
    (
        re.compile(r"NVIDIA-SMI couldn't find libnvidia-ml|libnvidia-ml\.so.{0,80}(?:cannot open|not found)"),
        "the driver's library is missing there: install the driver, or give it to the container",
    ),
    (
        re.compile(r"\bNo devices were found"),
        "no GPU there: none built in, none given to the job or container, or one that did not start (see `dmesg`)",
    ),
    (
        re.compile(r"\bGPU is lost|Unable to determine the device handle"),
        "a GPU no longer answers (see `dmesg` for Xid 79): reboot that machine",
    ),
    (
        re.compile(
            r"nvidia-smi['\"]?: (?:command )?not found|command not found:? ['\"]?nvidia-smi"
            r"|nvidia-smi['\"]?: No such file|nvidia-smi['\"]? is not recognized as",
        ),
        "nvidia-smi is not installed there, or is not in PATH",
    ),
    (
        re.compile(r"Failed to initialize NVML: .{1,80}"),
        "the driver's library could not start: look at `dmesg`, and for a container restart it",
    ),
)


def failure_of(text: str) -> str | None:
    """Tell why there is no matrix in the text, with the line that says it; None if nothing in it is such a message.

    Looks at the first 65,536 characters.
    """
    found = failure_at(text)
    return None if found is None else f"line {found[0]}: {found[1]}"


def failure_at(text: str) -> tuple[int, str] | None:
    """Return the number of the line that tells of a failure, from 1 on, with its words and the cause."""
    for number, line in enumerate(plain_lines(text[:_MAX_CHARS].replace("\u2019", "'")), start=1):
        for pattern, cause in _CAUSES if len(line) <= _MAX_LINE else ():
            if pattern.search(line):
                told = "".join(char if char.isprintable() else "?" for char in line.strip()[:120])
                return number, f"{told!r}: {cause}"
    return None
