"""The readings of one GPU through NVML: what it is, its links, its MIG devices and its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from topology.probe.gpu_readings import GpuReadings, MigReadings, NvlinkReadings
from topology.probe.nvml_calls import bits_of, part, pci_of, text_of
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from topology.probe.nvml_calls import Caller

_CPU_WORDS: Final = 16  # 64 CPUs a word: masks of up to 1024 CPUs
_NODE_WORDS: Final = 4
_NODE_SCOPE: Final = 0  # NVML_AFFINITY_SCOPE_NODE
_LINK_COUNT: Final = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_MAX_LINKS: Final = 64
_MAX_MIG: Final = 16
_MIG_ENABLED: Final = 1
_P2P: Final = 0  # NVML_NVLINK_CAP_P2P_SUPPORTED
_NO_SUCH_LINK: Final = frozenset({"INVALID_ARGUMENT", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND"})


def read_gpu(call: Caller, index: int, handle: Reading[Any]) -> GpuReadings:
    """Read all of one GPU; a handle that failed gives its error to every reading."""
    memory = call.read("nvmlDeviceGetMemoryInfo", handle)
    count = call.field(handle, _LINK_COUNT, "NVLINK_LINK_COUNT")
    mig = call.read("nvmlDeviceGetMigMode", handle)
    return GpuReadings(
        index=index,
        uuid=call.read("nvmlDeviceGetUUID", handle, then=text_of),
        name=call.read("nvmlDeviceGetName", handle, then=text_of),
        pci=call.read("nvmlDeviceGetPciInfo", handle, then=pci_of),
        memory_total_bytes=part(memory, lambda info: int(info.total)),
        memory_free_bytes=part(memory, lambda info: int(info.free)),
        compute_capability=call.read("nvmlDeviceGetCudaComputeCapability", handle, then=tuple),
        numa=call.read("nvmlDeviceGetNumaNodeId", handle),
        cpus=call.read("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS, then=bits_of),
        memory_nodes=call.read("nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _NODE_SCOPE, then=bits_of),
        nvlink_count=count,
        nvlinks=tuple(_nvlinks(call, handle, count)),
        mig_mode=part(mig, lambda modes: modes[0]),
        mig_pending_mode=part(mig, lambda modes: modes[1]),
        mig_devices=tuple(_mig_devices(call, handle)) if mig.value and mig.value[0] == _MIG_ENABLED else (),
        **_pcie(call, handle),
        **_fabric(call, handle),
        **_state(call, handle),
    )


def _pcie(call: Caller, handle: Reading[Any]) -> dict[str, Reading[Any]]:
    return {
        "pcie_max_generation": call.read("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_max_width": call.read("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "pcie_device_max_generation": call.read("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        "pcie_generation": call.read("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_width": call.read("nvmlDeviceGetCurrPcieLinkWidth", handle),
    }


def _state(call: Caller, handle: Reading[Any]) -> dict[str, Reading[Any]]:
    ecc = call.read("nvmlDeviceGetEccMode", handle)
    reasons = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return {
        "power_limit_milliwatts": call.read("nvmlDeviceGetEnforcedPowerLimit", handle),
        "clock_reasons": call.first(reasons, handle),
        "ecc_mode": part(ecc, lambda modes: modes[0]),
        "ecc_pending_mode": part(ecc, lambda modes: modes[1]),
        "retired_pages_pending": call.read("nvmlDeviceGetRetiredPagesPendingStatus", handle),
        "remapped_rows": call.read("nvmlDeviceGetRemappedRows", handle, then=tuple),
        "persistence_mode": call.read("nvmlDeviceGetPersistenceMode", handle),
        "compute_mode": call.read("nvmlDeviceGetComputeMode", handle),
    }


def _fabric(call: Caller, handle: Reading[Any]) -> dict[str, Reading[Any]]:
    # Drivers before 535 have the first form only, which has no health mask.
    info, filled = _fabric_info(call, handle, "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t")
    if filled.error in {"FUNCTION_NOT_FOUND", "AttributeError", "ARGUMENT_VERSION_MISMATCH"}:
        info, filled = _fabric_info(call, handle, "nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t")
    health = part(filled, lambda _: int(info.healthMask)) if hasattr(info, "healthMask") else None
    return {
        "fabric_state": part(filled, lambda _: int(info.state)),
        "fabric_cluster": part(filled, lambda _: _uuid(bytes(info.clusterUuid))),
        "fabric_clique": part(filled, lambda _: int(info.cliqueId)),
        "fabric_health": health or Reading(source=filled.source, error=filled.error or "FUNCTION_NOT_FOUND"),
    }


def _fabric_info(call: Caller, handle: Reading[Any], function: str, structure: str) -> tuple[Any, Reading[Any]]:
    try:
        info = getattr(call.binding, structure)()
    except AttributeError:
        return None, Reading(source=function, error="FUNCTION_NOT_FOUND")
    import ctypes  # a probe without a driver does without it

    # pynvml hands the structure on as it is, so it must be a pointer already.
    return info, call.read(function, handle, ctypes.pointer(info), then=lambda _: True)


def _uuid(raw: bytes) -> str:
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _nvlinks(call: Caller, handle: Reading[Any], count: Reading[int]) -> Iterator[NvlinkReadings]:
    known = count.value
    for link in range(_MAX_LINKS if known is None else min(known, _MAX_LINKS)):
        state = call.read("nvmlDeviceGetNvLinkState", handle, link)
        if handle.error is not None or (known is None and state.error in _NO_SUCH_LINK):
            # Past the last port, or a card without any: the answer to all further ports is the same.
            return
        yield NvlinkReadings(
            link=link,
            state=state,
            version=call.read("nvmlDeviceGetNvLinkVersion", handle, link),
            remote_pci=call.read("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, then=pci_of),
            remote_type=call.read("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
            p2p=call.read("nvmlDeviceGetNvLinkCapability", handle, link, _P2P),
        )
        if known is None and state.error is not None:
            # Neither a count nor a state: 36 more such answers would tell nothing.
            return


def _mig_devices(call: Caller, handle: Reading[Any]) -> Iterator[MigReadings]:
    count = call.read("nvmlDeviceGetMaxMigDeviceCount", handle)
    for slot in range(min(count.value or 0, _MAX_MIG)):
        device = call.read("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        if device.error == "NOT_FOUND":
            continue  # an empty place
        memory = call.read("nvmlDeviceGetMemoryInfo", device)
        yield MigReadings(
            slot=slot,
            uuid=call.read("nvmlDeviceGetUUID", device, then=text_of),
            name=call.read("nvmlDeviceGetName", device, then=text_of),
            memory_total_bytes=part(memory, lambda info: int(info.total)),
            memory_free_bytes=part(memory, lambda info: int(info.free)),
            gpu_instance=call.read("nvmlDeviceGetGpuInstanceId", device),
            compute_instance=call.read("nvmlDeviceGetComputeInstanceId", device),
            num_multiprocessors=call.read(
                "nvmlDeviceGetAttributes", device, then=lambda found: int(found.multiprocessorCount)
            ),
        )
