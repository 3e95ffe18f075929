"""What `route` is asked: devices, sizes and pairs, checked against the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config import DataConfig, ModelConfig, RouteCollective, RouteConfig, RunConfig
from orchestrator.errors import UserError
from orchestrator.route.ask import asked
from topology.collectives import Collective
from topology.presets import preset

MACHINE = preset("dgx1_v100")


def config(devices: int = 0, **route: object) -> RunConfig:
    """A configuration with these keys below `route`."""
    plain = RunConfig(model=ModelConfig(path="none"), data=DataConfig(path="none"), devices=devices)
    return replace(plain, route=RouteConfig(**route))  # type: ignore[arg-type]


def test_everything_by_default() -> None:
    found = asked(config(), MACHINE)
    assert set(found.collectives) == set(Collective)
    assert found.devices == ()
    assert found.sizes[0] == 1024
    assert found.sizes[-1] == 2**30


def test_devices_by_index_or_id() -> None:
    second = MACHINE.gpus[1].id
    assert asked(config(group=("0", second)), MACHINE).devices == (MACHINE.gpus[0].id, second)


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", 2**20), ("64MiB", 2**26), ("1.5 GiB", 3 * 2**29), ("2kb", 2000), ("1GB", 10**9)]
)
def test_sizes_with_units(text: str, size: int) -> None:
    assert asked(config(sizes=(text,)), MACHINE).sizes == (size,)


def test_sizes_are_sorted_once_each() -> None:
    assert asked(config(sizes=("2MiB", "1MiB", "2MiB")), MACHINE).sizes == (2**20, 2**21)


def test_one_collective() -> None:
    found = asked(config(collective=RouteCollective.all_to_all), MACHINE)
    assert found.collectives == (Collective.all_to_all,)


def test_all_problems_at_once() -> None:
    wrong = config(devices=99, group=("0", "0", "x"), pair=("1",), sizes=("0", "many", "2PiB"))
    with pytest.raises(UserError) as caught:
        asked(wrong, MACHINE)
    places = [problem.where for problem in caught.value.problems]
    assert places.count("route.sizes") == 3
    assert {"route.group", "route.pair", "devices"} <= set(places)


def test_one_device_has_no_route() -> None:
    with pytest.raises(UserError, match="two devices"):
        asked(config(), preset("1x24gb"))
    with pytest.raises(UserError, match="alone"):
        asked(config(group=("3",)), MACHINE)


def test_endless_numbers_are_told() -> None:
    with pytest.raises(UserError) as caught:
        asked(config(group=("9" * 5000, "1"), sizes=("9" * 400,)), MACHINE)
    assert [problem.where for problem in caught.value.problems] == ["route.group", "route.sizes"]
    assert max(len(str(problem)) for problem in caught.value.problems) < 300


def test_a_group_and_another_count_contradict() -> None:
    with pytest.raises(UserError, match="one of the two"):
        asked(config(devices=4, group=("0", "1")), MACHINE)
