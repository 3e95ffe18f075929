"""A hostfile, and ranks spread over hosts."""

import pytest

from launch.errors import LaunchError
from launch.hosts import NamedHost, parse_hostfile, spread


def named(*slots: int | None) -> list[NamedHost]:
    return [NamedHost(name=chr(ord("a") + at), slots=count) for at, count in enumerate(slots)]


def test_the_usual_form() -> None:
    text = "# cluster\nnode1 slots=4\n\n  me@node2.local   slots = 2 # old one\nfd00::1\n"
    assert parse_hostfile(text, "f") == (
        NamedHost(name="node1", slots=4),
        NamedHost(name="me@node2.local", slots=2),
        NamedHost(name="fd00::1"),
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no host in it"),
        ("# nothing\n", "no host in it"),
        ("a slots=x\nb slots=0\nc 4", "line 1: 'a slots=x'; line 2: 'b slots=0'; line 3: 'c 4'"),
        ("a b\n" * 8, "and 3 more"),
    ],
)
def test_what_is_no_hostfile(text: str, found: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_hostfile(text, "f")
    assert found in caught.value.found
    assert caught.value.asked == "launch.hostfile=f"


@pytest.mark.parametrize(
    ("count", "slots", "expected"),
    [
        (4, (None, None), {"a": 2, "b": 2}),
        (5, (None, None), {"a": 3, "b": 2}),
        (3, (2, 1), {"a": 2, "b": 1}),
        (2, (2, 4), {"a": 2}),
        (3, (2, 4), {"a": 2, "b": 1}),
        (7, (2, None, None), {"a": 2, "b": 3, "c": 2}),
    ],
)
def test_spread(count: int, slots: tuple[int | None, ...], expected: dict[str, int]) -> None:
    assert {share.name: share.processes for share in spread(count, named(*slots))} == expected


@pytest.mark.parametrize(("count", "slots"), [(4, (2, 1)), (1, (None, None)), (2, (2, None))])
def test_no_room(count: int, slots: tuple[int | None, ...]) -> None:
    with pytest.raises(LaunchError, match="devices=N"):
        spread(count, named(*slots))
