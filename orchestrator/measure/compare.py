"""What the tables say where the bench measures, to be printed beside it."""

from __future__ import annotations

from orchestrator.calibration_file import Measured
from orchestrator.estimate import calibration as c
from orchestrator.estimate import calibration_time as ct
from orchestrator.planner.measured import table_layer_pass, thread_share
from topology.hardware import Peak, Precision, cpu_peak, peak
from topology.model import Device, DeviceKind, Topology

_GPU_ONLY = {"context": c.CUDA_CONTEXT_BYTES.value, "host_to_device": c.H2D_BYTES.value}
_STACKS = {
    "hf_plain.logit_bytes": float(c.PLAIN_LOSS_BYTES),
    "trl.logit_bytes": float(c.TILE_LOGIT_BYTES),
    "hf_plain.layer_factor": 1.0,
    "trl.layer_factor": 1.0,
}


def table_value(section: str, item: Measured, topology: Topology, threads: int) -> float | None:
    """The value that an estimate takes without the measurement, or None where the tables have none."""
    if section == "stack":
        return _STACKS.get(item.name)
    device = next((x for x in topology.devices if x.name == item.device), None)
    if device is None:
        return None
    host = next(x for x in topology.hosts if x.name == device.host)
    is_gpu = device.kind is DeviceKind.gpu
    if item.name == "layer_pass":
        return table_layer_pass(is_gpu=is_gpu)
    if section == "dequantise" and not is_gpu:
        return c.DEQUANTISE_WEIGHTS_PER_CORE.value * threads
    if item.name in _GPU_ONLY:
        return _GPU_ONLY[item.name]
    known = peak(device.name, device.memory_bytes) if is_gpu else cpu_peak(device, host.clock_hz, host.threads_per_core)
    return None if known is None else _of_peak(section, item, device, known, threads)


def _of_peak(section: str, item: Measured, device: Device, known: Peak, threads: int) -> float | None:
    is_gpu = device.kind is DeviceKind.gpu
    share = 1.0 if is_gpu else thread_share(threads) / device.cores
    if section == "gemm":
        flops = known.flops_per_second.get(Precision(item.name.partition(".")[0]))
        reached = ct.generation_of(device.name).share if is_gpu else c.GEMM_EFFICIENCY_CPU.value
        return None if flops is None else flops * share * reached
    if item.name == "elementwise" or (item.name == "copy" and is_gpu):
        return known.memory_bytes_per_second * share * (ct.MEMORY_SHARE.value if is_gpu else 1.0)
    return None
