"""What trackers are told of a run."""

import math

from orchestrator.trackers.records import Point, Reached, flat, numbers_of, point_of


def test_training_and_evaluation_have_names_of_their_own() -> None:
    step = point_of({"time": 5.0, "step": 3, "loss": 2.0, "grad_norm": None, "note": "x", "world_size": 2})
    assert step == Point(step=3, time=5.0, values=(("train/loss", 2.0), ("train/world_size", 2.0)))
    held_out = point_of({"step": 3, "eval_loss": 1.5, "eval_tokens": 10})
    assert held_out == Point(step=3, time=None, values=(("eval/loss", 1.5), ("eval/tokens", 10.0)))
    answers = point_of({"step": 3, "prompts_exact_match": 0.5, "answer_seconds": 2.0})
    assert answers == Point(step=3, time=None, values=(("eval/prompts_exact_match", 0.5), ("eval/answer_seconds", 2.0)))
    assert not Reached(train=3).has(answers)
    assert point_of({"step": True, "loss": 1.0}) is None
    assert point_of({"loss": 1.0}) is None
    assert point_of({"step": 1, "loss": math.nan}) is None


def test_nothing_is_told_twice() -> None:
    points = [point_of({"step": at, "loss": 1.0}) for at in (1, 2, 3)]
    held_out = point_of({"step": 2, "eval_loss": 1.0})
    assert held_out is not None
    reached = Reached()
    for point in points[:2]:
        assert point is not None
        assert not reached.has(point)
        reached = reached.after(point)
    assert [reached.has(point) for point in points if point is not None] == [True, True, False]
    assert not reached.has(held_out)
    assert reached.after(held_out) == Reached(train=2, eval=2)


def test_trees_become_flat() -> None:
    body = {"a": {"b": 1, "c": {"d": True}}, "e": "x", "f": math.inf, "g": [1]}
    assert dict(flat(body)) == {"a.b": 1, "a.c.d": True, "e": "x", "f": math.inf, "g": [1]}
    assert numbers_of(body) == {"a.b": 1.0}
