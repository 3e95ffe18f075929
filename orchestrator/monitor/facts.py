"""What is known of a run beforehand, as far as detectors need it."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.planner.plan import Plan

__all__ = ["Facts", "Patience", "facts_of"]

_SUMMED = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a rank may show no progress before it counts as hung, in seconds by phase.

    Attributes:
        starting: importing the stack and meeting the others.
        loading: reading the base; there is no beat in between.
        evaluating, saving, finishing: from one beat to the next.
        first_step: compiles kernels and meets the fabric for the first time.
        least: in training, however fast the steps are.
        steps: in training, in steps as they were measured.
        longest: times as long as a typical step one of the longest rows may take.
        look: longest pause of the reader that counts as waiting; more of it was the reader's own (a laptop that slept).
    """

    starting: float = 300.0
    loading: float = 1800.0
    evaluating: float = 600.0
    saving: float = 600.0
    finishing: float = 900.0
    first_step: float = 120.0
    least: float = 10.0
    steps: float = 3.0
    longest: float = 1.0
    look: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is planned and allowed.

    Attributes:
        world_size: ranks.
        num_steps: optimizer steps of the whole run; None where it is not known.
        step_seconds: predicted.
        communication_seconds: of a step, predicted, what is waited for gradients that nothing hides.
        speeds: of the ranks as planned, relative to each other; empty where they are equal.
        device_limit_bytes: that a rank may allocate on its device.
        host_limit_bytes: that a rank may take of its host; None: what the host still has is divided among its ranks.
        link_bytes_per_second: by name of the link, what the plan counts on.
        warmup_steps: first steps after a start, whose times and memory say nothing.
        has_loss_scaler: gradients that overflow are expected now and then (fp16).
        patience: of the detector of hangs.
    """

    world_size: int = 1
    num_steps: int | None = None
    step_seconds: float | None = None
    communication_seconds: float | None = None
    speeds: tuple[float, ...] = ()
    device_limit_bytes: int | None = None
    host_limit_bytes: int | None = None
    link_bytes_per_second: tuple[tuple[str, float], ...] = ()
    warmup_steps: int = 3
    has_loss_scaler: bool = False
    patience: Patience = field(default_factory=Patience)


def facts_of(plan: Plan, num_steps: int | None = None) -> Facts:
    """Take from a plan what detectors compare with.

    On CPUs ranks share the host's memory, so no limit of a device's is taken there.
    """
    strategy, estimate = plan.chosen.strategy, plan.chosen.estimate
    exposed = [term.seconds for term in estimate.time_terms if term.name == _SUMMED]
    shares = strategy.shares
    # Shares that differ by one row cannot be cut better; more of a difference is for devices that differ.
    is_uneven = bool(shares) and max(shares) - min(shares) > 1
    return Facts(
        world_size=strategy.world_size,
        num_steps=num_steps or plan.run_config.batch.max_steps or None,
        step_seconds=estimate.step_seconds,
        communication_seconds=sum(exposed) if exposed else None,
        speeds=tuple(float(share) for share in shares) if is_uneven else (),
        device_limit_bytes=plan.device_memory_bytes if plan.device_kind == "gpu" else None,
        has_loss_scaler=strategy.precision == "fp16",
    )
