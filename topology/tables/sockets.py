"""What two processors of a kind have between them: links, transfers per second, bytes per transfer.

Boards may wire fewer links than the processor has, and firmware may run them slower. Each row takes the fewest links
and the lowest speed of the line it names, so the figure is what a two-socket machine has at least. It is the rate of
the wires: traffic between GPUs of two sockets gets a part of it (NCCL reckons with 6 to 40 GB/s, and with 16 for all
of AMD, where machines with EPYC 9005 measure ten times that).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLinks:
    """A kind of processor: CPU names that match `name` (regular expression) or have one of the CPUID `models`.

    `models` are (vendor, family, model) with the family as Linux counts it. `link_bytes` are bytes per transfer and
    direction.
    """

    kind: str
    name: str | None = None
    models: tuple[tuple[str, int, int], ...] = ()
    num_links: int
    transfers_per_second: float
    link_bytes: float = 2.0
    source: str
    date: str

    @property
    def bytes_per_second(self) -> float:
        """Of all links of the pair, in one direction."""
        return self.num_links * self.transfers_per_second * self.link_bytes


_INTEL, _AMD = "GenuineIntel", "AuthenticAMD"
_G: Final = 1e9
_LINE = r"\b(?:gold|platinum) \d{}\d\d"
_SMALL = r"\b(?:bronze|silver) \d{}\d\d"
_UPI: Final = "16 data bits a transfer; speeds of UPI and QPI found in public articles, link counts from memory of ARK"
_XGMI: Final = "16 lanes a link, before protocol; 3 or 4 links and the speeds as AMD and Lenovo papers give them"

# The first row that fits counts.
SOCKETS: Final[tuple[SocketLinks, ...]] = (
    SocketLinks(
        kind="Xeon E5-2650 v3/v4 and above, QPI",
        name=r"\be5-26[5-9]\d\w* v[34]\b",
        num_links=2,
        transfers_per_second=9.6 * _G,
        source=_UPI,
        date="2016-03",
    ),
    SocketLinks(
        kind="Xeon E5-2600 v3/v4, QPI",
        name=r"\be5-26\d\d\w* v[34]\b",
        models=((_INTEL, 6, 63), (_INTEL, 6, 79)),
        num_links=2,
        transfers_per_second=6.4 * _G,
        source=_UPI,
        date="2016-03",
    ),
    SocketLinks(
        kind="Xeon Gold and Platinum, Skylake or Cascade Lake, UPI",
        name=_LINE.format("[12]"),
        num_links=2,
        transfers_per_second=10.4 * _G,
        source=_UPI,
        date="2019-04",
    ),
    SocketLinks(
        kind="Xeon Skylake or Cascade Lake, UPI",
        name=_SMALL.format("[12]"),
        models=((_INTEL, 6, 85),),
        num_links=2,
        transfers_per_second=9.6 * _G,
        source=_UPI,
        date="2019-04",
    ),
    SocketLinks(
        kind="Xeon Gold and Platinum, Ice Lake, UPI",
        name=_LINE.format("3") + r"(?!\w*h)",
        num_links=2,
        transfers_per_second=11.2 * _G,
        source=_UPI + "; two of three links",
        date="2021-04",
    ),
    SocketLinks(
        kind="Xeon Ice Lake, UPI",
        name=_SMALL.format("3"),
        models=((_INTEL, 6, 106),),
        num_links=2,
        transfers_per_second=10.4 * _G,
        source=_UPI,
        date="2021-04",
    ),
    SocketLinks(
        kind="Xeon Gold, Platinum and Max, Sapphire Rapids, UPI 2.0",
        name=_LINE.format("4") + r"|\bcpu max 94\d\d",
        num_links=3,
        transfers_per_second=16 * _G,
        source=_UPI,
        date="2023-01",
    ),
    SocketLinks(
        kind="Xeon Platinum, Emerald Rapids, UPI 2.0",
        name=r"\bplatinum 85\d\d",
        num_links=3,
        transfers_per_second=20 * _G,
        source=_UPI,
        date="2023-12",
    ),
    SocketLinks(
        kind="Xeon Gold, Emerald Rapids, UPI 2.0",
        name=r"\bgold [56]5\d\d",
        num_links=3,
        transfers_per_second=16 * _G,
        source=_UPI,
        date="2023-12",
    ),
    SocketLinks(
        kind="Xeon Sapphire or Emerald Rapids, UPI 2.0",
        name=_SMALL.format("[45]"),
        models=((_INTEL, 6, 143), (_INTEL, 6, 207)),
        num_links=2,
        transfers_per_second=16 * _G,
        source=_UPI,
        date="2023-12",
    ),
    SocketLinks(
        kind="Xeon 6 (Granite Rapids), UPI 2.0",
        name=r"\bxeon 6[579]\d\dp\b",
        models=((_INTEL, 6, 173),),
        num_links=3,
        transfers_per_second=24 * _G,
        source=_UPI + "; 24 GT/s also in NVIDIA/nccl issue 2107",
        date="2025-02",
    ),
    SocketLinks(
        kind="EPYC 7001 (Naples), xGMI",
        name=r"\bepyc 7\w\w1\w*\b",
        models=((_AMD, 23, 1),),
        num_links=4,
        transfers_per_second=10.667 * _G,
        link_bytes=2 * 8 / 9,
        source="37.9 GB/s both ways a link as AMD told the press, from memory",
        date="2017-06",
    ),
    SocketLinks(
        kind="EPYC 7002 and 7003 (Rome, Milan), xGMI-2",
        name=r"\bepyc 7\w\w[23]\w*\b",
        models=((_AMD, 23, 49), (_AMD, 25, 1)),
        num_links=3,
        transfers_per_second=16 * _G,
        source=_XGMI + " (three links, up to 18 GT/s: ROCm documentation)",
        date="2021-03",
    ),
    SocketLinks(
        kind="EPYC 9004 and 9005 (Genoa, Bergamo, Turin), xGMI-3",
        name=r"\bepyc 9\w\w[45]\w*\b",
        models=((_AMD, 25, 17), (_AMD, 25, 160), (_AMD, 26, 2), (_AMD, 26, 17)),
        num_links=3,
        transfers_per_second=32 * _G,
        source=_XGMI,
        date="2024-10",
    ),
    SocketLinks(
        kind="POWER9 (AC922), X-bus",
        name=r"\bpower9\b",
        num_links=1,
        transfers_per_second=16 * _G,
        source="64 GB/s as IBM gives it, read as both ways together, which is also NCCL's 32; not verified",
        date="2018-03",
    ),
    SocketLinks(
        kind="Grace, coherent NVLink between boards",
        name=r"\bneoverse-v2\b|\bgrace\b",
        num_links=1,
        transfers_per_second=100 * _G,
        link_bytes=1,
        source="100 GB/s between two CPUs of a quad GH200 node, from memory of arXiv 2408.11556; a Grace CPU Superchip"
        " has 450, and other makers use the core too",
        date="2024-08",
    ),
)
