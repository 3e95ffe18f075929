"""A checkpoint whose adapters get other ranks: matrices, moments, and what is owed of gradients."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from orchestrator.resize.factors import Moments, moments_of_a, moments_of_b, resized
from orchestrator.train.adapter_ranks import name_of_a, name_of_b, saved_ranks
from orchestrator.train.checkpoint import Checkpoint

MOMENT: Final = "@"  # between the names of a parameter and of a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of one adapter.

    Attributes:
        old, new: ranks.
        energy: squared Frobenius norm of the old product B A.
        dropped: of it, left out.
    """

    old: int
    new: int
    energy: float
    dropped: float


def with_ranks(
    checkpoint: Checkpoint, ranks: Mapping[str, int], *, seed: int, betas: tuple[float, float]
) -> tuple[Checkpoint, dict[str, Change]]:
    """Return the checkpoint with these ranks, by the name of the module, and what changed.

    Unsent gradients of adapters that change are dropped. New rows of A depend on seed, step and name alone.
    """
    parameters, moments = dict(checkpoint.parameters), dict(checkpoint.moments)
    changes: dict[str, Change] = {}
    for module, old in saved_ranks(parameters).items():
        new = ranks.get(module, old)
        if new == old:
            continue
        a, b = name_of_a(module), name_of_b(module)
        draws = torch.Generator().manual_seed(zlib.crc32(f"{seed} {checkpoint.step} {module}".encode()))
        change = resized(parameters[a], parameters[b], new, draws)
        parameters[a], parameters[b] = change.a, change.b
        for name, project in ((a, moments_of_a), (b, moments_of_b)):
            _put(moments, name, project(_of(moments, name), change, betas))
        changes[module] = Change(old=old, new=new, energy=change.energy, dropped=change.dropped)
    owed = {f".{name(module)}" for module in changes for name in (name_of_a, name_of_b)}
    after = replace(
        checkpoint,
        parameters=parameters,
        moments=moments,
        residuals={key: value for key, value in checkpoint.residuals.items() if not _ends(key, owed)},
    )
    return after, changes


def _ends(key: str, owed: set[str]) -> bool:
    """Whether a key, RANK.NAME, is of one of these names."""
    return key[key.index(".") :] in owed


def _of(moments: Mapping[str, torch.Tensor], name: str) -> Moments:
    prefix = name + MOMENT
    return {key.removeprefix(prefix): value for key, value in moments.items() if key.startswith(prefix)}


def _put(moments: dict[str, torch.Tensor], name: str, own: Moments) -> None:
    for key in [key for key in moments if key.startswith(name + MOMENT)]:
        del moments[key]
    moments.update({name + MOMENT + kind: value for kind, value in own.items()})


def told(changes: Mapping[str, Change]) -> dict[str, Any]:
    """What an event says of changes: ranks by module, energy that was dropped, of all and of the worst module."""
    energy, dropped = (sum(getattr(x, key) for x in changes.values()) for key in ("energy", "dropped"))
    return {
        "ranks": {module: [change.old, change.new] for module, change in changes.items()},
        "dropped_energy": dropped,
        "dropped_share": _share(dropped, energy),
        "largest_dropped_share": max((_share(x.dropped, x.energy) for x in changes.values()), default=0.0),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def span(ranks: Iterable[int]) -> str:
    """Ranks in a few characters: `16`, or `8-24`."""
    found = sorted(set(ranks))
    return str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}" if found else "none"
