"""The words of a GPU's name that tell one part from another."""

from __future__ import annotations

import re
from typing import Final

# Brand words come and go with driver versions.
_BRANDS: Final = frozenset({"nvidia", "tesla", "geforce", "generation"})


def name_words(name: str) -> frozenset[str]:
    """Words of a name as NVML or ROCm prints it, in lower case and without brands.

    SXM2 to SXM6 count as one word: the chip tells them apart already.
    """
    return frozenset(re.findall(r"[a-z0-9]+", re.sub(r"sxm\d", "sxm", name.lower()))) - _BRANDS
