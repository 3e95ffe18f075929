"""Readings drawn at random, and some written out."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading, Xid

counts = st.integers(min_value=0, max_value=2**61)
numbers = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(codec="utf-8"), max_size=12)
pairs = st.dictionaries(names, counts, max_size=3).map(lambda found: tuple(found.items()))
xids = st.builds(Xid, time=numbers, number=st.integers(0, 200), device=names, words=names)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "throttle_ns": pairs,
    "live_bytes": pairs,
    "network": st.lists(st.tuples(names, counts, counts), max_size=3, unique_by=lambda port: port[0]).map(tuple),
    "xids": st.lists(xids, max_size=2).map(tuple),
    "device": names,
    "lost": st.booleans(),
}


def _field(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    if field.name in SPECIAL:
        return SPECIAL[field.name]
    plain = numbers if "float" in str(field.type) else counts
    return st.none() | plain if "None" in str(field.type) else plain


def readings(made: type) -> st.SearchStrategy[Any]:
    return st.builds(made, **{field.name: _field(field) for field in dataclasses.fields(made)})


any_reading = st.one_of(readings(RankReading), readings(DeviceReading), readings(HostReading))


def rank(step: int, **values: Any) -> RankReading:
    return RankReading(**{"time": 1000.0 + step, "rank": 0, "host": 0, "step": step, "step_seconds": 0.5, **values})


def device(time: float, name: str = "a/gpu0", **values: Any) -> DeviceReading:
    return DeviceReading(time=time, device=name, host=0, **values)


def host(time: float, number: int = 0, **values: Any) -> HostReading:
    return HostReading(time=time, host=number, **values)
