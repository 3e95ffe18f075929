"""AdamW moves an element that comes seldom as far as one that comes in every step."""

import torch

from orchestrator.train.sparse_moments import SparseMoments


def _moved(every: int, *, corrected: bool, steps: int = 200, resume_at: int = 0) -> float:
    """How far an element goes whose gradient is 1 in each step, but comes summed in each `every`-th one."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.0)
    named = {"x": parameter}
    now = [0]
    moments = SparseMoments(optimizer, named, lambda: now[0] <= 20) if corrected else None
    for step in range(1, steps + 1):
        now[0] = step
        if step <= 20:  # dense at first
            parameter.grad = torch.ones(1)
        else:
            parameter.grad = torch.full((1,), float(every)) if step % every == 0 else torch.zeros(1)
        optimizer.step()
        if moments is not None and step == resume_at:
            saved = moments.state()
            moments.close()
            moments = SparseMoments(optimizer, named, lambda: now[0] <= 20)
            moments.load(saved)
    return -float(parameter)


def test_seldom_elements_move_as_far_as_dense_ones() -> None:
    dense = _moved(1, corrected=False)
    assert _moved(1, corrected=True) == dense
    plain, mended = _moved(20, corrected=False), _moved(20, corrected=True)
    assert plain < 0.45 * dense
    assert abs(mended / dense - 1) < 0.1


def test_counts_go_on_after_a_resume() -> None:
    assert _moved(20, corrected=True, resume_at=130) == _moved(20, corrected=True)


def test_second_moments_stay_above_zero() -> None:
    parameter = torch.nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3)
    SparseMoments(optimizer, {"x": parameter}, lambda: False)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        sent = torch.rand(64, generator=generator) < 0.02
        parameter.grad = torch.randn(64, generator=generator) * 10.0 * sent
        optimizer.step()
    assert float(optimizer.state[parameter]["exp_avg_sq"].min()) >= 0
    assert bool(parameter.isfinite().all())


def test_nothing_waits_after_a_step_in_which_all_elements_came() -> None:
    """Also of an element whose gradient was zero then: the next one that comes is of one step, not of many."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3)
    told = [True]
    moments = SparseMoments(optimizer, {"x": parameter}, lambda: told[0])
    for gradient, all_came, waited in (
        ([1.0, 1.0], True, [0, 0]),
        ([1.0, 0.0], False, [0, 1]),
        ([0.0, 0.0], False, [1, 2]),
        ([1.0, 0.0], True, [0, 0]),
    ):
        told[0] = all_came
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        assert moments.state().get("x", torch.zeros(2)).tolist() == waited
