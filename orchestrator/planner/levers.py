"""Changes of a chosen strategy, one thing each, that can be made one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer
from orchestrator.planner.evaluate import Job, Point, fit_of, time_of
from orchestrator.planner.points import points_of, with_knobs
from orchestrator.planner.solve import Asked
from orchestrator.planner.variants import job_of
from orchestrator.planner.ways import ENGINES, Residency, Way, conflict_of, tells_layers

_MODES = {
    Checkpointing.full: "recompute each layer",
    Checkpointing.selective: "recompute the frozen part",
    Checkpointing.none: "keep all activations",
}
_SHARES = (0.25, 0.5, 0.75)  # of the layers


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What would run: what is asked for, in numbers, and the point."""

    asked: Asked
    job: Job
    point: Point

    @property
    def tokens(self) -> float:
        """Of the data, per step."""
        return sum(self.point.place.rows) * self.job.batch.real_tokens_per_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes of the device's peak while training, seconds of a step and of a token, and whether it fits.

    `cautious_seconds` are those of a token with the handicap of the engine, as in the ranking.
    """

    device_bytes: int
    step_seconds: float
    token_seconds: float
    cautious_seconds: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A change: in words, as the user would type it, and what it makes of a state (None: it does not apply).

    `layers` are those that it recomputes and that were not recomputed before; 0 for another kind of change.
    """

    name: str
    setting: str
    apply: Callable[[State], State | None]
    layers: int = 0

    @property
    def text(self) -> str:
        """Both, for a table."""
        return f"{self.name} ({self.setting})"


def cost_of(state: State) -> Cost:
    """Estimate a state."""
    fit, time = fit_of(state.job, state.point), time_of(state.job, state.point, terms=False)
    return Cost(
        device_bytes=fit.memory.train.device_bytes,
        step_seconds=time.step_seconds,
        token_seconds=time.step_seconds / state.tokens,
        cautious_seconds=time.step_seconds / state.tokens * ENGINES[state.point.way.engine].handicap,
        fits=fit.misfit is None,
    )


def levers_of(state: State) -> Iterator[Lever]:
    """Yield what can be changed of a state; other rows, targets and devices are the user's to choose."""
    point, config = state.point, state.job.config
    yield from _modes(state)
    if point.place.world.is_gpu:  # on a CPU device and host are one memory
        yield from _places(point.way)
    yield from _micro(state)
    if config.adapter.settled_rank > 1:
        rank = config.adapter.settled_rank // 2
        yield Lever(name="smaller adapter", setting=f"adapter.rank={rank}", apply=partial(_with_rank, rank))
    if config.optimizer.name is Optimizer.adamw and point.place.world.is_gpu and point.way.engine is not Engine.zero3:
        yield Lever(name="moments in 8 bits", setting="optimizer=adamw_8bit", apply=_with_small_moments)
    if not config.data.packing and not config.data.group_by_length:
        yield Lever(name="rows joined into full ones", setting="data.packing=true", apply=_with_packing)


def _modes(state: State) -> Iterator[Lever]:
    """Yield what may be recomputed: all layers, none, or the first quarter, half and three quarters of them."""
    way, config, layers = state.point.way, state.job.config, state.job.model.layers
    now = recomputed_now(way, layers)
    every = "" if config.checkpointing_layers is None else " checkpointing_layers=auto"
    for mode, name in _MODES.items():
        if mode is not way.checkpointing or way.recomputed is not None:
            more = 0 if mode is Checkpointing.none else layers - now
            setting = f"checkpointing={mode.value}{every}"
            yield Lever(name=name, setting=setting, apply=partial(_with_mode, mode, None), layers=more)
    mode = way.checkpointing if now else Checkpointing.full
    if not tells_layers(config):
        return
    for count in sorted({round(layers * share) for share in _SHARES} - {0, now, layers}):
        yield Lever(
            name=f"recompute {_first(count)}" + ("" if count > now else " alone"),
            setting=f"checkpointing={mode.value} checkpointing_layers={count}",
            apply=partial(_with_mode, mode, count),
            layers=max(0, count - now),
        )


