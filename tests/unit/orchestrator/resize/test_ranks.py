from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import ResizeConfig, ResizeWhen
from orchestrator.resize.ranks import Layer, Limits, moved, rank_for_energy, shrunk
from orchestrator.resize.schedule import History, decided, is_due, observed, stands_still, warm_up


def _layer(name: str, energies: tuple[float, ...], gradient: float = 0.0, params: int = 10) -> Layer:
    return Layer(name=name, energies=energies, rank_params=params, gradient=gradient)


@pytest.mark.parametrize(
    ("share", "least", "rank"), [(0.5, 1, 1), (0.65, 1, 2), (0.9, 1, 2), (0.91, 1, 3), (1.0, 1, 4), (0.5, 3, 3)]
)
def test_the_smallest_rank_that_keeps_its_share(share: float, least: int, rank: int) -> None:
    assert rank_for_energy((6.0, 3.0, 0.5, 0.5), share, least) == rank


def test_what_has_learnt_nothing_keeps_its_rank() -> None:
    assert rank_for_energy((0.0, 0.0, 0.0), 0.9, 1) == 3


def test_least_rank_does_not_make_an_adapter_grow() -> None:
    assert rank_for_energy((1.0, 0.0), 0.9, 4) == 2


_layers = st.lists(
    st.builds(
        lambda energies, gradient, params: (tuple(sorted(energies, reverse=True)), gradient, params),
        st.lists(st.floats(0, 1e3), min_size=1, max_size=20),
        st.floats(0, 10),
        st.integers(2, 50),
    ),
    min_size=1,
    max_size=8,
).map(lambda found: [_layer(f"layer{i}", e, g, p) for i, (e, g, p) in enumerate(found)])


@given(_layers, st.integers(1, 6), st.integers(1, 24), st.floats(0.1, 1.0))
def test_ranks_move_within_limits_and_parameters_do_not_get_more(
    layers: list[Layer], least: int, most: int, energy: float
) -> None:
    limits = Limits(least=least, most=most, energy=energy)
    new = moved(layers, limits)
    before = sum(layer.rank * layer.rank_params for layer in layers)
    assert sum(new[layer.name] * layer.rank_params for layer in layers) <= before
    for layer in layers:
        rank = new[layer.name]
        if rank > layer.rank:
            assert rank <= most
        if rank < layer.rank:
            assert rank >= least
            assert sum(layer.energies[:rank]) >= energy * sum(layer.energies) * (1 - 1e-9)
    assert moved(list(reversed(layers)), limits) == new


def test_ranks_go_where_gradients_are_largest() -> None:
    layers = [_layer("quiet", (9.0, 1e-6, 1e-6, 1e-6), 0.1), _layer("busy", (1.0, 1.0, 1.0, 1.0), 5.0)]
    assert moved(layers, Limits(least=1, most=8, energy=0.9)) == {"quiet": 3, "busy": 5}


def test_nobody_gives_what_it_needs() -> None:
    layers = [_layer("quiet", (1.0, 1.0), 0.1), _layer("busy", (1.0, 1.0), 5.0)]
    assert moved(layers, Limits(least=1, most=8, energy=0.99)) == {"quiet": 2, "busy": 2}


def test_each_adapter_shrinks_by_its_own_energy() -> None:
    layers = [_layer("one", (100.0, 0.1, 0.1)), _layer("even", (1.0, 1.0, 1.0))]
    assert shrunk(layers, Limits(least=1, most=8, energy=0.99)) == {"one": 1, "even": 3}


# Schedule.


def test_steps_that_the_user_names() -> None:
    config = ResizeConfig(at=(("3", 2.0), ("5", 8.0)))
    layers = [_layer("x", (1.0,) * 4)]
    assert [step for step in range(8) if is_due(History(), config, step)] == [3, 5]
    pending = decided(History(), config, 3, layers, 0).pending
    assert pending is not None
    assert (pending.ranks, pending.why) == ({"x": 2}, "step 3")


def test_memory_limits_what_steps_may_ask_for() -> None:
    config = ResizeConfig(at=(("5", 16.0),))
    pending = decided(History(), config, 5, [_layer("x", (1.0,) * 4)], 8).pending
    assert pending is not None
    assert pending.ranks == {"x": 8}


def test_a_change_to_what_is_there_is_none() -> None:
    config = ResizeConfig(at=(("5", 4.0),))
    assert decided(History(), config, 5, [_layer("x", (1.0,) * 4)], 0).pending is None


@pytest.mark.parametrize(
    ("losses", "still"),
    [
        ((2.0, 2.0, 1.0, 1.0), False),
        ((1.0, 1.0, 1.0, 1.0), True),
        ((1.0, 1.0, 0.995, 0.995), True),
        ((1.0,) * 3, False),
    ],
)
def test_a_loss_that_stands_still(losses: tuple[float, ...], still: bool) -> None:
    assert stands_still(losses, ResizeConfig(when=ResizeWhen.plateau, every=2, gain=0.01)) is still


def test_losses_before_a_change_do_not_count_after_it() -> None:
    config = ResizeConfig(when=ResizeWhen.plateau, every=2)
    history = History()
    for step in range(1, 5):
        history = observed(history, config, 1.0, {})
        assert bool(is_due(history, config, step)) is (step == 4)
    history = decided(history, config, 4, [_layer("x", (1.0, 0.0))], 0)
    assert history.pending is None  # min_rank
    history = decided(
        history, ResizeConfig(when=ResizeWhen.plateau, every=2, min_rank=1), 4, [_layer("x", (1.0, 0.0))], 0
    )
    assert history.pending is not None
    after = history.done(4)
    assert (after.losses, after.pending, after.resized) == ((), None, (4,))


def test_gradients_are_summed_until_they_are_looked_at() -> None:
    config = ResizeConfig(when=ResizeWhen.gradient_norm, every=3)
    history = History()
    for step in range(1, 4):
        history = observed(history, config, 1.0, {"x": 2.0})
        assert bool(is_due(history, config, step)) is (step == 3)
    assert history.squares == {"x": 6.0}


def test_a_checkpoint_brings_the_history_back() -> None:
    config = ResizeConfig(at=(("5", 2.0),), when=ResizeWhen.plateau)
    history = observed(History(resized=(2,)), config, 1.25, {"x": 0.5})
    history = decided(history, config, 5, [_layer("x", (1.0,) * 4)], 0)
    assert History.from_json(json.loads(json.dumps(history.to_json()))) == history
    assert History.from_json({}) == History()


def test_rate_climbs_again_after_each_change() -> None:
    history = History(resized=(10, 12))
    shares = [warm_up(history, 3, at) for at in range(9, 17)]
    assert shares == [1.0, 0.25, 0.5, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert warm_up(history, 0, 10) == 1.0
