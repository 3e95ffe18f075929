"""XIDs as they come with readings of a device."""

from __future__ import annotations

from typing import Any

from orchestrator.monitor.detectors.xids import State, update
from orchestrator.monitor.readings import Xid


def with_xids(made: Any, second: float, *numbers: int, words: str = "", **values: Any) -> Any:
    xids = tuple(Xid(time=1e9 + second, number=number, device="0000:3b:00.0", words=words) for number in numbers)
    return made.device(second, xids=xids, **values)


def told(found: list[Any]) -> list[tuple[str, bool]]:
    return [(one.response.value, one.quarantine) for one in found]


def test_an_xid_is_told_at_once_with_what_a_person_must_do(made: Any) -> None:
    (found,) = made.feed(State(), update, [made.device(0), with_xids(made, 1, 79), made.device(2)])
    assert (found.kind.value, found.severity.value, found.device) == ("xid", "error", "gpu0")
    assert "A person must: drain and reboot the host" in found.advice
    assert dict(found.numbers)["xid"] == 79


def test_what_follows_in_a_burst_is_told_only_where_it_is_graver(made: Any) -> None:
    readings = [with_xids(made, 1, 31), with_xids(made, 2, 43), with_xids(made, 3, 45), with_xids(made, 4, 79)]
    assert told(made.feed(State(), update, readings)) == [("restart", False), ("drop_host", True)]


def test_the_same_gpu_again(made: Any) -> None:
    readings = [with_xids(made, 1, 94), with_xids(made, 4000, 94)]
    assert told(made.feed(State(), update, readings)) == [("restart", False), ("drop_device", True)]


def test_history_of_earlier_runs_counts(made: Any) -> None:
    begin = State(history=(Xid(time=1e9 - 3600, number=13),))
    assert told(made.feed(begin, update, [with_xids(made, 1, 94)])) == [("drop_device", True)]


def test_a_recovery_action_is_told_once_without_an_xid(made: Any) -> None:
    readings = [made.device(at, recovery_action=0 if at < 3 else 2) for at in range(9)]
    found = made.feed(State(), update, readings)
    assert told(found) == [("drop_host", True)]
    assert "recovery action 2" in found[0].evidence


def test_it_overrides_what_the_number_says(made: Any) -> None:
    assert told(made.feed(State(), update, [with_xids(made, 1, 13, recovery_action=1)])) == [("drop_device", True)]


def test_the_memory_is_bounded(made: Any) -> None:
    from orchestrator.monitor.facts import Facts

    state = State()
    for at in range(500):
        state, _ = update(state, with_xids(made, 100 * at, 43), Facts())
    assert len(state.history) <= 64
