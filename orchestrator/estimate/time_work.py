"""A step on a GPU as timeline schedules: what each layer takes on each stream."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Engine, Offload
from orchestrator.estimate import calibration as c
from orchestrator.estimate import calibration_time as ct
from orchestrator.estimate import zero3
from orchestrator.estimate.recomputed import recomputed_share
from orchestrator.estimate.setting import Setting, Trained
from orchestrator.estimate.time_compute import Part, compute_parts, host_factor
from orchestrator.estimate.time_flops import passes_of
from orchestrator.estimate.time_moves import Moves, is_fsdp, moves_of, offload_rate, shards_weights
from orchestrator.estimate.time_practice import Practice
from orchestrator.estimate.timeline import Schedule, Visit
from orchestrator.estimate.values import TimeTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A step.

    Attributes:
        parts: compute of one micro-step.
        moves: what travels.
        inner: every micro-step but the last.
        last: with the reduction of gradients and the optimizer.
        optimizer, codec: their terms.
    """

    parts: tuple[Part, ...]
    moves: Moves
    inner: Schedule
    last: Schedule
    optimizer: TimeTerm
    codec: TimeTerm


def codec_term(setting: Setting) -> TimeTerm:
    """What sparse gradients take of the device: it works on them in the stream of the passes, so nothing hides it."""
    seconds = 0.0 if setting.sparse is None else setting.sparse.codec_seconds
    return TimeTerm(name="compression", seconds=seconds, why="the largest gradients are found, packed and summed")


