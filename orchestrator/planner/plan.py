"""The plan: what was chosen, what else fits, what does not, and why. `plan.json` holds it exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.config import RunConfig
from orchestrator.config_codec import parse_config
from orchestrator.errors import Problem, UserError
from orchestrator.estimate.values import Estimate
from orchestrator.planner.codec import ADDED, MalformedError, decode, encode
from orchestrator.planner.data_report import DataReport
from orchestrator.planner.knobs import Knob
from orchestrator.planner.measured import CalibrationUse
from orchestrator.planner.setbacks import Setbacks
from orchestrator.planner.strategy import Strategy

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy that fits, with its estimate."""

    strategy: Strategy
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A strategy that does not fit or cannot be combined, and the reason in words and numbers."""

    strategy: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """What a change of the chosen strategy would save and cost, per rank.

    Attributes:
        change: in words, and as the user would ask for it.
        saved_bytes: of the device's peak; below 0 where it takes more.
        step_seconds: of a step with the change.
        time_percent: change of the time per token, in percent.
        fits: whether it could be run.
    """

    change: str
    saved_bytes: int
    step_seconds: float
    time_percent: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Of the decision tree: what frees so many bytes of a rank's device at the least cost of time.

    Attributes:
        freed_bytes: of the device's peak while training.
        settings: as the user would type them; evaluated together.
        time_percent: change of the time per token, in percent.
        fits: whether it could be run.
    """

    freed_bytes: int
    settings: tuple[str, ...]
    time_percent: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTrade:
    """What one change saves and costs in layers that are alike.

    Attributes:
        layers: their indices in short.
        count: how many they are.
        change: in words, and as the user would ask for it for all layers.
        saved_bytes: of a rank's device, by all layers of the group.
        time_percent: change of the time per token that the group causes, in percent.
    """

    layers: str
    count: int
    change: str
    saved_bytes: int
    time_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained, for people and reports. Counts are parameters, rows and tokens."""

    model: str
    architecture: str
    layers: int
    hidden: int
    total_params: int
    linear_params: int
    trainable_params: int
    rows: int
    eval_rows: int
    mean_tokens: float
    max_tokens: int
    rows_per_epoch: int
    data_source: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the ranks, the launcher and the report need.

    Attributes:
        schema: version of the JSON form.
        run_id: name of the run.
        config: the resolved configuration as `dump_config` writes it.
        chosen: the best strategy that fits.
        ranked: all that fit, best first; the first is the chosen one.
        rejected: the others, nearest to fitting first.
        reasons: why the choice, a sentence each.
        warnings: what the user should know.
        topology_fingerprint: of the machine that was planned for.
        device_kind: `gpu` or `cpu`.
        device_name, device_memory_bytes: of the device whose memory is the tightest: that of the chosen estimate.
        machine: the machine in one line.
        num_fit: how many ways to run fit; `ranked` holds the first of them.
        trades: what memory costs: changes of the chosen strategy, best bargain first.
        tree: the cheapest changes, alone or together, for more and more bytes to be freed.
        shards: in words, how the base would be cut over devices that differ; empty where they do not.
        layers: what recompute, offload and a smaller adapter save and cost by groups of layers.
        knobs: settings of the chosen engine, each with its derivation.
        calibration: what was measured of what the estimates stand on; None where all of it is from tables.
        setbacks: what the run had met when this was planned; None for the first plan of a run.
        data: lengths of the rows and what they cost, sources, duplicates; None where the rows were not at hand.
    """

    schema: int = SCHEMA
    run_id: str
    config: Mapping[str, Any]
    chosen: Choice
    ranked: tuple[Choice, ...]
    rejected: tuple[Rejection, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    workload: Workload
    topology_fingerprint: str
    device_kind: str
    device_name: str
    device_memory_bytes: int
    machine: str
    num_fit: int = 0
    trades: tuple[Trade, ...] = ()
    tree: tuple[Branch, ...] = ()
    layers: tuple[LayerTrade, ...] = ()
    shards: tuple[str, ...] = ()
    knobs: tuple[Knob, ...] = ()
    calibration: CalibrationUse | None = None
    setbacks: Setbacks | None = field(default=None, metadata=ADDED)
    data: DataReport | None = field(default=None, metadata=ADDED)

    def __post_init__(self) -> None:
        """Refuse a choice that is not the best of those that fit."""
        if self.ranked[:1] != (self.chosen,):
            msg = "the chosen strategy must be the first of the ranked ones"
            raise ValueError(msg)

    @property
    def run_config(self) -> RunConfig:
        """The configuration as typed values."""
        return parse_config(self.config)

    @property
    def rows_tokens(self) -> int:
        """Tokens at which the rows are cut when they are made; steps may cut them shorter (`Strategy.seq_len`)."""
        whole = 0 if self.setbacks is None else self.setbacks.whole_tokens
        return whole or self.chosen.strategy.seq_len

    @property
    def plan_hash(self) -> str:
        """SHA-256 of the JSON form: equal on all ranks, or they must not start."""
        return _hash(_body(self))


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain JSON values, each strategy with the fields of its estimate beside it."""
    body = _body(plan)
    return {**body, "plan_hash": _hash(body)}


def dumps(plan: Plan) -> str:
    """Return the text of `plan.json`."""
    return json.dumps(to_json(plan), indent=2) + "\n"


def from_json(data: object) -> Plan:
    """Read back what `to_json` wrote, to an equal value.

    Raises:
        UserError: another schema, missing or wrong fields, or an edited plan (the hash differs).
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise _malformed(f"schema {found!r}, not {SCHEMA}")
    body = {key: value for key, value in data.items() if key != "plan_hash"}
    if data.get("plan_hash") != _hash(body):
        raise _malformed("the plan_hash does not match the content, so the file was edited or cut")
    nested = {**body, "chosen": _nested(body["chosen"]), "ranked": [_nested(entry) for entry in body["ranked"]]}
    try:
        plan = decode(Plan, nested, "plan")
    except MalformedError as error:
        raise _malformed(str(error)) from error
    assert isinstance(plan, Plan)  # noqa: S101 - decode returns what it was asked for
    return plan


def loads(text: str) -> Plan:
    """Read the text of `plan.json`.

    Raises:
        UserError: the text is no plan.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _malformed(f"no JSON ({error})") from error
    return from_json(data)


def _body(plan: Plan) -> dict[str, Any]:
    body: dict[str, Any] = encode(plan)
    return {**body, "chosen": _flat(body["chosen"]), "ranked": [_flat(entry) for entry in body["ranked"]]}


def _flat(choice: dict[str, Any]) -> dict[str, Any]:
    return {"strategy": choice["strategy"], **choice["estimate"]}


def _nested(choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "strategy": choice["strategy"],
        "estimate": {key: value for key, value in choice.items() if key != "strategy"},
    }


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _malformed(found: str) -> UserError:
    return UserError(Problem(where="plan.json", found=found, remedy="Plan again with `trainmaster plan`."))
