"""What `factors` must agree with: the whole product, and moments as Adam makes them from gradients; plain and slow."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def nearest(a: torch.Tensor, b: torch.Tensor, rank: int) -> tuple[torch.Tensor, float]:
    """Return the nearest product of this rank to B A, and the squared error (Eckart and Young 1936); all in fp64."""
    u, s, vt = torch.linalg.svd(b.double() @ a.double(), full_matrices=False)
    return u[:, :rank] @ torch.diag(s[:rank]) @ vt[:rank], float(s[rank:].square().sum())


def unbiased_momentum(
    gradients: Sequence[torch.Tensor], a: torch.Tensor, b: torch.Tensor, beta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Adam's momentum of A and of B, divided by 1 - beta^steps, after these gradients of the whole product.

    Args:
        gradients: of the loss by B A, [out, in] each, the first first.
        a: [r, in], taken to stand still meanwhile.
        b: [out, r].
        beta: of momentum.
    """
    of_a, of_b = torch.zeros_like(a), torch.zeros_like(b)
    for gradient in gradients:
        of_a = beta * of_a + (1 - beta) * (b.T @ gradient)
        of_b = beta * of_b + (1 - beta) * (gradient @ a.T)
    share = 1 - beta ** len(gradients)
    return of_a / share, of_b / share
