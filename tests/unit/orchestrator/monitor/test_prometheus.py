"""The text format of Prometheus, read back by its grammar."""

from __future__ import annotations

import math
import re
import urllib.error
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.monitor.prometheus import CONTENT_TYPE, Exposition, number_text, text_of
from orchestrator.monitor.store import Reading
from tests.unit.orchestrator.monitor import drawn

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})\{{((?:{LABEL})(?:,(?:{LABEL}))*)\}} (\S+)")


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Read an exposition strictly: HELP, TYPE, and then the samples of that metric, each once."""
    assert text == "" or text.endswith("\n")
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    declared: list[str] = []
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            declared.append(line.split(" ", 3)[2])
            assert declared.count(declared[-1]) == 1
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == declared[-1]
            assert kind in {"counter", "gauge"}
            assert (kind == "counter") == name.endswith("_total")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == declared[-1]
            labels = tuple((key, unescaped(value)) for key, value in re.findall(LABEL, match[2]))
            assert (match[1], labels) not in found
            found[match[1], labels] = float(match[match.lastindex or 0])
    return found


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda at: {"n": "\n"}.get(at[1], at[1]), text)


@given(drawn.any_reading)
def test_any_reading_follows_the_grammar(reading: Reading) -> None:
    parsed(text_of([reading]))


def test_values_and_labels() -> None:
    name = 'a "b"\\c\nd'
    readings = [
        drawn.rank(7, tokens=1024.0, loss=math.nan, live_bytes=(("adapter", 5),)),
        drawn.device(1.0, name, throttle_ns=(("hw_thermal", 1_500_000_000),), pcie_replays=3, lost=True),
        drawn.host(1.0, 2, network=(("eth0", 10, 20),)),
    ]
    found = parsed(text_of(readings))
    rank = (("host", "0"), ("rank", "0"))
    assert found["trainmaster_rank_step_total", rank] == 7
    assert found["trainmaster_rank_step_seconds", rank] == 0.5
    assert math.isnan(found["trainmaster_rank_loss", rank])
    assert found["trainmaster_rank_live_bytes", (*rank, ("term", "adapter"))] == 5
    device = (("host", "0"), ("device", name))
    assert found["trainmaster_device_throttle_seconds_total", (*device, ("reason", "hw_thermal"))] == 1.5
    assert found["trainmaster_device_pcie_replays_total", device] == 3
    assert found["trainmaster_device_lost", device] == 1
    port = (("host", "2"), ("port", "eth0"))
    assert found["trainmaster_host_network_sent_bytes_total", port] == 10
    assert found["trainmaster_host_network_received_bytes_total", port] == 20


@given(st.floats())
def test_numbers_come_back(value: float) -> None:
    assert repr(float(number_text(value))) == repr(value) or value == 0


def test_it_is_served_and_the_newest_reading_of_each_source_counts() -> None:
    shown = Exposition("127.0.0.1", 0)
    try:
        shown.update([drawn.rank(1), drawn.rank(2), drawn.rank(1, rank=1)])
        shown.update([drawn.rank(3)])
        with urllib.request.urlopen(f"http://127.0.0.1:{shown.port}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            found = parsed(answer.read().decode())
        steps = {labels[1][1]: value for (name, labels), value in found.items() if name.endswith("step_total")}
        assert steps == {"0": 3, "1": 1}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{shown.port}/secrets", timeout=5)
        with pytest.raises(OSError, match="in use"):
            Exposition("127.0.0.1", shown.port)
    finally:
        shown.close()
