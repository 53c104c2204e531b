"""Losses of training on the CPU: their gradients, and the weights of their slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tiny_drafter import TinyDrafter

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra train)")
pytestmark = pytest.mark.parity

from runtime.speculators.train.losses import HeadLoss, HeadTask, best_columns, selector_loss  # noqa: E402
from tests.train_rig import load_drafter  # noqa: E402


def head_task(dpace: float | None, distil: float) -> tuple[Any, HeadTask]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 7, 64, generator=generator)
    valid = torch.ones(6, 7, dtype=torch.bool)
    valid[2, 4:] = False
    soft_ids = torch.stack([torch.randperm(300, generator=generator)[:5] for _ in range(42)]).view(6, 7, 5)
    task = HeadTask(
        head=torch.randn(300, 64, generator=generator) * 0.3,
        labels=torch.randint(0, 300, (6, 7), generator=generator),
        valid=valid,
        dpace=dpace,
        top_k=4,
        chunk=4,
        distil=distil,
        soft_ids=soft_ids,
        soft_shares=torch.rand(6, 7, 5, generator=generator).softmax(-1),
    )
    return hidden, task


@pytest.mark.parametrize("dpace", [None, 0.5])
@pytest.mark.parametrize("distil", [0.0, 0.6])
def test_gradient_of_the_head_is_that_of_autograd(dpace: float | None, distil: float) -> None:
    hidden, task = head_task(dpace, distil)
    hidden.requires_grad_()
    loss, weights, _, _ = HeadLoss.apply(hidden, task)
    loss.backward()
    plain = hidden.detach().clone().requires_grad_()
    logs = (plain @ task.head.T).log_softmax(-1)
    gold = logs.gather(-1, task.labels[..., None])[..., 0]
    assert task.soft_ids is not None
    assert task.soft_shares is not None
    soft = (logs.gather(-1, task.soft_ids) * task.soft_shares).sum(-1)
    torch.testing.assert_close(loss, -(gold * weights).sum(), rtol=1e-4, atol=1e-5)
    (-((1 - distil) * gold + distil * soft) * weights).sum().backward()
    torch.testing.assert_close(hidden.grad, plain.grad, rtol=1e-4, atol=1e-6)


def test_dpace_weights_are_those_of_its_formula() -> None:
    hidden, task = head_task(0.5, 0.0)
    _, weights, _, _ = HeadLoss.apply(hidden, task)
    gold = (hidden @ task.head.T).softmax(-1).gather(-1, task.labels[..., None])[..., 0].numpy()
    expected = np.zeros((6, 7))
    for block in range(6):
        alive = [slot for slot in range(7) if task.valid[block, slot]]
        for slot in alive:
            for last in range(slot, len(alive)):
                expected[block, slot] += np.prod([0.5 * gold[block, t] + 0.5 for t in range(last + 1)])
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum(), rtol=1e-4)


def test_best_columns_are_those_of_topk() -> None:
    logits = torch.randn(5, 64 * 40, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(best_columns(logits, 16), logits.topk(16, -1)[1])


def test_selector_starts_as_no_op_and_learns_from_the_true_predecessor(drafter: TinyDrafter) -> None:
    if drafter.shape.version == 1:
        pytest.skip("DFlash has no selector")
    selector = load_drafter(drafter).candidate_selector
    hidden, task = head_task(None, 0.0)
    ids = best_columns((hidden @ task.head.T).view(-1, 300), 6).view(6, 7, 6)
    weights, table, previous = torch.full((6, 7), 1 / 42), torch.randn(300, 64), torch.randint(0, 300, (6, 7))
    loss, _ = selector_loss(selector, table, task.head, hidden, previous, task.labels, ids, weights)
    loss.backward()
    touched = selector.predecessor_codebook.grad.abs().sum(1) > 0
    assert set(touched.nonzero()[:, 0].tolist()) == set(previous.flatten().tolist())
