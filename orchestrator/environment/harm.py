"""Settings of the user's that are known to hurt. They stay: the user may know better, and is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from orchestrator.environment.choices import algorithm_faults, protocol_faults
from orchestrator.environment.given import Setting, UserEnvironment
from orchestrator.environment.policy import RULES

_LEVELS: Final = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
_MOST_NAMES: Final = 8  # a message lists
_GLOBAL: Final = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_BUFFSIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """A setting and what it does."""

    setting: Setting
    reason: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.setting}: {self.reason}"


def harms(environment: UserEnvironment, *, ports: Sequence[str] = ()) -> tuple[Harm, ...]:
    """Warn about the settings that ranks will see.

    Args:
        environment: of the user.
        ports: names of the machine's network adapters, as far as known: a prefix may match more than was meant.
    """
    interfaces = [each.name for each in environment.interfaces]
    checks: dict[str, Callable[[str], Iterable[str]]] = {
        **_CHECKS,
        "NCCL_IB_HCA": partial(_names, known=[port.partition(":")[0] for port in ports], what="port"),
        "NCCL_SOCKET_IFNAME": partial(_names, known=interfaces, what="interface that runs"),
    }
    for name in environment.absent:
        checks[name] = partial(_with_absent_file, also=checks.get(name))
    return tuple(
        Harm(setting=setting, reason=reason)
        for setting in environment.effective
        if setting.name in checks
        for reason in checks[setting.name](setting.value)
    )


def _is_on(value: str) -> bool:
    """As NCCL reads a number: 0x and 0 prefixes count, what is no number counts as 0."""
    try:
        return int(value, 0) != 0
    except ValueError:
        return bool(value.lstrip("0").isdecimal())


def _if_on(reason: str, value: str) -> Iterable[str]:
    return (reason,) if _is_on(value) else ()


def _if_off(reason: str, value: str) -> Iterable[str]:
    return () if _is_on(value) else (reason,)


def _level(value: str) -> Iterable[str]:
    text = value.strip()
    if text.isdecimal():
        yield (
            f"numbers are an old scale (0 to 5 for LOC, PIX, PXB, PHB, SYS, SYS) that other versions read otherwise: "
            f"use a word of {', '.join(_LEVELS)}"
        )
    elif text.upper() not in _LEVELS:
        yield f"NCCL knows no level {text!r}: use one of {', '.join(_LEVELS)}"


def _peer_level(value: str) -> Iterable[str]:
    yield from _level(value)
    if value.strip().upper() in {"LOC", "0"}:
        yield RULES["NCCL_P2P_DISABLE"].reason
    elif value.strip().upper() in {"SYS", "PHB", "3", "4", "5"}:
        yield RULES["NCCL_P2P_LEVEL"].reason


def _with_absent_file(value: str, *, also: Callable[[str], Iterable[str]] | None) -> Iterable[str]:
    yield f"there is no file {value} that this user can read here: NCCL would go without it, or fail"
    yield from () if also is None else also(value)


def _names(value: str, *, known: Sequence[str], what: str) -> Iterable[str]:
    """Names that match nothing of the machine's, as far as that is known; and names that match too much."""
    text = value.strip()
    if known and not text.startswith("^"):
        is_exact = text.startswith("=")
        wanted = [entry.partition(":")[0] for entry in text.removeprefix("=").split(",")]
        lost = [x for x in wanted if not any(y == x if is_exact else y.startswith(x) for y in known)]
        shown = list(dict.fromkeys(known))
        there = ", ".join(shown[:_MOST_NAMES]) + (" and more" if len(shown) > _MOST_NAMES else "")
        if len(lost) == len(wanted):
            yield f"no {what} of this machine is called so (it has {there}): NCCL finds none and uses what is left"
        elif lost:
            yield f"no {what} of this machine is called {' or '.join(lost)} (it has {there})"
    yield from _prefixes(value, known=known)


def _prefixes(value: str, *, known: Sequence[str]) -> Iterable[str]:
    """Names that a plain name matches beyond itself; without a list of names those that end in a digit."""
    text = value.removeprefix("^")
    exact = "^=" if value.startswith("^") else "="
    if text.startswith("="):
        return
    for entry in text.split(","):
        name = entry.partition(":")[0]
        more = [other for other in dict.fromkeys(known) if other != name and other.startswith(name)]
        is_meant = name not in known  # eth for all of eth*
        if more and not is_meant:
            yield f"{name} is a prefix and matches {', '.join(more)} too: write {exact}{name} for that one alone"
        elif not known and name[-1:].isdecimal():
            yield f"{name} is a prefix and would match {name}0 too: write {exact}{name} for that one alone"


def _gloo_name(value: str) -> Iterable[str]:
    if value.startswith(("=", "^")):
        yield "gloo takes names as they are, without = or ^"


def _always(reason: str, _: str) -> Iterable[str]:
    yield reason


_CHECKS: Final = MappingProxyType[str, Callable[[str], Iterable[str]]](
    {
        "NCCL_P2P_DISABLE": partial(_if_on, RULES["NCCL_P2P_DISABLE"].reason),
        "NCCL_P2P_LEVEL": _peer_level,
        "NCCL_SHM_DISABLE": partial(_if_on, RULES["NCCL_SHM_DISABLE"].reason),
        "NCCL_IB_DISABLE": partial(_if_on, "no RDMA: traffic between hosts goes through sockets"),
        "NCCL_NET_GDR_LEVEL": _level,
        "NCCL_ALGO": algorithm_faults,
        "NCCL_PROTO": protocol_faults,
        "NCCL_CUMEM_ENABLE": partial(_if_off, "containers of one host lose NVLink between their GPUs"),
        "NCCL_NVLS_ENABLE": partial(_if_off, "all-reduce loses the sums in the NVSwitch"),
        "NCCL_PXN_DISABLE": partial(_if_on, RULES["NCCL_PXN_DISABLE"].reason),
        "NCCL_GRAPH_FILE": partial(_always, "it holds for one machine, NCCL version and group only"),
        "GLOO_SOCKET_IFNAME": _gloo_name,
        "CUDA_LAUNCH_BLOCKING": partial(_if_on, "every kernel is waited for: nothing overlaps"),
        **{name: partial(_always, RULES[name].reason) for name in _GLOBAL},
    }
)
