"""The plan's route on a rank: followed, left, or refused by all ranks at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from orchestrator.engines.gradient_route import schedule_of
from orchestrator.errors import Problem, UserError
from orchestrator.planner.gradient_route import GradientRoute
from orchestrator.train.gradients import GradientSum, agreed, sum_gradients
from topology.routing.software import Runner

OURS = GradientRoute(runner=Runner.executor, why="ours", algorithm="ring", piece_bytes=1, seconds=0.5, fingerprint="00")
LIBRARY = GradientRoute(runner=Runner.builtin, why="torch's own")


class Group:
    """Ranks of which the others tell what is given."""

    def __init__(self, size: int, others: tuple[Any, ...] = ()) -> None:
        self.world_size, self.others = size, others

    def gather(self, value: object) -> list[Any]:
        return [value, *self.others]

    def max(self, values: list[float]) -> list[float]:
        return [max(pair) for pair in zip(values, *self.others, strict=True)]


KEY = "engine.gradient_route"


def plan(route: GradientRoute | None, size: int = 2) -> Any:
    strategy = SimpleNamespace(gradient_route=route, world_size=size, device_ids=("a", "b"))
    return SimpleNamespace(chosen=SimpleNamespace(strategy=strategy))


def summed(route: GradientRoute | None, *, ranks: int = 2) -> GradientSum:
    group: Any = Group(ranks)
    return sum_gradients(plan(route), Path("nowhere"), group, nn.Linear(1, 1))


def test_without_a_route_nothing_is_told() -> None:
    assert summed(None).summary(3) is None


def test_the_librarys_route_is_told() -> None:
    told = summed(LIBRARY).summary(3)
    assert told is not None
    assert (told["runner"], told["why"], told["measured_seconds"]) == ("library", "torch's own", None)


def test_another_number_of_ranks_leaves_the_plans_route() -> None:
    told = summed(OURS, ranks=3).summary(3)
    assert told is not None
    assert (told["runner"], told["algorithm"], told["predicted_seconds"]) == ("library", "", None)
    assert "3 ranks run, 2 were planned" in told["why"]


def test_the_shortest_of_the_ranks_counts() -> None:
    executor: Any = SimpleNamespace(close=lambda: None, run_seconds=(3.0, 1.0), pool_bytes=8)
    group: Any = Group(2, others=([-2.0, -4.0],))
    found = GradientSum(OURS, executor=executor)
    found.end(group)
    told = found.summary(num_steps=2)
    assert told is not None
    assert told["measured_seconds"] == (2.0 + 1.0) / 2
    assert (told["runner"], told["predicted_seconds"], told["buffer_bytes"]) == ("executor", 0.5, 8)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_a_machine_that_cannot_be_read_is_a_users_error(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "topology.json"
    if text is not None:
        path.write_text(text)
    group: Any = Group(2, others=((),))
    with pytest.raises(UserError) as caught:
        agreed(partial(schedule_of, plan(OURS).chosen.strategy), path, group, KEY)
    assert str(path) in {problem.where for problem in caught.value.problems} or text == "{}"


def test_what_another_rank_lacks_ends_all(tmp_path: Path) -> None:
    other = Problem(where="engine.gradient_route", found="rank 1 has another", remedy="Plan again")
    group: Any = Group(2, others=((other,),))
    with pytest.raises(UserError) as caught:
        agreed(partial(schedule_of, plan(OURS).chosen.strategy), tmp_path / "missing.json", group, KEY)
    assert other in caught.value.problems
