"""Every family against transformers' own modules: names, shapes, and what bitsandbytes packs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import transformers

from orchestrator.workload.families import FAMILIES, SUPPORTED, is_known, shape_from_config
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


def _classes() -> dict[str, type[transformers.PretrainedConfig]]:
    found = {}
    for kind, _ in CASES.values():
        cls = getattr(transformers, kind)
        found.setdefault(cls.model_type, cls)
    return found


@pytest.mark.parametrize("name", sorted(set(SUPPORTED) - OWN_CODE))
def test_defaults_are_those_of_the_configuration_class(name: str) -> None:
    family, cls = FAMILIES[name], _classes()[name]
    told = {**family.defaults, **family.nested, "tie_word_embeddings": family.tied}
    assert told == {key: getattr(cls, key) for key in told}


@pytest.mark.parametrize("name", sorted(set(SUPPORTED) - OWN_CODE))
def test_absent_keys_mean_what_transformers_takes(name: str) -> None:
    """A file with no more than its sizes gives the model that transformers makes of it."""
    case = next(case for case, (kind, _) in CASES.items() if getattr(transformers, kind).model_type == name)
    kind, arguments = CASES[case]
    written = {key: value for key, value in arguments.items() if key != "pad_token_id"}
    shape = shape_from_config(name, {"model_type": name, **written})
    full = shape_from_config(name, getattr(transformers, kind)(**arguments).to_dict())
    assert replace(shape, activation="", dtype="", max_positions=0) == replace(
        full, activation="", dtype="", max_positions=0
    )


def test_roles_of_the_parts() -> None:
    shape = shape_from_config("m", meta_model("qwen2_moe").config.to_dict())
    roles = {x.name: x.role for x in shape.groups[0].parameters}
    assert roles["mlp.experts.gate_up_proj"] is Role.experts
    assert roles["mlp.gate.weight"] is Role.router
    assert roles["mlp.shared_expert_gate.weight"] is Role.linear
    assert (shape.experts, shape.experts_per_token) == (6, 4)
    assert shape.expert_params == 3 * 6 * 3 * 24 * 64
    assert shape.active_params == shape.linear_params + shape.expert_params * 4 // 6
