"""The table of stacks: few fitted constants, each named, and a source for each stack."""

from __future__ import annotations

from dataclasses import fields

import pytest

from orchestrator.estimate.published import OWN_STACKS
from orchestrator.estimate.stacks import DEFAULT, MAX_FITTED, STACKS, Stack


@pytest.mark.parametrize("stack", [*STACKS.values(), DEFAULT], ids=lambda stack: stack.name)
def test_a_stack_has_a_source_and_few_fitted_constants(stack: Stack) -> None:
    assert len(stack.source) > 20
    assert len(stack.fitted) <= MAX_FITTED == 3
    known = {field.name for field in fields(Stack)}
    assert set(stack.fitted) <= known
    for name in stack.fitted:
        assert f"{name}:" in (Stack.__doc__ or ""), name
        assert getattr(stack, name) >= 0


def test_constants_that_are_not_fitted_are_neutral() -> None:
    neutral = Stack(name="neutral", source="")
    fitted = {"held_factor", "layer_factor", "saved_input_bytes", "slack", "context_bytes"}
    for stack in (x for x in STACKS.values() if x.name not in OWN_STACKS):
        for name in fitted - set(stack.fitted):
            assert getattr(stack, name) == getattr(neutral, name), (stack.name, name)


def test_more_than_three_fitted_constants_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 3"):
        Stack(name="x", source="", fitted=("slack", "layer_factor", "held_factor", "context_bytes"))
