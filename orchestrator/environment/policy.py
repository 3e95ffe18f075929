"""Which variables a launcher may set, as data.

NVIDIA's guide divides NCCL's variables into those of a system, which may stay in production, and those for debugging,
which may not. What is forbidden here may still be right on one machine: as the user's own setting, after a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

_GUIDE: Final = "NCCL user guide, environment variables"
_CODE: Final = "NCCL 2.30.7, src"


class Policy(Enum):
    """When the launcher sets a variable."""

    always = "always"
    condition = "condition"
    site = "site file"
    never = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Of one variable: when it is set, why, and who says so."""

    variable: str
    policy: Policy
    reason: str
    source: str


def _rules(policy: Policy, source: str, **reasons: str) -> tuple[Rule, ...]:
    return tuple(Rule(variable=name, policy=policy, reason=why, source=source) for name, why in reasons.items())


_ALWAYS: Final = (
    *_rules(
        Policy.always,
        "CUDA programming guide, environment variables",
        CUDA_DEVICE_ORDER="NVML counts by bus address and CUDA by speed unless told otherwise",
        CUDA_VISIBLE_DEVICES="by UUID: an index means another device after a change of order",
    ),
    *_rules(Policy.always, _GUIDE, NCCL_DEBUG="WARN names the cause of a failure and costs nothing while all is well"),
)
_CONDITION: Final = _rules(
    Policy.condition,
    _GUIDE,
    NCCL_SOCKET_IFNAME="where the default is a wrong interface; exact (=eth0), for a plain name is a prefix",
    NCCL_IB_HCA="where storage or management ports stand beside compute ports and no net plugin owns the fabric",
    NCCL_DEBUG_FILE="where ranks have no logs of their own",
    NCCL_DEBUG_SUBSYS="in a probe run: INIT,ENV,GRAPH,TUNING",
    NCCL_TOPO_DUMP_FILE="in a probe run: what NCCL believes about the machine",
    NCCL_GRAPH_DUMP_FILE="in a probe run: the rings and trees that NCCL has chosen",
) + _rules(
    Policy.condition,
    "torch 2.13, ProcessGroupGloo.cpp",
    GLOO_SOCKET_IFNAME="where the host's name leads to a wrong interface; names are exact, without =",
)
_SITE: Final = _rules(
    Policy.site,
    _GUIDE,
    NCCL_IB_GID_INDEX="RoCE: the network's operator knows it",
    NCCL_IB_TC="RoCE: the network's operator knows it",
    NCCL_IB_QPS_PER_CONNECTION="more than one helps on multi-tier networks and costs memory",
    NCCL_CROSS_NIC="0 only on a network that is known to be rail-only; 2 otherwise",
    NCCL_TOPO_FILE="only a vendor's or a verified file, for virtual machines; it describes one host",
)
_NEVER: Final = (
    *_rules(
        Policy.never,
        f"{_CODE}/graph/paths.cc",
        NCCL_P2P_DISABLE="it ends copies over NVLink too, not only those over PCIe",
        NCCL_P2P_LEVEL="beyond the default, copies have hung and, with a patched driver, corrupted data",
        NCCL_SHM_DISABLE="GPUs without peer copies then use the network",
        NCCL_NET_GDR_LEVEL="the default follows the PCIe path",
        NCCL_PXN_DISABLE="whether PXN helps depends on the pattern: to be measured",
        NCCL_P2P_PXN_LEVEL="whether PXN helps depends on the pattern: to be measured",
    ),
    *_rules(
        Policy.never,
        f"{_CODE}/graph/tuning.cc",
        NCCL_ALGO="a list without a member that a collective can use ends in an error at run time",
        NCCL_PROTO="LL128 where NCCL has not enabled it can corrupt data",
        NCCL_MIN_NCHANNELS="for all groups at once: better on one machine, much worse on others",
        NCCL_MAX_NCHANNELS="for all groups at once: better on one machine, much worse on others",
        NCCL_MIN_CTAS="for all groups at once: a group's own options do it better",
        NCCL_MAX_CTAS="for all groups at once: a group's own options do it better",
        NCCL_BUFFSIZE="for all connections at once, in memory of every device",
    ),
    *_rules(
        Policy.never,
        _GUIDE,
        NCCL_NVLS_ENABLE="1 turns a want of multicast resources into an error, 0 gives up the switch's sums",
        NCCL_MNNVL_ENABLE="needs IMEX and cuMem; NCCL finds out by itself",
        NCCL_CUMEM_ENABLE="NCCL decides by the driver",
    ),
    *_rules(
        Policy.never,
        "exported as a file, to be tried by hand",
        NCCL_GRAPH_FILE="only after a comparison on the machine, for that machine and NCCL version",
        NCCL_TUNER_CONFIG_FILE="only after a comparison on the machine; needs a plugin that reads it",
        NCCL_TUNER_PLUGIN="a cloud's own tuner must stay",
    ),
)

RULES: Final = MappingProxyType({rule.variable: rule for rule in (*_ALWAYS, *_CONDITION, *_SITE, *_NEVER)})
"""By variable."""


def is_allowed(variable: str) -> bool:
    """Whether a launcher may set it by itself: always, or on its condition."""
    rule = RULES.get(variable)
    return rule is not None and rule.policy in {Policy.always, Policy.condition}
