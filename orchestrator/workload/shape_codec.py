"""Model shapes as JSON: how the process that counts on the meta device answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import Problem, UserError
from orchestrator.workload.model import LinearShape, ModelShape
from orchestrator.workload.parameters import LayerGroup, Parameter, Role


def shape_to_json(shape: ModelShape) -> str:
    """A shape, all its parameters included."""
    return json.dumps({"shape": dataclasses.asdict(shape)})


def problems_to_json(error: UserError) -> str:
    """Problems in the place of a shape."""
    return json.dumps({"problems": [dataclasses.asdict(problem) for problem in error.problems]})


def shape_from_json(text: str) -> ModelShape:
    """Read what `shape_to_json` or `problems_to_json` wrote.

    Raises:
        UserError: the problems, or an answer that is neither.
    """
    try:
        value = json.loads(text)
        if "problems" in value:
            raise UserError(*(Problem(**problem) for problem in value["problems"]))
        return _shape(value["shape"])
    except (ValueError, KeyError, TypeError) as error:
        found = f"the process that counts on the meta device answered nonsense ({error})"
        raise UserError(
            Problem(where="model", found=found, remedy="Run `python -m orchestrator.workload.meta DIR` by hand.")
        ) from error


def _shape(fields: Mapping[str, Any]) -> ModelShape:
    nested = {
        "linears": tuple(LinearShape(**x) for x in fields["linears"]),
        "counts": tuple((LinearShape(**linear), count) for linear, count in fields["counts"]),
        "outside": tuple(_parameter(x) for x in fields["outside"]),
        "groups": tuple(_group(x) for x in fields["groups"]),
        "stored": tuple((dtype, count) for dtype, count in fields["stored"]),
        "notes": tuple(fields["notes"]),
    }
    return ModelShape(**{**fields, **nested})


def _group(fields: Mapping[str, Any]) -> LayerGroup:
    return LayerGroup(layers=tuple(fields["layers"]), parameters=tuple(_parameter(x) for x in fields["parameters"]))


def _parameter(fields: Mapping[str, Any]) -> Parameter:
    return Parameter(**{**fields, "shape": tuple(fields["shape"]), "role": Role(fields["role"])})
