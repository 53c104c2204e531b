"""Muon for the matrices of a drafter: momentum whose singular values are all brought near one (Jordan et al., 2024).

Matrices of one shape pass the iteration together: a drafter has some thirty, each too small to fill a device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from runtime.speculators.train.target import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz iteration, as its authors chose them
ITERATIONS = 5
RMS_OF_ADAMW = 0.2  # an update's root mean square, so that AdamW's learning rates suit (Liu et al., 2025)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised in bfloat16. Takes matrices only; every one must have a gradient."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update of every matrix; those of one shape are orthogonalised together. `closure` is not called."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
            for matrices in by_shape.values():
                self._step_together(matrices, group["lr"], group["momentum"])
        return None

    def _step_together(self, matrices: list[Tensor], rate: float, momentum: float) -> None:
        gradients = [matrix.grad for matrix in matrices]
        averages = [self.state[matrix].setdefault("momentum", torch.zeros_like(matrix)) for matrix in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, averages, momentum)
        wide = torch.stack([update if update.shape[0] <= update.shape[1] else update.T for update in ahead])
        scale = RMS_OF_ADAMW * wide.shape[2] ** 0.5
        updates = [
            update if matrix.shape == update.shape else update.T
            for matrix, update in zip(matrices, orthogonal(wide).to(matrices[0].dtype), strict=True)
        ]
        torch._foreach_add_(matrices, updates, alpha=-rate * scale)


def orthogonal(x: Tensor) -> Tensor:
    """x [B, m, n], m <= n -> bfloat16 of the same shape with the same singular vectors and values of about one."""
    a, b, c = COEFFICIENTS
    x = x.to(torch.bfloat16)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x
