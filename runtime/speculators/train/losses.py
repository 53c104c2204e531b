"""Losses of a block drafter: cross entropy through the frozen head, weighted by slot, and the selector's over its candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from runtime.speculators.train.drafter import Selector, linear
from runtime.speculators.train.target import Tensor

SLOT_DECAY = 4.0  # slots: weight exp(-(t - 1) / SLOT_DECAY) of slot t, as the DFlash paper has it for blocks of eight
GROUP = 64  # columns of the vocabulary that are searched together for the best candidates


@dataclass(frozen=True)
class HeadTask:
    """What HeadLoss is asked beside the hidden states.

    head [V, H]; labels, valid [M, s]; dpace None for fixed weights, else D-PACE's alpha; top_k candidates to return, 0 = none;
    distil: share of the target's distribution, given as its best ids [M, s, j] and their shares [M, s, j]; chunk: blocks at once.
    """

    head: Tensor
    labels: Tensor
    valid: Tensor
    dpace: float | None
    top_k: int
    chunk: int
    distil: float = 0.0
    soft_ids: Tensor | None = None
    soft_shares: Tensor | None = None


def slot_weights(gold: Tensor, valid: Tensor, dpace: float | None) -> Tensor:
    """Weight of each slot [M, s]; gold: probability [M, s] that the drafter gives the right token.

    Fixed: exp(-(t - 1) / 4). D-PACE: with q = (1 - alpha) * gold + alpha, the sum over m >= t of the product of q up to m, about
    what slot t contributes to the expected number of accepted drafts.
    """
    live = valid.float()
    if dpace is None:
        return live * torch.exp(-torch.arange(live.shape[1], device=live.device) / SLOT_DECAY)
    survival = ((1 - dpace) * gold + dpace).cumprod(1) * live
    return survival.flip(1).cumsum(1).flip(1) * live


class HeadLoss(torch.autograd.Function):
    """Weighted cross entropy of hidden states [M, s, H] through a frozen head.

    Logits exist for `chunk` blocks at a time, and the gradient is formed with them: there is nothing of vocabulary size to keep for
    the backward pass. Returns (loss, weights [M, s] that sum to one, candidates [M, s, top_k], hits [M, s] of the argmax).
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, task: HeadTask) -> Any:
        """hidden [M, s, H]. The gradient of the loss is formed here and kept; backward only scales it."""
        count, slots, width = hidden.shape
        gradient = torch.empty_like(hidden)
        loss, total = (torch.zeros((), device=hidden.device) for _ in range(2))
        weights, candidates, hits = [], [], []
        for first in range(0, count, task.chunk):
            part = slice(first, first + task.chunk)
            x, labels = hidden[part].reshape(-1, width), task.labels[part].reshape(-1, 1)
            logits = F.linear(x, task.head)
            ids = best_columns(logits, max(1, task.top_k))
            shares = logits.softmax(-1)
            gold = shares.gather(1, labels).float().view(-1, slots)
            w = slot_weights(gold, task.valid[part], task.dpace)
            loss -= (w * gold.clamp_min(1e-9).log()).sum()
            total += w.sum()
            if task.distil and task.soft_ids is not None and task.soft_shares is not None:
                soft = task.soft_shares[part].reshape(len(x), -1).to(shares.dtype)
                shares.scatter_add_(1, task.soft_ids[part].reshape(len(x), -1), -task.distil * soft)
            # The gradient of a row is (shares - target) @ head times its weight: scaled last, where it is narrow.
            pull = (shares @ task.head).float() - (1 - task.distil) * F.embedding(labels[:, 0], task.head).float()
            gradient[part] = (pull * w.reshape(-1, 1)).to(hidden.dtype).view(-1, slots, width)
            weights.append(w)
            candidates.append(ids.view(-1, slots, ids.shape[1]))
            hits.append((ids[:, :1] == labels).view(-1, slots))
        ctx.save_for_backward(gradient.div_(total.to(gradient.dtype)))
        results = torch.cat(weights) / total, torch.cat(candidates), torch.cat(hits)
        ctx.mark_non_differentiable(*results)
        return loss / total, *results

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None


def best_columns(logits: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest of each row, best first.

    The best `count` columns lie in the `count` groups of columns with the largest maxima, so that one pass over the vocabulary is
    enough; torch.topk takes several.
    """
    rows, columns = logits.shape
    if count == 1:
        return logits.argmax(-1, keepdim=True)
    groups = columns // GROUP
    if columns % GROUP or groups <= count:
        return logits.topk(count, -1)[1]
    members = logits.view(rows, GROUP, groups)  # column = member * groups + group: neighbours are reduced side by side
    chosen = members.amax(1).topk(count, -1, sorted=False)[1]
    near = members.gather(2, chosen[:, None].expand(-1, GROUP, -1)).view(rows, -1)
    best = near.topk(count, -1)[1]
    return best // count * groups + chosen.gather(1, best % count)


def selector_loss(
    selector: Selector,
    table: Tensor,
    head: Tensor,
    hidden: Tensor,
    previous: Tensor,
    labels: Tensor,
    candidates: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """(loss, hits [M, s]) over the candidates [M, s, K] with the true predecessor; a right token that is not among them takes the
    last place. hidden [M, s, H]; previous, labels, weights [M, s].
    """
    count, places = labels.numel(), candidates.shape[-1]
    hidden, gold, ids = hidden.reshape(count, -1), labels.reshape(count), candidates.reshape(count, places).clone()
    same = ids == gold[:, None]
    absent = ~same.any(1)
    ids[:, -1] = torch.where(absent, gold, ids[:, -1])
    place = torch.where(absent, places - 1, same.int().argmax(1))
    unary = torch.matmul(F.embedding(ids, head), hidden[:, :, None])[..., 0].float()
    predecessors, successors = (book.to(hidden.dtype) for book in selector.codebooks(table))
    left = F.embedding(previous.reshape(count), predecessors) * linear(hidden, selector.hidden_projection.weight)
    scores = unary + torch.matmul(F.embedding(ids, successors), left[:, :, None])[..., 0].float()
    loss = (F.cross_entropy(scores, place, reduction="none") * weights.reshape(count)).sum()
    return loss, ((scores.argmax(1) == place) & ~absent).view(labels.shape)
