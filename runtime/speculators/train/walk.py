"""The acceptance of a drafter on known greedy answers, without a speculative loop: drafts of every anchor at once, then hops.

At temperature 0 the text does not depend on the drafts, so each step of the loop starts at a place of the known answer and takes
as many drafts as agree with it. The figure is that of the loop but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812

from runtime.speculators.train.blocks import blocks_of
from runtime.speculators.train.drafter import TorchDrafter, linear
from runtime.speculators.train.losses import best_columns
from runtime.speculators.train.rows import Rows, Taps
from runtime.speculators.train.target import Tensor, TorchTarget

ANCHORS_AT_ONCE = 128


@dataclass
class Acceptance:
    """Steps of a loop and their accepted drafts. survival[t]: steps whose drafts 1 .. t + 1 were all accepted."""

    steps: int = 0
    accepted: int = 0
    survival: list[int] = field(default_factory=list)

    @property
    def length(self) -> float:
        """Mean acceptance length: tokens that a step yields, its own included."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def rates(self) -> list[float]:
        return [count / max(1, self.steps) for count in self.survival]


@torch.no_grad()
def pick(drafter: TorchDrafter, table: Tensor | None, head: Tensor, hidden: Tensor, anchor: Tensor) -> Tensor:
    """Greedy drafts [M, k] of the hidden states [M, k, H] of slots 1 .. k behind the anchors [M]."""
    logits = F.linear(hidden, head)
    if drafter.spec.version == 1:
        return logits.argmax(-1)
    selector, count = drafter.candidate_selector, drafter.spec.selector_top_k
    books = (selector.predecessor_codebook, selector.successor_codebook)
    predecessors, successors = books if table is None else selector.codebooks(table)
    ids = best_columns(logits.view(-1, logits.shape[-1]), count).view(*hidden.shape[:2], count)
    unary = logits.gather(-1, ids).float()
    gate = linear(hidden, selector.hidden_projection.weight).float()
    drafts = []
    for slot in range(hidden.shape[1]):
        left = predecessors[anchor].float() * gate[:, slot]
        scores = unary[:, slot] + torch.einsum("mr,mkr->mk", left, successors[ids[:, slot]].float())
        anchor = ids[:, slot].gather(1, scores.argmax(-1, keepdim=True))[:, 0]
        drafts.append(anchor)
    return torch.stack(drafts, 1)


@torch.no_grad()
def accepted_everywhere(drafter: TorchDrafter, table: Tensor | None, target: TorchTarget, rows: Rows, taps: Taps, k: int) -> Tensor:
    """How many of k drafts the known text accepts if a step starts at this token, int64 [R, n]; 0 where no anchor may be."""
    result = torch.zeros(rows.tokens.shape, dtype=torch.long, device=rows.tokens.device)
    slots = drafter.spec.block_size
    for index in range(len(rows)):
        places = rows.anchor[index].nonzero()[:, 0]
        for some in places.split(ANCHORS_AT_ONCE):
            blocks = blocks_of(
                rows, taps, torch.tensor([index], device=places.device), some[None], torch.ones_like(some[None], dtype=torch.bool),
                slots, target.embed, drafter.spec.mask_token_id,
            )
            context = drafter.context(blocks.features, blocks.context_positions)
            hidden = drafter(blocks.x, blocks.positions, context, blocks.bias, slots).view(len(some), slots, -1)
            drafts = pick(drafter, table, target.head, hidden[:, 1 : k + 1], blocks.labels[:, 0])
            right = (drafts == blocks.labels[:, 1 : k + 1]) & blocks.valid[:, 1 : k + 1]
            result[index, some] = right.long().cumprod(1).sum(1)
    return result


def hop(rows: Rows, accepted: Tensor, k: int) -> list[Acceptance]:
    """The steps of the loop over each document, in the order of rows and of documents in them."""
    results = []
    lengths, anchors, starts = accepted.cpu().numpy(), rows.anchor.cpu().numpy(), rows.start.cpu().numpy()
    for row in range(len(lengths)):
        for start in sorted(set(starts[row][anchors[row]])):
            places = ((starts[row] == start) & anchors[row]).nonzero()[0]
            tally, at = Acceptance(survival=[0] * k), int(places[0])
            while at <= places[-1]:
                taken = int(lengths[row, at])
                tally.steps += 1
                tally.accepted += taken
                for slot in range(taken):
                    tally.survival[slot] += 1
                at += taken + 1
            results.append(tally)
    return results


def pooled(tallies: list[Acceptance]) -> Acceptance:
    """All steps together."""
    survival = [sum(column) for column in zip(*(tally.survival for tally in tallies), strict=True)]
    return Acceptance(sum(tally.steps for tally in tallies), sum(tally.accepted for tally in tallies), survival)