def work_of(setting: Setting, practice: Practice) -> Work:
    """Lay out a step."""
    moves = moves_of(setting, practice)
    parts = (*compute_parts(setting, practice), _landing(setting, practice, moves))
    parts = (*parts, _contention(setting, practice, moves, parts))
    layers, again = setting.model.layers, max(0, moves.passes - 1)
    head = next(part for part in parts if part.name == "head")
    layered = [part for part in parts if part is not head]
    host_forward, host_backward = _host_seconds(setting, practice, moves)
    window_forward, window_backward = _windows(setting, practice)
    forward = Visit(
        host=host_forward,
        compute=sum(part.forward_seconds for part in layered) / layers,
        gather=moves.gather_seconds if moves.passes else 0.0,
        copy=(moves.copy_seconds if moves.passes else 0.0) + moves.activation_seconds,
        window=window_forward,
    )
    backward = Visit(
        host=host_backward,
        compute=sum(part.backward_seconds for part in layered) / layers,
        gather=moves.gather_seconds * again,
        copy=moves.copy_seconds * again + moves.activation_seconds,
        window=window_backward,
    )

    def micro_step(reduce_seconds: float, tail_seconds: float) -> Schedule:
        return Schedule(
            layers=layers,
            forward=forward,
            backward=backward,
            head_seconds=head.seconds,
            group_layers=max(1, -(-layers // moves.groups)),
            reduce_seconds=reduce_seconds,
            tail_seconds=tail_seconds,
            start_seconds=ct.MICRO_STEP_HOST_SECONDS.value,
        )

    optimizer, codec = _optimizer(setting), codec_term(setting)
    inner = micro_step(moves.reduce_seconds if moves.reduces > 1 else 0.0, 0.0)
    last = micro_step(moves.reduce_seconds, optimizer.seconds + codec.seconds)
    return Work(parts=parts, moves=moves, inner=inner, last=last, optimizer=optimizer, codec=codec)


def _windows(setting: Setting, practice: Practice) -> tuple[int, int]:
    """Layers gathered ahead, forward and backward: the window's, what ZeRO-3's bucket holds, or the practice's."""
    if setting.streamed is not None:
        return setting.streamed.window - 1, setting.streamed.window - 1
    if setting.zero3 is None or setting.engine is not Engine.zero3:
        return practice.window_forward, practice.window_backward
    bucket = min(setting.zero3.prefetch_bucket_size, setting.zero3.max_live_parameters)
    layer = max(1, zero3.layer_elements(setting))
    # A bucket below a layer still holds the next modules, so their gathers run beside the present one's products.
    window = max(1, bucket // layer) if bucket > 0 else 0
    return window, window


def _landing(setting: Setting, practice: Practice, moves: Moves) -> Part:
    """Gathered weights are read from the collective's buffer and written where they are used."""
    moved = 2 * moves.gathered_bytes if practice.copies_gathers and moves.passes else 0.0
    what = "gathered weights copied out of the buffer"
    if setting.streamed is not None:  # what others send arrives in its place
        moved, what = 2 * setting.streamed.landed_bytes, "this rank's own part copied to its place"
    once = moved / (setting.machine.memory_bytes_per_second * ct.MEMORY_SHARE.value)
    why = f"{what}: {moved / 1e9:.3g} GB through memory a gather"
    again = max(0, moves.passes - 1)
    return Part(name="landing", forward_seconds=once, backward_seconds=once * again, why=why)


def _contention(setting: Setting, practice: Practice, moves: Moves, parts: tuple[Part, ...]) -> Part:
    """What collectives take from the compute they run beside: they need multiprocessors too."""
    window_forward, window_backward = _windows(setting, practice)
    gather = moves.gather_seconds * setting.model.layers
    forward = min(gather if moves.passes else 0.0, sum(part.forward_seconds for part in parts))
    backward = min(gather * max(0, moves.passes - 1), sum(part.backward_seconds for part in parts))
    share = ct.COLLECTIVE_SHARE.value
    return Part(
        name="contention",
        forward_seconds=share * forward if window_forward else 0.0,
        backward_seconds=share * backward if window_backward else 0.0,
        why=f"collectives hold {share:.0%} of the multiprocessors while they run",
    )


def _host_seconds(setting: Setting, practice: Practice, moves: Moves) -> tuple[float, float]:
    """Seconds of the host for one layer, forward and backward."""
    model = setting.model
    adapters = 0.0
    if setting.trained is not Trained.everything:
        carried = sum(piece.count for piece in setting.adapter.all_pieces) / model.layers
        adapters = carried * practice.adapter_host_seconds
    experts = 3 * model.experts * ct.EXPERT_HOST_SECONDS.value if practice.expert_seconds else 0.0
    each = (practice.layer_host_seconds + adapters + experts) * host_factor(setting)
    backward = each * (passes_of(setting) - 1)
    backward += recomputed_share(setting) * ct.CHECKPOINT_HOST_SECONDS.value
    if not moves.passes:
        return each, backward
    unit = practice.unit_host_seconds
    if setting.streamed is not None:
        unit = ct.STREAMED_LAYER_HOST_SECONDS.value * setting.streamed.fetched_layers / model.layers
    elif shards_weights(setting) and not is_fsdp(setting):
        unit = c.ZERO3_MODULE_SECONDS_GPU.value * len(model.linears)
    return each + unit, backward + unit * (moves.passes - 1)


def _optimizer(setting: Setting) -> TimeTerm:
    sharded = setting.sharding is not None or setting.engine is Engine.zero3
    params = setting.trained_params / (setting.world_size if sharded else 1)
    if _optimizer_on_host(setting):
        # Gradients go there, parameters come back.
        moved = 2 * params * setting.compute_bytes / offload_rate(setting)
        seconds = params / ct.CPU_ADAM_PARAMS.value + moved
        return TimeTerm(name="optimizer", seconds=seconds, why=f"{params / 1e9:.3g} billion parameters on the host")
    whole = setting.trained is Trained.everything
    size = setting.compute_bytes if whole else setting.adapter_bytes
    rate = setting.machine.memory_bytes_per_second * ct.MEMORY_SHARE.value
    tensors = len(setting.model.linears) * setting.model.layers if whole else setting.adapter.tensors
    seconds = params * size * ct.ADAM_BYTES.value / rate + tensors * ct.OPTIMIZER_TENSOR_SECONDS.value
    return TimeTerm(name="optimizer", seconds=seconds, why=f"{tensors} tensors, {params / 1e6:.3g}M parameters")


def _optimizer_on_host(setting: Setting) -> bool:
    sharding = setting.sharding
    if sharding is not None:
        return sharding.offload_optimizer or (sharding.is_fsdp and sharding.offload_params)
    return setting.zero3 is not None and setting.zero3.offload_optimizer is not Offload.none
