"""Blocks: random anchors of packed rows, and what the drafter is given and asked for each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from runtime.speculators.train.rows import Rows, Taps
from runtime.speculators.train.target import HIDDEN_FROM, Tensor, bias_of


@dataclass
class Blocks:
    """S rows with A blocks of b slots each, Q = A * b queries in a row of n tokens, M = S * A.

    features [S, n, F] and context_positions [S, n]; x [S, Q, H] and positions [S, Q]; bias [S, 1, Q, n + Q];
    labels, valid [M, b]: slot t is to be the token at its own position, where the answer still goes on;
    soft_ids, soft_shares [M, b, j]: the target's distribution of that token.
    """

    features: Tensor
    context_positions: Tensor
    x: Tensor
    positions: Tensor
    bias: Tensor
    labels: Tensor
    valid: Tensor
    soft_ids: Tensor | None
    soft_shares: Tensor | None


def draw_anchors(anchor: Tensor, weight: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """(places, live), each [S, count]: of the allowed positions [S, n] of each row, without replacement, in order.

    weight [S, n] > 0: how much likelier a place is than others (Efraimidis and Spirakis, 2006); None: all alike.
    """
    lots = torch.rand(anchor.shape, device=anchor.device).clamp_min_(1e-9).log_()
    if weight is not None:
        lots /= weight
    lots, places = lots.masked_fill_(~anchor, HIDDEN_FROM).topk(min(count, anchor.shape[1]), 1)
    places, order = places.sort(1)
    return places, lots.gather(1, order) > HIDDEN_FROM


def surprise(taps: Taps, index: Tensor) -> Tensor:
    """[S, n], 0 .. 1: how unsure the target was of the token that stands here."""
    assert taps.soft_shares is not None
    unsure = 1 - taps.soft_shares[index][:, :, 0].float()
    return torch.cat([torch.ones_like(unsure[:, :1]), unsure[:, :-1]], 1)


def blocks_of(
    rows: Rows, taps: Taps, index: Tensor, places: Tensor, live: Tensor, slots: int, embed: Tensor, mask_token_id: int
) -> Blocks:
    """The blocks at `places` [S, A] of the rows `index` [S]. A block sees features at positions before its anchor in the anchor's
    document, never the anchor's own: they would tell the answer."""
    tokens, start = rows.tokens[index].long(), rows.start[index].long()
    (count, length), anchors = tokens.shape, places.shape[1]
    first = start.gather(1, places)
    at = places[:, :, None] + torch.arange(slots, device=tokens.device)
    inside, at = at < length, at.clamp_max(length - 1)

    def taken(values: Tensor, where: Tensor) -> Tensor:
        return values.gather(1, where.view(count, -1)).view(count, anchors, slots)

    labels = taken(tokens, at)
    valid = (taken(start, at) == first[:, :, None]) & inside & live[:, :, None]
    ids = torch.full_like(labels, mask_token_id)
    ids[:, :, 0] = tokens.gather(1, places)
    positions = (places - first).clamp_min(0)[:, :, None] + torch.arange(slots, device=tokens.device)
    context = torch.arange(length, device=tokens.device)
    seen = (context < places[:, :, None]) & (start[:, None] == first[:, :, None])
    block = torch.arange(anchors * slots, device=tokens.device) // slots
    own = block[:, None] == block
    visible = torch.cat([seen.repeat_interleave(slots, 1), own.expand(count, -1, -1)], 2)
    soft_ids, soft_shares = None, None
    if taps.soft_ids is not None and taps.soft_shares is not None:
        # The distribution of a token was computed at the one before it.
        before = (at - 1).clamp_min(0).view(count, -1, 1).expand(-1, -1, taps.soft_ids.shape[-1])
        soft_ids = taps.soft_ids[index].gather(1, before).view(count * anchors, slots, -1).long()
        soft_shares = taps.soft_shares[index].gather(1, before).view(count * anchors, slots, -1)
    return Blocks(
        features=taps.features[index],
        context_positions=context - start.clamp_min(0),
        x=F.embedding(ids.view(count, -1), embed),
        positions=positions.view(count, -1),
        bias=bias_of(visible[:, None], embed.dtype),
        labels=labels.view(-1, slots),
        valid=valid.view(-1, slots),
        soft_ids=soft_ids,
        soft_shares=soft_shares,
    )
