"""Which GPUs CUDA_VISIBLE_DEVICES leaves, by CUDA's rules: pure functions of the text and the names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topology.probe.gpu_devices import has_mig, is_open

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.readings import GpuReadings, MigReadings, NvmlReadings

Chosen = tuple["GpuReadings", "MigReadings | None"]

_MIG: Final = "MIG-"
_MAX_DIGITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The names of a MIG device: its UUID, and `GPU instance/compute instance` as drivers before R470 name it."""

    uuid: str | None
    instances: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """What is visible, in the order CUDA will number it, and what is worth telling.

    Each entry of `chosen` is the position of a GPU, and of a MIG device among those of that GPU (None: all of it).
    """

    chosen: tuple[tuple[int, int | None], ...]
    notes: tuple[str, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the GPUs alone."""
        return tuple(gpu for gpu, _ in self.chosen)


def visible_gpus(nvml: NvmlReadings) -> tuple[tuple[Chosen, ...], tuple[str, ...]]:
    """Return the GPUs (with None) and MIG devices (with their GPU) that CUDA shows, in its order, and what to tell.

    All that speaks of visible GPUs asks here, so that no two parts can number them differently.
    """
    if not nvml.gpus:
        return (), ()  # nothing to hide: why there is nothing is told elsewhere
    # A GPU that is lost, or that a container may not open, does not enumerate in CUDA, and CUDA's indices count
    # those that do: with GPU 1 of 4 lost, CUDA_VISIBLE_DEVICES=1 is NVML's GPU 2. NVML keeps the place of the lost one.
    gpus = [gpu for gpu in nvml.gpus if is_open(gpu)]
    slices = [[_names(mig) for mig in gpu.mig_devices] if has_mig(gpu) else [] for gpu in gpus]
    found = select_visible([gpu.uuid.value for gpu in gpus], nvml.visible_devices, slices)
    notes = list(found.notes)
    by_index = nvml.visible_devices is not None and nvml.visible_devices.strip()[:1].isdecimal()
    if by_index and len({gpu.name.value for gpu in gpus}) > 1 and nvml.device_order != "PCI_BUS_ID":
        # NVML counts by PCI address, CUDA by default from the fastest card.
        notes.append(
            "CUDA_VISIBLE_DEVICES holds indices and the cards differ: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs",
        )
    if by_index and len(gpus) < len(nvml.gpus):
        gone = len(nvml.gpus) - len(gpus)
        notes.append(
            f"CUDA_VISIBLE_DEVICES holds indices and {gone} GPU(s) cannot be opened: CUDA counts without them, so they "
            "may name other GPUs than nvidia-smi shows under them; UUIDs are safe",
        )
    chosen = tuple((gpus[at], None if mig is None else gpus[at].mig_devices[mig]) for at, mig in found.chosen)
    return chosen, tuple(notes)


def _names(mig: MigReadings) -> Slice:
    ids = (mig.gpu_instance.value, mig.compute_instance.value)
    return Slice(uuid=mig.uuid.value, instances=None if None in ids else f"{ids[0]}/{ids[1]}")


def select_visible(
    uuids: Sequence[str | None],
    text: str | None,
    slices: Sequence[Sequence[Slice]] = (),
) -> Visible:
    """Apply the text: indices, UUIDs and unique UUID prefixes of GPUs and of MIG devices, comma-separated.

    `slices` are the MIG devices of each GPU, none where MIG is off. CUDA stops at the first entry it cannot resolve
    (`-1` is the customary one), keeps those before it, and shows no GPU at all if one is named twice. A GPU with MIG
    devices stands for the first of them, since that is what CUDA shows of it.
    """
    of_gpu = [list(slices[at]) if at < len(slices) else [] for at in range(len(uuids))]
    if text is None:
        every = ((gpu, at) for gpu, own in enumerate(of_gpu) for at in (range(len(own)) if own else (None,)))
        return Visible(chosen=tuple(every))
    shown = f"CUDA_VISIBLE_DEVICES={text!r}"
    chosen: list[tuple[int, int | None]] = []
    notes: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        found, fault = _resolve(entry, uuids, of_gpu)
        if found is None:
            # An empty text or -1 is how one asks for no GPU: no fault to explain.
            notes += [] if entry in {"", "-1"} else [f"{shown}: {entry!r} {fault}; CUDA ignores it and what follows"]
            break
        if found in chosen:
            what = f"GPU {found[0]}" if found[1] is None else f"a MIG device of GPU {found[0]}"
            note = f"{shown}: {entry!r} names {what} a second time; CUDA then shows no GPU"
            return Visible(chosen=(), notes=(note,))
        chosen.append(found)
    if not chosen and uuids:
        notes.append(f"{shown} hides all {len(uuids)} GPU(s) of this host")
    return Visible(chosen=tuple(chosen), notes=tuple(notes))


def _resolve(
    entry: str,
    uuids: Sequence[str | None],
    slices: Sequence[Sequence[Slice]],
) -> tuple[tuple[int, int | None] | None, str]:
    if entry.isascii() and entry.isdecimal():
        # Python refuses to read numbers of some thousand digits; no host has that many GPUs.
        digits = entry.lstrip("0") or "0"
        index = int(digits) if len(digits) < _MAX_DIGITS else len(uuids)
        return (_whole(index, slices), "") if index < len(uuids) else (None, f"is no index below {len(uuids)}")
    if entry.startswith(_MIG):
        return _slice(entry, uuids, slices)
    if not entry.startswith("GPU-"):
        return None, "is neither an index nor the UUID of a GPU or a MIG device"
    matches = [at for at, uuid in enumerate(uuids) if uuid is not None and uuid.lower().startswith(entry.lower())]
    if len(matches) == 1:
        return _whole(matches[0], slices), ""
    return None, "fits no GPU" if not matches else f"fits {len(matches)} GPUs"


def _whole(gpu: int, slices: Sequence[Sequence[Slice]]) -> tuple[int, int | None]:
    return gpu, 0 if slices[gpu] else None


def _slice(
    entry: str,
    uuids: Sequence[str | None],
    slices: Sequence[Sequence[Slice]],
) -> tuple[tuple[int, int | None] | None, str]:
    parent, _, instances = entry.removeprefix(_MIG).partition("/")
    matches: list[tuple[int, int | None]] = []
    for gpu, own in enumerate(slices):
        is_parent = bool(instances) and (uuids[gpu] or "").lower() == parent.lower()
        for at, one in enumerate(own):
            is_named = one.uuid is not None and one.uuid.lower().startswith(entry.lower())
            if is_named or (is_parent and one.instances == instances):
                matches.append((gpu, at))
    if len(matches) == 1:
        return matches[0], ""
    return None, "fits no MIG device" if not matches else f"fits {len(matches)} MIG devices"
