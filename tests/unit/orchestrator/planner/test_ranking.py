"""The order of what fits."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planner.ranking import Rank, order


@dataclass(frozen=True)
class Item:
    name: str
    seconds: float
    margin: float
    devices: int = 1
    group: str = ""


def names(*items: Item) -> str:
    found = order(
        items,
        lambda item: Rank(group=item.group or item.name, seconds_per_token=item.seconds, devices=item.devices),
        lambda item: item.margin,
    )
    return "".join(item.name for item in found)


def test_faster_comes_first_unless_two_percent_buy_memory() -> None:
    assert names(Item("a", 1.0, 0.1), Item("b", 1.03, 0.9)) == "ab"
    assert names(Item("a", 1.0, 0.1), Item("b", 1.019, 0.9)) == "ba"
    # 2% are counted from the fastest that is left, not from neighbour to neighbour.
    assert names(Item("a", 1.0, 0.1), Item("b", 1.019, 0.2), Item("c", 1.038, 0.9)) == "bac"


def test_equal_margins_leave_fewer_devices_then_the_faster() -> None:
    assert names(Item("a", 1.0, 0.5, devices=8), Item("b", 1.01, 0.5, devices=4)) == "ba"
    assert names(Item("a", 1.01, 0.5), Item("b", 1.0, 0.5)) == "ba"


def test_one_of_each_group() -> None:
    assert names(Item("a", 1.0, 0.1, group="x"), Item("b", 1.01, 0.9, group="x"), Item("c", 3.0, 0.1)) == "bc"


def test_margins_are_asked_of_the_near_ones_only() -> None:
    asked: list[str] = []

    def margin(item: Item) -> float:
        asked.append(item.name)
        return item.margin

    items = [Item("a", 1.0, 0.1), Item("b", 9.0, 0.1)]
    order(items, lambda item: Rank(group=item.name, seconds_per_token=item.seconds, devices=1), margin)
    assert asked.index("b") > 0
    assert asked[0] == "a"
