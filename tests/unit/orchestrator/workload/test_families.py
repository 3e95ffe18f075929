"""Every family against transformers' own modules: names, shapes, and what bitsandbytes packs."""

from __future__ import annotations

import pytest

from orchestrator.workload.families import SUPPORTED, is_known, shape_from_config
from orchestrator.workload.model import ModelShape
from orchestrator.workload.parameters import LINEAR_ROLES, Role

from .architectures import CASES, OWN_CODE, Fact, facts, meta_model


def _declared(shape: ModelShape) -> dict[str, Fact]:
    found = {x.name: Fact(x.shape, x.role in LINEAR_ROLES, x.packed) for x in shape.outside}
    for group in shape.groups:
        for index in group.layers:
            for x in group.parameters:
                found[f"{shape.prefix}.{index}.{x.name}"] = Fact(x.shape, x.role in LINEAR_ROLES, x.packed)
    return found


@pytest.mark.parametrize("name", CASES)
def test_names_shapes_and_packing_match_transformers(name: str) -> None:
    model = meta_model(name)
    config = model.config.to_dict()
    assert is_known(config)
    shape = shape_from_config(name, config)
    assert _declared(shape) == facts(name)
    assert shape.total_params == sum(parameter.numel() for parameter in model.parameters())
    assert shape.source == "config.json"


def test_every_supported_type_is_covered() -> None:
    covered = set()
    for name in CASES:
        config = meta_model(name).config
        covered.add(getattr(config, "text_config", config).model_type)
    assert covered == set(SUPPORTED) - OWN_CODE


def test_roles_of_the_parts() -> None:
    shape = shape_from_config("m", meta_model("qwen2_moe").config.to_dict())
    roles = {x.name: x.role for x in shape.groups[0].parameters}
    assert roles["mlp.experts.gate_up_proj"] is Role.experts
    assert roles["mlp.gate.weight"] is Role.router
    assert roles["mlp.shared_expert_gate.weight"] is Role.linear
    assert (shape.experts, shape.experts_per_token) == (6, 4)
    assert shape.expert_params == 3 * 6 * 3 * 24 * 64
    assert shape.active_params == shape.linear_params + shape.expert_params * 4 // 6
