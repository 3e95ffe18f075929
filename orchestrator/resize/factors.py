"""A low-rank product B A in fewer or more columns, and the moments of Adam that go with it.

Shapes: A is [rank, in], B is [out, rank], and an adapter adds `scale` * B A to its weight. `scale` stays what it is, so
alpha changes with the rank (by q / r, with rsLoRA by its root).

Fewer: with B = Q_b R_b, A^T = Q_a R_a and R_b R_a^T = U S V^T (r x r, so cheap), the q largest singular values give the
nearest product of rank q (Eckart and Young 1936); the squared error is the sum of the squares left out:

    A' = c V_q^T Q_a^T        B' = Q_b U_q S_q / c = B R_a^T V_q / c

c is the root mean square of the norms of A's rows, so that A' has rows as long as A's. (With the root of S on either
side, directions that are hardly learnt would be small in both matrices, and neither would get a gradient; where B is
zero, as when training starts, both would be zero for good.) Rows of A' lie in the row space of A: A' = T A, B' = B N.

More: new rows of A are random as PEFT draws them, new columns of B are zero, so the product stays.

Momentum: gradients are dL/dA = s B^T G and dL/dB = s G A^T, linear in B and A, so those of A' and B' are N^T dA and
dB T^T, and so is momentum. The second moment is not linear: for independent gradients of the columns it would be the
same with squared N and T, which is where it starts, but it counts no more than that of a few steps (`restart`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

Moments = Mapping[str, torch.Tensor]

FIRST: Final = "exp_avg"  # names of torch's AdamW
SECOND: Final = "exp_avg_sq"
STEP: Final = "step"
_UNIFORM: Final = 3.0  # the variance of a uniform number in [-b, b] is b^2 / 3
_PEFT_NORM: Final = 1 / math.sqrt(_UNIFORM)  # of a row of A as PEFT draws it: uniform with b = 1 / sqrt(in)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """An adapter of another rank.

    Attributes:
        a: [q, in], in the type of the old one.
        b: [out, q].
        rows: T [q, r], A' = T A, as far as A' comes from A; fp64.
        columns: N [r, q], B' = B N; fp64.
        energy: squared Frobenius norm of the old product B A.
        dropped: of what is left out of it.
    """

    a: torch.Tensor
    b: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    energy: float
    dropped: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A product, decomposed: see the head of the file. All in fp64, on the host."""

    q_a: torch.Tensor
    r_a: torch.Tensor
    u: torch.Tensor
    s: torch.Tensor
    vt: torch.Tensor


def resized(a: torch.Tensor, b: torch.Tensor, rank: int, generator: torch.Generator) -> Resized:
    """Return the adapter in another rank.

    Args:
        a: [r, in].
        b: [out, r].
        rank: q, at least 1; may exceed `in` and `out`, as LoRA's own may.
        generator: for new rows, on the host; the same on all ranks.

    Raises:
        ValueError: a rank below 1.
    """
    if rank < 1:
        raise ValueError(f"an adapter of rank {rank}")
    if rank < a.shape[0]:
        return _truncated(a, b, rank)
    return _grown(a, b, rank, generator)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Leave such small matrices to one thread: several wait for each other 50 times as long on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def core_of(a: torch.Tensor, b: torch.Tensor) -> Core:
    """Decompose a product; O(r^2 (in + out))."""
    with one_thread():
        q_a, r_a = torch.linalg.qr(_exact(a).T)
        _, r_b = torch.linalg.qr(_exact(b))
        u, s, vt = torch.linalg.svd(r_b @ r_a.T)
    return Core(q_a=q_a, r_a=r_a, u=u, s=s, vt=vt)


def energies(a: torch.Tensor, b: torch.Tensor) -> tuple[float, ...]:
    """Squares of the singular values of B A, largest first, one for each column: r of them."""
    found = [float(value) ** 2 for value in core_of(a, b).s]
    return tuple(found + [0.0] * (a.shape[0] - len(found)))[: a.shape[0]]


