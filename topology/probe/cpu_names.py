"""What a processor is called: by its kernel, or on ARM, whose kernels print numbers only, by a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.probe.kernel_values import whole, word

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_CODE: Final = 0xFFFF
# (implementer, part) of the MIDR_EL1 register; lscpu(1) and the kernel's arch/arm64/include/asm/cputype.h have these.
_ARM: Final[Mapping[tuple[int, int], str]] = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD85): "Cortex-X925",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "Kunpeng-920",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


def cpu_name(block: Mapping[str, str]) -> str:
    """Name the processor of one block of /proc/cpuinfo.

    Raises:
        LookupError: if the block has neither a name nor the numbers of an ARM processor.
        ValueError: if what it has in their place is none.

    """
    named = block.get("model name") or block.get("cpu")  # the latter on POWER
    if named:
        return word(named)
    codes = (whole(block["CPU implementer"], most=_MAX_CODE), whole(block["CPU part"], most=_MAX_CODE))
    return _ARM.get(codes, "aarch64 CPU")