def _first(count: int) -> str:
    return "layer 0" if count == 1 else f"layers 0-{count - 1}"


def recomputed_now(way: Way, layers: int) -> int:
    """How many layers a way recomputes, of so many."""
    if way.checkpointing is Checkpointing.none:
        return 0
    return layers if way.recomputed is None else way.recomputed


def _places(way: Way) -> Iterator[Lever]:
    place = way.residency
    if way.engine is Engine.streamed:
        return  # what its devices have no room for waits in host memory already
    if place is None:
        whole = Residency(param=Offload.none, optimizer=Offload.none)
        apply = partial(_with_place, Engine.streamed, whole)
        yield Lever(name="share the base, fetched by layers", setting="engine=streamed", apply=apply)
        for target, name in ((Offload.none, "partition the base"), (Offload.cpu, "partition and offload the base")):
            sharded = Residency(param=target, optimizer=target)
            setting = f"engine=zero3 engine.offload_param={target.value}"
            yield Lever(name=name, setting=setting, apply=partial(_with_place, Engine.zero3, sharded))
        return
    for key, what in (("param", "the base"), ("optimizer", "the optimizer's state")):
        for target, where in ((Offload.none, "on the device"), (Offload.cpu, "in host memory")):
            if getattr(place, key) is not target:
                setting = f"engine.offload_{key}={target.value}"
                yield Lever(name=f"{what} {where}", setting=setting, apply=partial(_moved, key, target))


def _micro(state: State) -> Iterator[Lever]:
    points = list(points_of(state.job.config, state.point.place, state.point.way))
    at = next((index for index, other in enumerate(points) if other.micro == state.point.micro), 0)
    for index, word in ((at - 1, "smaller"), (at + 1, "larger")):
        if 0 <= index < len(points):
            micro = points[index].micro
            yield Lever(
                name=f"{word} micro-batch", setting=f"batch.micro={max(micro)}", apply=partial(_with_micro, micro)
            )


def _with_way(state: State, way: Way) -> State | None:
    config, place = state.job.config, state.point.place
    if conflict_of(config, place.world, way, place.precision) is not None:
        return None
    return replace(
        state, point=with_knobs(state.job, replace(state.point, way=way, zero3=None, extras=None, streaming=None))
    )


def _with_mode(mode: Checkpointing, recomputed: int | None, state: State) -> State | None:
    return _with_way(state, replace(state.point.way, checkpointing=mode, recomputed=recomputed))


def _with_place(engine: Engine, place: Residency, state: State) -> State | None:
    return _with_way(state, replace(state.point.way, engine=engine, residency=place))


def _moved(key: str, target: Offload, state: State) -> State | None:
    place = state.point.way.residency
    if place is None:
        return None
    copy = None if key == "param" else place.second_copy  # offloaded, there is nothing to copy
    moved = Residency(
        param=target if key == "param" else place.param,
        optimizer=target if key == "optimizer" else place.optimizer,
        second_copy=copy,
    )
    return _with_way(state, replace(state.point.way, residency=moved))


def _with_micro(micro: tuple[int, ...], state: State) -> State | None:
    for point in points_of(state.job.config, state.point.place, state.point.way):
        if point.micro == micro:
            return replace(state, point=with_knobs(state.job, point))
    return None


def _with_rank(rank: int, state: State) -> State:
    return _asked(state, adapter=replace(state.job.config.adapter, rank=rank))


def _with_small_moments(state: State) -> State | None:
    if state.point.way.engine is Engine.zero3:
        return None  # ZeRO-3 flattens the adapters, which 8-bit optimizers cannot save
    return _asked(state, optimizer=replace(state.job.config.optimizer, name=Optimizer.adamw_8bit))


def _with_packing(state: State) -> State:
    return _asked(state, data=replace(state.job.config.data, packing=True))


def _asked(state: State, **changes: object) -> State:
    config = replace(state.job.config, **changes)  # type: ignore[arg-type]
    job = job_of(config, state.asked.model, state.asked.data)
    point = state.point if state.point.way.residency is None else with_knobs(job, state.point)
    return State(asked=replace(state.asked, config=config), job=job, point=point)
