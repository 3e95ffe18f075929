"""Says that experts held in one tensor are not quantised, where nothing fits because of them."""

from __future__ import annotations

from orchestrator.config import Quant
from orchestrator.errors import Problem
from orchestrator.planner.dtypes import choose_precision
from orchestrator.planner.solve import Asked
from orchestrator.planner.world import World
from topology.units import format_bytes

_NUM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# A smaller share of the model is not why it does not fit.
_LEAST_SHARE = 0.1


def unpacked_experts(asked: Asked, world: World) -> tuple[Problem, ...]:
    """Tell how much of the base stays unquantised, though it was asked to be packed; nothing for other models."""
    model, quant = asked.model, asked.config.base.quant
    if quant is Quant.none or model.expert_params < _LEAST_SHARE * model.total_params:
        return ()
    num = _NUM_BYTES[choose_precision(asked.config, world).precision]
    stored = format_bytes(num * model.expert_params)
    return (
        Problem(
            where=f"base.quant={quant.value}",
            found=f"the experts of {model.name} are one 3-D tensor a layer, which bitsandbytes does not quantise (it "
            f"packs linear modules): {model.expert_params / 1e9:.1f} billion of {model.total_params / 1e9:.1f} billion "
            f"parameters stay in {8 * num} bits and take {stored} for a whole copy",
            remedy=f"Count with {stored} in all, or take a model whose layers are linear modules (a dense one).",
        ),
    )
