"""What XIDs ask of a run."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.monitor.finding import Response
from orchestrator.monitor.readings import Xid
from orchestrator.monitor.xid import XidVerdict, judge_xids, policy

TO_REBOOT = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
TO_NONE = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def judged(
    *numbers: int, words: str = "", before: tuple[float, int] | None = None, asked: int | None = None
) -> XidVerdict:
    """Judge XIDs half a second apart at time 1e6, after one so many seconds earlier."""
    xids = [Xid(time=1e6 + 0.5 * at, number=number, words=words) for at, number in enumerate(numbers)]
    history = () if before is None else (Xid(time=1e6 - before[0], number=before[1]),)
    return judge_xids(xids, history, asked)


@pytest.mark.parametrize(
    ("numbers", "action", "quarantine"),
    [
        ((13,), "restart", False),
        ((94,), "restart", False),
        ((43,), "ignore", False),
        ((63,), "ignore", False),
        ((45,), "ignore", False),
        ((79,), "drop_host", True),
        ((95,), "drop_device", True),
        ((48,), "drop_device", True),
        ((74,), "drop_device", True),
        ((119,), "drop_device", True),
        ((145,), "restart", False),
        ((151,), "drop_host", True),
        ((154,), "drop_device", True),
        ((9999,), "restart", False),
    ],
)
def test_single_numbers(numbers: tuple[int, ...], action: str, quarantine: bool) -> None:
    found = judged(*numbers)
    assert (found.action.value, found.quarantine) == (action, quarantine)
    assert str(numbers[0]) in found.why


def test_the_table_names_each_number_once_and_its_source() -> None:
    data = json.loads((files("orchestrator.monitor") / "xid_policy.json").read_text(encoding="utf-8"))
    counts = Counter(number for row in data["buckets"].values() for number in row["xids"])
    assert set(counts.values()) == {1}
    assert policy().recovery_xid not in counts
    assert "docs.nvidia.com" in policy().source
    assert policy().version >= 1
    for number in policy().by_products | policy().never_by_products | policy().with_double_bit | {policy().double_bit}:
        assert number in counts


def test_nobody_resets_a_gpu_but_a_person() -> None:
    for rule in (*policy().by_number.values(), *policy().recovery.values()):
        assert "reset" not in rule.response.value
        assert rule.person or rule.response in {Response.ignore, Response.restart}


def test_the_first_of_a_burst_is_its_cause() -> None:
    assert judged(13, 43, 45).action is Response.restart
    assert judged(43, 45, 31).why.startswith("XID 31, first of 43, 45, 31")
    assert judged(45, 43).action is Response.ignore
    # What a program does wrong first is not made graver by what only may follow from it.
    assert judged(13, 62).action is Response.restart


def test_what_tells_of_the_hardware_counts_wherever_it_stands() -> None:
    assert judged(31, 79).action is Response.drop_host
    assert judged(45, 48).action is Response.drop_device


def test_a_double_bit_error_with_a_row_remapping_is_drained() -> None:
    for pair in ((48, 63), (48, 64), (63, 48), (64, 48)):
        found = judged(*pair)
        assert found.action is Response.drop_device
        assert "drain the host" in found.person_must
    assert "drain" not in judged(48).person_must
    assert judged(63).action is Response.ignore


def test_a_double_bit_error_across_two_readings() -> None:
    found = judge_xids([Xid(time=103.0, number=63)], [Xid(time=100.0, number=48)])
    assert "drain the host" in found.person_must


def test_qualifiers_and_disputes_are_told() -> None:
    assert "SRAM" in judged(48, 172).why
    assert "Kubernetes" in judged(109).why


@pytest.mark.parametrize("number", [13, 94, 31])
def test_the_second_error_of_a_program_on_the_same_gpu_takes_it_out(number: int) -> None:
    hours = policy().repeat_hours * 3600
    assert judged(number, before=(hours - 60, 13)).action is Response.drop_device
    assert judged(number, before=(hours - 60, 13)).quarantine
    assert judged(number, before=(hours + 60, 13)).action is Response.restart
    assert judged(number, before=(3600, 43)).action is Response.restart
    assert judged(number, before=(5, number)).action is Response.restart, "one burst is one error"


def test_other_repeats() -> None:
    assert judged(74, before=(3600, 74)).action is Response.drop_host
    assert judged(9999, before=(3600, 9999)).action is Response.drop_device
    assert judged(9999, before=(3600, 9998)).action is Response.restart


def test_the_words_of_xid_154_override_the_numbers() -> None:
    burst = [Xid(time=1.0, number=95), Xid(time=1.5, number=154, words=TO_REBOOT)]
    found = judge_xids(burst)
    assert (found.action, found.person_must) == (Response.drop_host, "reboot the host")
    assert TO_REBOOT in found.why
    assert "95" in found.why
    named = Xid(time=1.0, number=154, words="GPU recovery action changed from None to Drain and Reset")
    assert judge_xids([named]).action is Response.drop_device


def test_none_needed_makes_a_restart_of_what_may_not_be_the_hardware() -> None:
    none = Xid(time=2.0, number=154, words=TO_NONE)
    assert judge_xids([Xid(time=1.0, number=119), none]).action is Response.restart
    assert judge_xids([Xid(time=1.0, number=43), none]).action is Response.ignore
    assert judge_xids([Xid(time=1.0, number=79), none]).action is Response.drop_host
    assert judge_xids([none]).action is Response.ignore


@pytest.mark.parametrize(
    ("asked", "action"),
    [(1, "drop_device"), (2, "drop_host"), (3, "drop_device"), (4, "drop_device"), (5, "stop"), (77, "drop_device")],
)
def test_the_drivers_recovery_action_overrides_the_numbers(asked: int, action: str) -> None:
    for numbers in ((), (13,), (79,)):
        found = judged(*numbers, asked=asked)
        assert found.action.value == action
        assert found.person_must
        assert str(asked) in found.why


def test_without_a_recovery_action_the_numbers_stand_but_where_sources_disagree() -> None:
    assert judged(95, asked=0).action is Response.drop_device
    assert judged(109, asked=0).action is Response.restart
    assert judged(109).action is Response.drop_device
    assert judged(asked=0).action is Response.ignore


def test_gpus_are_judged_one_by_one() -> None:
    with pytest.raises(ValueError, match="one GPU"):
        judge_xids([Xid(time=1.0, number=13, device="a"), Xid(time=1.0, number=13, device="b")])


XIDS = st.lists(
    st.builds(Xid, time=st.floats(0, 1e6), number=st.integers(0, 200), words=st.text(max_size=20)), max_size=12
)


@given(XIDS, XIDS, st.none() | st.integers(0, 9))
def test_every_burst_has_a_verdict(xids: list[Xid], history: list[Xid], asked: int | None) -> None:
    found = judge_xids(xids, history, asked)
    assert found.why
    assert found.quarantine == (found.action in {Response.drop_device, Response.drop_host})
    assert found.person_must or found.action in {Response.ignore, Response.restart}
    if asked:
        assert found.action is not Response.ignore
