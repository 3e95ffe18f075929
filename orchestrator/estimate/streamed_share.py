"""What one rank holds of layers that stream, and what fetching them takes: the part of a setting that a cut decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedShare:
    """One rank's part under engine `streamed`.

    Attributes:
        device_bytes, host_bytes, nvme_bytes: of the layers that it keeps, by where they wait between uses.
        resident_bytes: of layers held whole on its device.
        window_bytes: of the slots that layers are brought together in.
        window: how many there are.
        layers: that stream; the others are resident.
        ranks: that hold one copy of the layers between them.
        fetched_layers: of those that stream, in one pass over all layers: the last ones of a pass are still there when
            the next begins.
        gather_seconds: of the links for one fetched layer.
        copy_seconds: from host memory or a drive for one fetched layer.
        gathered_bytes, copied_bytes: received over the links, and copied in, in one pass.
        landed_bytes: of its own device memory, copied into the slots in one pass.
        shares_path: both use one link (PCIe without NVLink), one after the other.
    """

    device_bytes: int
    window_bytes: int
    window: int
    layers: int
    ranks: int
    fetched_layers: int
    host_bytes: int = 0
    nvme_bytes: int = 0
    resident_bytes: int = 0
    gather_seconds: float = 0.0
    copy_seconds: float = 0.0
    gathered_bytes: float = 0.0
    copied_bytes: float = 0.0
    landed_bytes: float = 0.0
    shares_path: bool = False
