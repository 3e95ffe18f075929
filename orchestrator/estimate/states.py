"""Bytes of what trains: parameters, gradients, optimizer states, and what the optimizer's step needs on top."""

from __future__ import annotations

from typing import Final

from orchestrator.config import Optimizer
from orchestrator.estimate import base
from orchestrator.estimate import calibration as c
from orchestrator.estimate.setting import Gradients, Setting, Sharding, Stage, Trained
from orchestrator.estimate.values import Term

_FP32: Final = 4
_HALF: Final = 2


def deepspeed(setting: Setting) -> bool:
    """Whether DeepSpeed holds the states: fp32 masters and moments beside 16-bit parameters."""
    return setting.sharding is not None and setting.sharding.stage in (Stage.zero2, Stage.zero3)


def owners(setting: Setting) -> int:
    """Ranks that gradients and optimizer states are divided among."""
    sharded = setting.sharding is not None and setting.sharding.stage is not Stage.streamed
    return setting.world_size if sharded else 1


def param_bytes(setting: Setting) -> int:
    """Bytes of a trained parameter as it is multiplied."""
    return setting.load_bytes if setting.trained is Trained.everything else setting.adapter_bytes


def moment_bytes(setting: Setting) -> float:
    """Bytes of both moments of one trained parameter on the device's allocator."""
    if setting.paged_optimizer or (setting.paged_optimizer is None and "paged" in setting.optimizer.value):
        return 0.0
    if setting.moment_bytes:
        return 2 * setting.moment_bytes
    if deepspeed(setting):
        return 2.0 * _FP32
    return 2.0 * param_bytes(setting) if setting.optimizer is Optimizer.adamw else c.ADAM_8BIT_BYTES


def state_terms(setting: Setting) -> tuple[Term, ...]:
    """Trained adapters and optimizer states on the device of one rank, for engines not our own."""
    params, size, ranks = setting.trained_params, param_bytes(setting), setting.world_size
    sharding = setting.sharding
    share = -(-params // owners(setting))
    terms: list[Term] = []
    if setting.trained is Trained.adapters:
        # Under ZeRO-2 every rank has all parameters; small ones stay whole under ZeRO-3 and FSDP gathers layers.
        here = share if sharding and sharding.is_fsdp else params
        here = 0 if sharding and sharding.offload_params and sharding.is_fsdp else here
        terms.append(Term(name="adapters", bytes=here * size, why=f"{params:,} trained parameters of {size} bytes"))
    if sharding and sharding.offload_optimizer:
        return tuple(terms)
    if deepspeed(setting):
        why = f"fp32 master copy of this rank's {share:,} parameters"
        terms.append(Term(name="masters", bytes=_FP32 * share, why=why))
    moments = round(moment_bytes(setting) * share)
    terms.append(Term(name="optimizer", bytes=moments, why=f"{setting.optimizer.value}: two moments"))
    if owners(setting) == 1 and ranks > 1:
        terms.append(Term(name="ddp_buckets", bytes=params * size, why="DDP reduces gradients from its own buckets"))
    return tuple(terms)


def gradient_term(setting: Setting) -> Term:
    """Gradients on the device of one rank once all exist."""
    params, size, sharding = setting.trained_params, param_bytes(setting), setting.sharding
    share = -(-params // owners(setting))
    if setting.step_in_backward:
        # A tied table's gradient from the head waits for the one from the embedding.
        tied = setting.model.embedding_params if setting.model.tied else 0
        largest = max(setting.model.largest_param, 1) + tied if setting.trained is Trained.everything else share
        return Term(name="gradients", bytes=largest * size, why="freed as soon as used: the largest one, a tied table")
    if sharding and sharding.is_fsdp and setting.accumulation > 1 and sharding.gradients is not Gradients.sharded:
        why = "FSDP adds up micro-steps without synchronising: unsharded gradients of what trains"
        size *= params
        if sharding.gradients is Gradients.flat:
            size += base.packed_bytes(setting) + base.unquantised_bytes(setting)
            why += ", and of the frozen weights in the same flat parameters"
        return Term(name="gradients", bytes=size, why=why)
    if sharding and sharding.offload_params:
        return Term(name="gradients", bytes=0, why="on the host, with the parameters")
    if deepspeed(setting) and sharding and sharding.offload_optimizer:
        return Term(name="gradients", bytes=0, why="on the host, with the optimizer")
    return Term(name="gradients", bytes=share * size, why="one per trained parameter, in its dtype")


def step_bytes(setting: Setting) -> int:
    """Bytes that the optimizer's step allocates: AdamW over all tensors at once copies what it updates."""
    if setting.step_copies:
        return setting.step_copies * _FP32 * -(-max(setting.model.largest_param, 1) // owners(setting))
    if setting.step_in_backward or (setting.sharding and setting.sharding.offload_optimizer):
        return 0
    share = -(-setting.trained_params // owners(setting))
    if deepspeed(setting):
        return _FP32 * share  # the gradients in fp32
    if setting.optimizer is not Optimizer.adamw or setting.paged_optimizer:
        return 0
    return param_bytes(setting) * share


def host_state_terms(setting: Setting) -> tuple[Term, ...]:
    """What an offloading engine keeps in pinned host memory, per rank."""
    sharding = setting.sharding
    if sharding is None:
        return ()
    share, terms = -(-setting.trained_params // owners(setting)), []
    if sharding.offload_optimizer:
        # DeepSpeed: masters, gradients and moments in fp32; FSDP: gradients and moments in the parameters' dtype.
        each = 4 * _FP32 if deepspeed(setting) else param_bytes(setting) + moment_bytes(setting)
        why = "this rank's share of gradients, moments and, under DeepSpeed, fp32 masters"
        terms.append(Term(name="offloaded_optimizer", bytes=round(each * share), why=why))
    if sharding.offload_params:
        whole = base.packed_bytes(setting) + base.unquantised_bytes(setting)
        if setting.trained is Trained.adapters:
            whole += setting.trained_params * param_bytes(setting)
        why = "this rank's share of the parameters"
        terms.append(Term(name="offloaded_base", bytes=-(-whole // setting.world_size), why=why))
    return tuple(terms)


def zero_buckets(setting: Setting, sharding: Sharding) -> int:
    """Bytes of DeepSpeed's reduction buckets: two of 5e8 elements, but never more than what trains."""
    elements = min(setting.trained_params, 500_000_000)
    return elements * _HALF if sharding.stage in (Stage.zero2, Stage.zero3) else 0
