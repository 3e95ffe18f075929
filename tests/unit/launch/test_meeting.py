"""What hosts compare, what they are handed, and a meeting on this host."""

from __future__ import annotations

import errno
import socket
import threading
import time
from dataclasses import replace

import pytest

from launch.execute import free_port
from launch.facts import Facts, address_of, compare, interface_of, read_facts
from launch.fan_out import forwarded, line_of
from launch.host_job import HostJob, HostPart
from launch.meeting import Verdict, host_and_wait, join

FACTS = Facts(host="a", versions={"torch": "2.13", "numpy": "2.4"}, code="c0de", devices=4)


def job(count: int = 2, **changes: object) -> HostJob:
    parts = tuple(HostPart(name="localhost", processes=1, argv=("true",)) for _ in range(count))
    made = HostJob(
        name="j-1", run_dir="/r", parts=parts, env=(("A", "1"), ("CUDA_VISIBLE_DEVICES", "")), join_seconds=10
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_hosts_that_are_alike_have_no_faults() -> None:
    other = replace(FACTS, host="b", skew_seconds=1.9)
    assert compare([FACTS, other], [4, 2], uses_devices=True) == ([], [])


def test_everything_that_differs_comes_at_once() -> None:
    other = Facts(
        host="b", versions={"torch": "2.12"}, code="other", unseen=("/r/plan.json",), devices=1, skew_seconds=-3.0
    )
    faults, notes = compare([FACTS, other], [4, 2], uses_devices=True)
    assert [fault.found for fault in faults] == [
        "host b does not see it",
        "shows 1 devices in CUDA_VISIBLE_DEVICES for 2 ranks",
        "torch 2.12, but 2.13 on a",
        "runs other source code of trainmaster than a",
    ]
    assert "the clock of host b is -3.0 s from that of a" in notes[0]
    assert notes[1] == "host b: numpy missing, but 2.4 on a"


def test_devices_count_where_ranks_use_them() -> None:
    assert compare([replace(FACTS, devices=0)], [2], uses_devices=False) == ([], [])
    assert compare([replace(FACTS, devices=None)], [2], uses_devices=True) == ([], [])


def test_facts_of_this_host() -> None:
    facts = read_facts("me", must_see=["/nowhere/x", "/"], packages=["launch"], environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert facts.unseen == ("/nowhere/x",)
    assert facts.devices == 2
    assert {"python", "torch", "transformers"} <= set(facts.versions)
    assert facts.code == read_facts("me", must_see=[], packages=["launch"], environ={}).code
    assert facts.code != read_facts("me", must_see=[], packages=["launch", "topology"], environ={}).code
    assert interface_of("127.0.0.1") == "lo"
    assert address_of("lo") == "127.0.0.1"
    assert address_of("nothing0") is None


def test_what_another_host_gets_of_the_users_variables() -> None:
    part = HostPart(name="b", processes=1, argv=("true",), env=(("B", "2"),))
    users = {
        "A": "mine",
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "secret",
        "CUDA_VISIBLE_DEVICES": "3",
        "RANK": "5",
        "PATH": "/bin",
        "HOME": "/me",
    }
    assert forwarded(job(), part, users) == {"A": "mine", "B": "2", "NCCL_DEBUG": "INFO", "HF_TOKEN": "secret"}


def test_the_line_for_the_shell_of_a_host() -> None:
    assert line_of("/r x/j.json", 1, "/v/python") == "exec /v/python -P -u -m launch.on_host '/r x/j.json' 1"


def test_two_hosts_meet_and_a_stranger_does_no_harm() -> None:
    port, seen = free_port(), []
    names = ["localhost", "localhost"]

    def first() -> None:
        seen.append(host_and_wait(job(), [port], FACTS, "", names))

    thread = threading.Thread(target=first)
    thread.start()
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"job": "another", "index": 1}\n', b"[]\n"):
        while True:
            try:
                with socket.create_connection(("localhost", port), timeout=5) as stranger:
                    stranger.sendall(words)
                break
            except ConnectionRefusedError:
                continue
    verdict, local = join(job(), 1, [port], replace(FACTS, host="b", code="other"), names)
    thread.join(timeout=10)
    assert seen == [verdict]
    assert verdict.port == port
    assert [fault.where for fault in verdict.faults] == ["host b"]
    assert local in {"127.0.0.1", "::1"}


def test_a_host_that_is_cut_off_says_so_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    began = time.monotonic()
    verdict, _ = join(job(met_before=True, join_seconds=60), 1, [1], FACTS, ["a", "b"])
    assert 2.9 < time.monotonic() - began < 6
    (fault,) = verdict.faults
    assert fault.where == "host b"
    assert fault.found.startswith("is cut off from the first host a (a:1: [Errno")


@pytest.mark.parametrize(("before", "hosts"), [(False, 2), (True, 3)])
def test_a_host_waits_where_it_is_not_clear_who_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, before: bool, hosts: int
) -> None:
    def unreachable(*_: object, **__: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr("launch.meeting._NO_WAY_SECONDS", 0.2)
    impatient = job(met_before=before, join_seconds=-14)  # one second in all
    verdict, _ = join(impatient, 1, [1], FACTS, ["a", "b", "c"][:hosts])
    assert "could not reach the first host a" in verdict.faults[0].found


def test_packets_that_are_lost_on_every_port_take_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: object, timeout: float) -> socket.socket:
        time.sleep(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", lost)
    monkeypatch.setattr("launch.meeting._NO_WAY_SECONDS", 0.5)
    began = time.monotonic()
    verdict, _ = join(job(met_before=True, join_seconds=60), 1, list(range(1, 9)), FACTS, ["a", "b"])
    assert time.monotonic() - began < 2
    assert verdict.faults[0].found.startswith("is cut off from the first host a")


def test_a_refused_connection_is_a_host_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.meeting._NO_WAY_SECONDS", 0.2)
    verdict, _ = join(job(met_before=True, join_seconds=-14), 1, [free_port()], FACTS, ["localhost", "b"])
    assert "could not reach the first host localhost" in verdict.faults[0].found


def test_another_job_on_the_port_is_left_alone() -> None:
    port = free_port()
    names = ["localhost", "localhost"]
    other = threading.Thread(
        target=host_and_wait, args=(job(name="other", join_seconds=2), [port], FACTS, "", names), daemon=True
    )
    other.start()
    impatient = job(join_seconds=-14)  # one second in all
    verdict, _ = join(impatient, 1, [port], FACTS, names)
    other.join(timeout=10)
    assert isinstance(verdict, Verdict)
    assert not verdict.port
    assert "could not reach the first host localhost" in verdict.faults[0].found