def _truncated(a: torch.Tensor, b: torch.Tensor, rank: int) -> Resized:
    core = core_of(a, b)
    length = _row_norm(a)
    # Fewer directions than rows, where r exceeds `in`: the rest stays zero.
    kept = min(rank, core.vt.shape[0])
    v = core.vt[:kept].T
    new_a = length * (core.q_a @ v).T
    columns = core.r_a.T @ v / length
    with one_thread():
        rows = length * v.T @ torch.linalg.pinv(core.r_a.T)
    missing = rank - kept
    if missing:
        new_a = torch.cat([new_a, new_a.new_zeros(missing, new_a.shape[1])])
        columns = torch.cat([columns, columns.new_zeros(columns.shape[0], missing)], dim=1)
        rows = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
    squares = core.s.square()
    return Resized(
        a=new_a.to(a.dtype),
        b=(_exact(b) @ columns).to(b.dtype),
        rows=rows,
        columns=columns,
        energy=float(squares.sum()),
        dropped=float(squares[rank:].sum()),
    )


def _grown(a: torch.Tensor, b: torch.Tensor, rank: int, generator: torch.Generator) -> Resized:
    old, new = a.shape[0], rank - a.shape[0]
    bound = _row_norm(a) * math.sqrt(_UNIFORM / a.shape[1])
    drawn = torch.rand((new, a.shape[1]), generator=generator, dtype=torch.float64) * (2 * bound) - bound
    squares = core_of(a, b).s.square()
    return Resized(
        a=torch.cat([a.cpu(), drawn.to(a.dtype)]),
        b=torch.cat([b.cpu(), b.new_zeros((b.shape[0], new), device="cpu")], dim=1),
        rows=torch.eye(rank, old, dtype=torch.float64),
        columns=torch.eye(old, rank, dtype=torch.float64),
        energy=float(squares.sum()),
        dropped=0.0,
    )


def _row_norm(a: torch.Tensor) -> float:
    """Root mean square of the norms of A's rows; PEFT's own where A is zero."""
    found = float(_exact(a).square().sum() / a.shape[0]) ** 0.5
    return found if found > 0 else _PEFT_NORM


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float64)


def moments_of_a(old: Moments, change: Resized, betas: tuple[float, float]) -> dict[str, torch.Tensor]:
    """Return AdamW's state of A'; nothing where the old state is not torch's AdamW's: it begins anew."""
    return _projected(old, betas, change.columns.T, on_left=True)


def moments_of_b(old: Moments, change: Resized, betas: tuple[float, float]) -> dict[str, torch.Tensor]:
    """Return AdamW's state of B'; see `moments_of_a`."""
    return _projected(old, betas, change.rows.T, on_left=False)


def _projected(
    old: Moments, betas: tuple[float, float], way: torch.Tensor, *, on_left: bool
) -> dict[str, torch.Tensor]:
    if set(old) != {FIRST, SECOND, STEP}:
        return {}

    def sent(moment: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return by @ _exact(moment) if on_left else _exact(moment) @ by

    first, second = sent(old[FIRST], way), sent(old[SECOND], way.square())
    before = float(old[STEP])
    after = restart(before, betas[0])
    return {
        FIRST: (first * _bias(betas[0], before, after)).to(old[FIRST].dtype),
        SECOND: (second * _bias(betas[1], before, after)).to(old[SECOND].dtype),
        STEP: torch.tensor(after, dtype=old[STEP].dtype),
    }


def restart(step: float, beta: float) -> float:
    """Steps that the moments count as after a resize: at most the memory of momentum.

    AdamW divides by 1 - beta^step. With this few steps behind it, what is new in the second moment soon outweighs what
    was projected, and entries without a past move no further than in the first steps of a run.
    """
    return min(step, float(round(1 / (1 - beta)))) if beta < 1 else step


def _bias(beta: float, before: float, after: float) -> float:
    """What keeps moment / (1 - beta^step) when `step` changes."""
    return (1 - beta**after) / (1 - beta**before) if before > 0 and beta > 0 else 1.0
