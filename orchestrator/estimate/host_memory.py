"""Host bytes of one rank's process: the runtime, what loading maps and converts, what ZeRO-3 offloads."""

from __future__ import annotations

from orchestrator.config import Engine, Offload, Quant
from orchestrator.estimate import base
from orchestrator.estimate import calibration as c
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.streamed import load_peak, share_of, staging_bytes
from orchestrator.estimate.values import Term

_CHECKPOINT_BYTES = 2  # published checkpoints hold 16-bit weights
_FP32 = 4
# Host terms that are page-locked, for the device to read.
PINNED = frozenset({"offloaded_base", "drive_staging", "offloaded_optimizer", "offloaded_activations"})


def load_conversion_bytes(setting: Setting) -> int:
    """Bytes of weights in the load dtype that are alive at once while a checkpoint is read on the host."""
    if setting.quant is Quant.none:
        return 0
    linears = setting.model.linear_params * setting.load_bytes
    if setting.load_bytes == _CHECKPOINT_BYTES:
        # Read as stored: only the tensors in flight.
        return round(c.LOAD_INFLIGHT_TENSORS.value * setting.model.largest_linear * setting.load_bytes)
    return round(linears * c.LOAD_CONVERSION.value)


def host_terms(setting: Setting, phase: str, *, resident_bytes: int) -> tuple[Term, ...]:
    """Addends of the host memory in `phase` (`load`, `train` or `save`).

    Args:
        setting: the rank's work.
        phase: which peak.
        resident_bytes: what a CPU rank's tensors hold, with the heap's slack; 0 on a GPU.
    """
    runtime = c.RUNTIME_GPU_BYTES if setting.machine.is_gpu else c.RUNTIME_CPU_BYTES
    terms = [
        Term(
            name="runtime",
            bytes=round(runtime.value + c.RUN_BUFFERS_BYTES.value),
            why="Python, torch, transformers, TRL, PEFT, bitsandbytes, DeepSpeed and the trainer's objects",
        )
    ]
    if resident_bytes:
        terms.append(Term(name="tensors", bytes=resident_bytes, why="what the rank computes with, and heap slack"))
    terms += _load_terms(setting) if phase == "load" else _run_terms(setting, phase)
    return tuple(term for term in terms if term.bytes > 0)


def _load_terms(setting: Setting) -> list[Term]:
    if setting.engine is Engine.streamed:
        # Each tensor is read by one rank alone, into memory of its own: no file is mapped.
        read = load_peak(setting).raw if setting.machine.is_gpu else 0
        return [*_tiers(setting), Term(name="checkpoint_read", bytes=read, why="the tensors that are being read")]
    checkpoint = setting.model.total_params * _CHECKPOINT_BYTES
    mapped = checkpoint if not setting.machine.is_gpu else min(checkpoint, round(c.SHARD_FILE_BYTES.value))
    terms = [Term(name="checkpoint_pages", bytes=mapped, why="pages of the mapped checkpoint files")]
    if setting.machine.is_gpu and setting.engine is Engine.zero3:
        whole = base.packed_bytes(setting) + base.absmax_bytes(setting) + base.unquantised_bytes(setting)
        why = "under ZeRO-3 each rank quantises the whole base on its host before it is partitioned"
        terms.append(Term(name="base_on_host", bytes=whole + load_conversion_bytes(setting), why=why))
    return terms


def _run_terms(setting: Setting, phase: str) -> list[Term]:
    terms: list[Term] = []
    if setting.engine is Engine.streamed:
        terms += _tiers(setting)
    elif not setting.machine.is_gpu and setting.load_bytes != _CHECKPOINT_BYTES:
        # Measured: after loading, the heap keeps what the conversion had used.
        why = "heap that the conversion of the checkpoint leaves behind"
        terms.append(Term(name="load_residue", bytes=load_conversion_bytes(setting), why=why))
    if setting.zero3 is not None and setting.machine.is_gpu:
        terms += _offload_terms(setting)
    if phase == "save":
        why = "adapters and moments in fp32 on their way to disk"
        terms.append(Term(name="checkpoint_copy", bytes=3 * _FP32 * setting.adapter.params, why=why))
    return terms


def _tiers(setting: Setting) -> list[Term]:
    """What a rank that streams keeps of the layers in host memory."""
    why = "of this rank's part of the layers, pinned"
    terms = [Term(name="offloaded_base", bytes=share_of(setting).host_bytes, why=why)]
    if setting.machine.is_gpu:
        why = "what comes from the drive passes through here, pinned"
        terms.append(Term(name="drive_staging", bytes=staging_bytes(setting), why=why))
    return terms


def _offload_terms(setting: Setting) -> list[Term]:
    knobs = setting.zero3
    terms: list[Term] = []
    if knobs is None:
        return terms
    if knobs.offload_param is Offload.cpu:
        why = "this rank's share of the base, pinned (blocks round up to powers of two)"
        terms.append(Term(name="offloaded_base", bytes=base.pinned_partition_bytes(setting), why=why))
    if knobs.offload_optimizer is not Offload.none:
        share = -(-setting.adapter.params // setting.world_size)
        why = "this rank's share of fp32 master copy, gradient and two moments, pinned"
        terms.append(Term(name="offloaded_optimizer", bytes=4 * _FP32 * share, why=why))
    return terms
