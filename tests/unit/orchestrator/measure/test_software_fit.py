"""Fixed times of the software from runs, and what routes take from a calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.calibration_file import Calibration, Measured, Section, dumps
from orchestrator.calibration_store import cache_path
from orchestrator.config import DataConfig, ModelConfig, RouteCollective, RouteConfig, RunConfig, TopologyConfig
from orchestrator.measure.software_fit import Run, fit_software
from orchestrator.measure.use import measured_graph, measured_software
from orchestrator.route.show import route
from topology.collectives import Collective
from topology.fingerprint import fingerprint
from topology.graph import LinkClass, graph_of
from topology.presets import preset
from topology.routing.choose import choose
from topology.routing.software import GLOO
from topology.routing.tried import Tried

_PLAN = [(messages, moving) for messages in (1, 2, 6, 14, 30) for moving in (0.0, 1e-3, 1e-2, 0.1)]


@given(
    st.floats(1e-4, 5e-3),
    st.floats(1e-4, 2e-3),
    st.floats(0.5, 1.0),
    st.lists(st.floats(0.97, 1.03), min_size=len(_PLAN), max_size=len(_PLAN)),
)
def test_planted_times_are_recovered_from_noisy_runs(
    launch: float, step: float, share: float, noise: list[float]
) -> None:
    runs = [
        Run(messages=messages, moving_seconds=moving, seconds=(launch + messages * step + moving / share) * factor)
        for (messages, moving), factor in zip(_PLAN, noise, strict=True)
    ]
    fit = fit_software(runs)
    assert fit.step_seconds == pytest.approx(step, rel=0.1, abs=0.1 * launch)
    assert fit.launch_seconds == pytest.approx(launch, rel=0.15, abs=0.25 * step)
    assert fit.share == pytest.approx(share, rel=0.08)
    assert fit.error <= 0.03
    assert fit.message_seconds == 0  # nothing was counted


def test_work_and_waiting_are_told_apart() -> None:
    """A schedule in which a rank handles three messages a wave, beside one with a single one."""
    runs = [
        Run(messages=waves, handled=each * waves, moving_seconds=0.0, seconds=1e-3 + waves * 2e-4 + each * waves * 1e-4)
        for each in (1, 3)
        for waves in (2, 9, 33)
    ]
    fit = fit_software(runs)
    assert (fit.step_seconds, fit.message_seconds) == (pytest.approx(2e-4), pytest.approx(1e-4))


def test_too_few_runs_tell_nothing() -> None:
    with pytest.raises(ArithmeticError):
        fit_software([Run(messages=1, moving_seconds=0.0, seconds=1.0)] * 2)


def calibration(links: dict[str, tuple[float, str]], collectives: dict[str, tuple[float, str]]) -> Calibration:
    sections = tuple(
        Section(
            name=name,
            made="2026-11-30",
            measured=tuple(
                Measured(name=key, value=value, unit=unit, repeats=3, spread=0.1, how="by hand")
                for key, (value, unit) in body.items()
            ),
        )
        for name, body in (("links", links), ("collectives", collectives))
        if body
    )
    return Calibration(
        made="2026-11-30",
        fingerprint="f" * 64,
        hosts=("h",),
        devices=("CPU",),
        versions=(),
        ranks=2,
        threads=1,
        sections=sections,
    )


def test_measured_values_replace_priors_and_the_rest_stays() -> None:
    graph = graph_of(preset("cpu"))
    found = measured_software(
        graph,
        calibration(
            {"one_way_share": (0.5, "share"), "piece": (524288.0, "bytes a piece"), "burst": (0.01, "s")},
            {"launch": (0.002, "s"), "executor_step": (0.001, "s")},
        ),
    )
    assert (found.one_way_share, found.piece_bytes, found.burst_seconds) == (0.5, 524288, 0.01)
    assert (found.launch_seconds, found.step_seconds) == (0.002, GLOO.step_seconds)
    assert found.executor_step_seconds == 0.001
    assert found.source == "measured 2026-11-30"
    assert measured_software(graph, None) == GLOO
    assert measured_software(graph, calibration({}, {})) == GLOO


def test_ways_that_were_carried_out_are_read_and_other_names_passed_over() -> None:
    names = {
        "tried.all_reduce.double tree.4194304.2": (1.2, "ratio"),
        "tried.all_to_all.builtin.65536.2": (200.0, "ratio"),
    }
    words = (
        "tried",
        "tried.x.y.1.2",
        "tried.all_reduce.ring..2",
        "tried.all_reduce.ring.0.2",
        "tried.all_reduce.ring.8",
    )
    others = ("tried.all_reduce.ring.4096.4", "tried.all_reduce.ring.4096.1+1")
    wrong = dict.fromkeys((*words, *others), (1.0, "ratio"))
    found = measured_software(graph_of(preset("cpu")), calibration({}, {**names, **wrong}))
    assert found.tried == (
        Tried(collective=Collective.all_reduce, way="double tree", nbytes=4194304, ratio=1.2),
        Tried(collective=Collective.all_to_all, way="builtin", nbytes=65536, ratio=200.0),
    )


def test_the_rate_of_host_memory_is_the_measured_one() -> None:
    graph = measured_graph(preset("cpu"), (), calibration({"host_copy": (1.5e9, "bytes/s")}, {}))
    assert {edge.bytes_per_second for edge in graph.edges if edge.link is LinkClass.memory} == {1.5e9}


@pytest.mark.parametrize(("name", "slow"), [("launch", {"library", "executor"}), ("executor_launch", {"executor"})])
def test_slow_launches_change_predictions(name: str, slow: set[str]) -> None:
    """What was not measured of the executor is taken to be as slow as the library."""
    graph = graph_of(preset("cpu"))
    software = measured_software(graph, calibration({}, {name: (1.0, "s")}))
    route = choose(graph, Collective.all_reduce, 2**20, software=software)
    offers = (*route.alternatives, route.chosen)
    assert {offer.runner.value for offer in offers if offer.seconds > 1} == slow
    assert {offer.runner.value for offer in offers} == {"library", "executor"}


def test_show_tells_which_calibration_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = preset("cpu")
    asked = RunConfig(
        model=ModelConfig(path="none"),
        data=DataConfig(path="none"),
        topology=TopologyConfig(preset="cpu"),
        route=RouteConfig(collective=RouteCollective.all_reduce, sizes=("1MiB",)),
    )
    assert "times by tables" in route(asked).text
    path = cache_path(fingerprint(machine), {"XDG_CACHE_HOME": str(tmp_path)})
    assert path is not None
    path.parent.mkdir(parents=True)
    slow = calibration({"host_copy": (1e6, "bytes/s")}, {})
    path.write_text(dumps(replace(slow, fingerprint=fingerprint(machine))))
    shown = route(asked)
    assert "times by what was measured on 2026-11-30" in shown.text
    assert "collectives by tables: not measured yet" in shown.text
    assert shown.body["calibration"]["file"] == str(path)
    assert shown.body["chosen"]["seconds"] > 0.5  # 1 MiB at 1 MB/s
    assert "times by tables" in route(replace(asked, calibration="none")).text
