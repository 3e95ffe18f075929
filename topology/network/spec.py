"""The description of a network between hosts, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from topology.checks import check, negative
from topology.errors import TopologyError
from topology.json_reader import Reader

NETWORK_SCHEMA: Final = "trainmaster.network/1"
_REMEDY: Final = "give kind flat, rail or leaf_spine, with bytes_per_second, hosts_per_leaf, oversubscription, rails"


class NetworkKind(Enum):
    """Which leaf switch a port of a host goes to.

    `flat`: one switch that slows nobody. `rail`: port k of every host goes to leaf k, as NVIDIA's rail-optimised
    fabrics are wired. `leaf_spine`: all ports of a host go to one leaf.
    """

    flat = "flat"
    rail = "rail"
    leaf_spine = "leaf_spine"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """How hosts are joined.

    `bytes_per_second` is the rate of a switch port in one direction (None: the NIC's own); `hosts_per_leaf` hosts
    share a leaf, or a leaf for each rail (None: all of them). Leaves meet in a spine, and a leaf's uplinks carry the
    sum of its downlinks divided by `oversubscription`. `rails` is the number of leaves the ports of one host go to
    (None: one for each port).
    """

    kind: NetworkKind = NetworkKind.flat
    bytes_per_second: float | None = None
    hosts_per_leaf: int | None = None
    oversubscription: float = 1.0
    rails: int | None = None

    def __post_init__(self) -> None:
        """Reject what no network has, and what its kind has no use for."""
        port, per_leaf, is_flat = self.bytes_per_second, self.hosts_per_leaf, self.kind is NetworkKind.flat
        ratio = self.oversubscription
        check(
            "a network description",
            (negative(port) or port == 0, f"bytes_per_second {port} not above 0 and up to 1e24"),
            (per_leaf is not None and per_leaf < 1, f"hosts_per_leaf {per_leaf} below 1"),
            (negative(ratio) or ratio < 1, f"oversubscription {ratio} not 1 or more"),
            (self.rails is not None and self.rails < 1, f"rails {self.rails} below 1"),
            (is_flat and per_leaf is not None, "hosts_per_leaf, but a flat network has one switch"),
            (
                self.kind is NetworkKind.leaf_spine and ratio > 1 and per_leaf is None,
                f"oversubscription {ratio}, but all hosts share one leaf: give hosts_per_leaf",
            ),
            (is_flat and ratio > 1, f"oversubscription {ratio}, but a flat network has no uplinks"),
            (self.kind is not NetworkKind.rail and self.rails is not None, f"rails on a {self.kind.value} network"),
        )


def network_to_json(network: NetworkSpec) -> dict[str, Any]:
    """Turn a description into plain values; `network_from_json` gives back an equal one."""
    values = {item.name: getattr(network, item.name) for item in fields(network)}
    return {"schema": NETWORK_SCHEMA, **values, "kind": network.kind.value}


def network_from_json(data: object) -> NetworkSpec:
    """Read a description: an object with any of the fields of `NetworkSpec`, and perhaps `schema`.

    Raises:
        TopologyError: with every fault and its path, all at once.

    """
    reader = Reader()
    if not isinstance(data, dict):
        raise _malformed((f"$: a JSON {type(data).__name__}, an object is needed",))
    if data.get("schema", NETWORK_SCHEMA) != NETWORK_SCHEMA:
        raise _malformed((f"$.schema: not {NETWORK_SCHEMA!r}",))
    known = {"schema", *(item.name for item in fields(NetworkSpec))}
    reader.problems += [f"$.{str(key)[:40]}: not known here" for key in data if key not in known][:20]
    told = dict(data)
    if isinstance(told.get("kind"), str):
        told["kind"] = told["kind"].strip().lower().replace("-", "_")
    before = len(reader.problems)
    kind = reader.choice(told, "$", NetworkKind, NetworkKind.flat.value)
    if len(reader.problems) > before:
        kind = NetworkKind.rail  # the one that uses every field, so that no more is told than is wrong
    parts = {
        "kind": kind,
        "bytes_per_second": reader.get(told, "$", "bytes_per_second", float, None),
        "hosts_per_leaf": reader.get(told, "$", "hosts_per_leaf", int, None),
        "oversubscription": reader.get(told, "$", "oversubscription", float, 1.0),
        "rails": reader.get(told, "$", "rails", int, None),
    }
    try:
        network = NetworkSpec(**parts)
    except TopologyError as error:
        raise _malformed((*reader.problems, *(f"$: {problem}" for problem in error.problems))) from error
    if reader.problems:
        raise _malformed(tuple(reader.problems))
    return network


def _malformed(problems: tuple[str, ...]) -> TopologyError:
    return TopologyError(asked="a network description in JSON", problems=problems, remedy=_REMEDY)
