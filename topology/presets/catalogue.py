"""The drawn machines by name: which hosts each has and how its copies are joined."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.network import NetworkKind, NetworkSpec
from topology.presets import cards, clouds, plain, servers, workstations
from topology.units import GB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from topology.presets.box import Box

_FLAT: Final = NetworkSpec()
# NVIDIA DGX SuperPOD reference architectures: scalable units of 32 hosts (A100: 20), a leaf for each rail, no
# oversubscription.
_SUPERPOD: Final = NetworkSpec(kind=NetworkKind.rail, hosts_per_leaf=32)
_SUPERPOD_A100: Final = NetworkSpec(kind=NetworkKind.rail, hosts_per_leaf=20)
_RAIL: Final = NetworkSpec(kind=NetworkKind.rail)
_GBE_25: Final = NetworkSpec(bytes_per_second=25 * GB / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A unit of one or more hosts, `times` each; `fabric` says that one NVLink fabric joins the GPUs of a unit."""

    boxes: Callable[[], tuple[Box, ...]]
    network: NetworkSpec = _FLAT
    times: int = 1
    fabric: bool = False
    aliases: tuple[str, ...] = ()


def _one(box: Callable[[], Box], network: NetworkSpec = _FLAT, *aliases: str) -> Machine:
    return Machine(boxes=lambda: (box(),), network=network, aliases=aliases)


_PLAIN: Final = {
    "1x24gb": _one(plain.one_24gb),
    "2x24gb-pcie": _one(plain.two_24gb_pcie),
    "2x24gb-node": _one(plain.two_24gb_node),
    "8xa100-80gb": _one(lambda: plain.nvswitch_x8(cards.A100_80GB, 12, 200), _RAIL, "8xa100"),
    "8xh100": _one(lambda: plain.nvswitch_x8(cards.H100, 18, 400), _RAIL, "8xh100-80gb"),
    "4xv100-16gb": _one(clouds.p3_8xlarge, _FLAT, "p3.8xlarge", "4xv100"),
    "2xa100-40gb+2xt4": Machine(boxes=lambda: (plain.two_a100(), plain.two_t4())),
    "4xa100-40gb+4xh100-80gb": Machine(
        boxes=lambda: (plain.four_a100(), plain.four_h100()), aliases=("4xa100+4xh100",)
    ),
}
_SERVERS: Final = {
    "dgx_h100": _one(lambda: servers.dgx_hopper("dgx-h100", cards.H100), _SUPERPOD, "hgx_h100"),
    "dgx_h200": _one(lambda: servers.dgx_hopper("dgx-h200", cards.H200), _SUPERPOD, "hgx_h200", "8xh200"),
    "hgx_b200": _one(servers.hgx_b200, _SUPERPOD, "dgx_b200", "8xb200", "a4_highgpu_8g"),
    "dgx_a100": _one(servers.dgx_a100, _SUPERPOD_A100, "hgx_a100", "dgx_a100_80gb"),
    "dgx1_v100": _one(servers.dgx1_v100, _RAIL, "dgx1", "8xv100"),
    "dgx2_v100": _one(servers.dgx2_v100, _RAIL, "dgx2", "16xv100"),
    "gb200_nvl72": Machine(
        boxes=lambda: (servers.gb200_tray(),),
        network=_RAIL,
        times=18,
        fabric=True,
        aliases=("nvl72", "gb200", "dgx_gb200"),
    ),
    "gh200": _one(servers.gh200),
    "mixed_a100_h100": Machine(
        boxes=lambda: (servers.dgx_a100(), servers.dgx_hopper("dgx-h100", cards.H100)),
        network=_RAIL,
        aliases=("mixed_h100_a100", "a100+h100"),
    ),
    "a100_sxm_x4": _one(servers.a100_mesh, _FLAT, "polaris", "4xa100"),
    "h100_nvl_x8": _one(servers.h100_nvl_x8),
    "a100_pcie_pairs_x4": _one(lambda: workstations.bridged_pairs(cards.A100_PCIE_80GB, 2, 12)),
    "a100_pcie_pairs_x8": _one(lambda: workstations.bridged_pairs(cards.A100_PCIE_80GB, 4, 12)),
}
_CLOUDS: Final = {
    "p4d": _one(lambda: clouds.p4d("p4d", cards.A100_40GB, 1152), _FLAT, "p4d.24xlarge"),
    "p4de": _one(lambda: clouds.p4d("p4de", cards.A100_80GB, 1152), _FLAT, "p4de.24xlarge"),
    "p5": _one(clouds.p5, _FLAT, "p5.48xlarge"),
    "ndv4": _one(lambda: clouds.ndv4("ndv4", cards.A100_40GB, 900), _RAIL, "nd96asr_v4"),
    "ndv4_80gb": _one(lambda: clouds.ndv4("ndv4", cards.A100_80GB, 1900), _RAIL, "nd96amsr_a100_v4"),
    "ndv5": _one(clouds.ndv5, _RAIL, "nd96isr_h100_v5"),
    "g5_12xlarge": _one(clouds.g5_12xlarge, _GBE_25, "g5.12xlarge", "4xa10g"),
}
_PCIE: Final = {
    "pcie_4090x8": _one(lambda: workstations.direct_x8(cards.RTX_4090), _FLAT, "8x4090", "8xrtx4090", "rtx4090x8"),
    "pcie_4090x2": _one(lambda: workstations.same_bridge(cards.RTX_4090, 2), _FLAT, "2x4090", "2xrtx4090", "rtx4090x2"),
    "pcie_5090x2": _one(lambda: workstations.same_bridge(cards.RTX_5090, 2), _FLAT, "2x5090", "2xrtx5090"),
    "pcie_5090x8": _one(lambda: workstations.direct_x8(cards.RTX_5090), _FLAT, "8x5090", "8xrtx5090"),
    "pcie_l40s_x8": _one(lambda: workstations.switched_x8(cards.L40S), _FLAT, "8xl40s"),
    "pcie_a40_x4": _one(lambda: workstations.switched_pairs(cards.A40), _FLAT, "4xa40"),
    "rtx3090_nvlink_pair": _one(
        lambda: workstations.same_bridge(cards.RTX_3090, 2, 4), _FLAT, "2x3090_nvlink", "2xrtx3090_nvlink"
    ),
    "rtx_a6000_x4": _one(lambda: workstations.bridged_pairs(cards.RTX_A6000, 2, 4), _FLAT, "4xa6000", "4xrtx_a6000"),
}
_SINGLE: Final = {
    "rtx3090": _one(lambda: workstations.desktop(cards.RTX_3090), _FLAT, "3090", "geforce_rtx_3090"),
    "rtx4090": _one(lambda: workstations.desktop(cards.RTX_4090), _FLAT, "4090", "geforce_rtx_4090"),
    "rtx5090": _one(lambda: workstations.desktop(cards.RTX_5090), _FLAT, "5090", "geforce_rtx_5090"),
    "rtx_a6000": _one(lambda: workstations.server(cards.RTX_A6000), _FLAT, "a6000"),
    "rtx_6000_ada": _one(lambda: workstations.server(cards.RTX_6000_ADA), _FLAT, "6000_ada"),
    "t4": _one(lambda: workstations.server(cards.T4), _FLAT, "tesla_t4"),
    "l4": _one(lambda: workstations.server(cards.L4)),
    "l40s": _one(lambda: workstations.server(cards.L40S)),
    "a10": _one(lambda: workstations.server(cards.A10)),
    "a40": _one(lambda: workstations.server(cards.A40)),
    "a100_40gb": _one(lambda: workstations.server(cards.A100_PCIE_40GB)),
    "a100_80gb": _one(lambda: workstations.server(cards.A100_PCIE_80GB), _FLAT, "a100"),
    "h100": _one(lambda: workstations.server(cards.H100_PCIE), _FLAT, "h100_pcie", "h100_80gb"),
}
MACHINES: Final[Mapping[str, Machine]] = MappingProxyType({**_PLAIN, **_SERVERS, **_CLOUDS, **_PCIE, **_SINGLE})
