"""Rows: whole documents packed into rows of one length, with the target's taps of every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from runtime.speculators.train.documents import Document
from runtime.speculators.train.losses import best_columns
from runtime.speculators.train.target import Tensor, TorchTarget, attention, bias_of

SOFT_PLACES = 16  # of the target's distribution at each token
HEAD_ROWS = 16  # rows whose logits exist at once


@dataclass
class Rows:
    """Packed text on the device, [R, n]. tokens int32; start: first position of a token's document, -1 in padding; anchor: may this
    token be an anchor, i.e. is it of an answer and followed by more of it."""

    tokens: Tensor
    start: Tensor
    anchor: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, rows: slice) -> Rows:
        return Rows(self.tokens[rows], self.start[rows], self.anchor[rows])


def pack(documents: Sequence[Document], length: int, seed: int, device: torch.device) -> Rows:
    """Best-fit packing of whole documents, rows in random order. Documents longer than a row are cut."""
    sizes = [min(length, len(document.prompt) + len(document.answer)) for document in documents]
    bins: list[list[int]] = []
    open_bins: list[list[int]] = [[] for _ in range(length + 1)]  # by free room
    for index in sorted(range(len(documents)), key=lambda index: -sizes[index]):
        room = next((room for room in range(sizes[index], length) if open_bins[room]), length)
        if room == length:
            bins.append([])
            open_bins[room].append(len(bins) - 1)
        chosen = open_bins[room].pop()
        bins[chosen].append(index)
        open_bins[room - sizes[index]].append(chosen)
    np.random.default_rng(seed).shuffle(bins)
    tokens = np.zeros((len(bins), length), np.int32)
    start, anchor = np.full_like(tokens, -1), np.zeros(tokens.shape, bool)
    for row, members in enumerate(bins):
        at = 0
        for index in members:
            document, size = documents[index], sizes[index]
            tokens[row, at : at + size] = np.concatenate([document.prompt, document.answer])[:size]
            start[row, at : at + size] = at
            anchor[row, at + len(document.prompt) : at + size - 1] = True
            at += size
    return Rows(*(torch.from_numpy(values).to(device) for values in (tokens, start, anchor)))


@dataclass
class Taps:
    """What the target makes of some rows. features [R, n, taps * H]; soft_ids, soft_shares [R, n, SOFT_PLACES]: the best next
    tokens and their shares of the probability that these few have together."""

    features: Tensor
    soft_ids: Tensor | None
    soft_shares: Tensor | None


def bytes_of_taps(target: TorchTarget, num_taps: int, soft: bool) -> int:
    """Memory that one token takes."""
    size = target.embed.element_size()
    return num_taps * target.spec.hidden_size * size + (SOFT_PLACES * (4 + size) if soft else 0)


def empty_taps(target: TorchTarget, count: int, length: int, num_taps: int, soft: bool) -> Taps:
    """Memory for the taps of `count` rows."""
    new = {"device": target.device, "dtype": target.dtype}
    features = torch.empty(count, length, num_taps * target.spec.hidden_size, **new)
    ids = torch.empty(count, length, SOFT_PLACES, device=target.device, dtype=torch.int32) if soft else None
    return Taps(features, ids, torch.empty(count, length, SOFT_PLACES, **new) if soft else None)


def compute_taps(target: TorchTarget, rows: Rows, taps: Sequence[int], soft: bool) -> Taps:
    """Taps of every row."""
    count, length = rows.tokens.shape
    result = empty_taps(target, count, length, len(taps), soft)
    fill_taps(result, target, rows, taps)
    return result


@torch.no_grad()
def fill_taps(result: Taps, target: TorchTarget, rows: Rows, taps: Sequence[int], chunk: int = 64) -> None:
    """One pass of the target over every row, into the first rows of `result`; a token sees its own document only."""
    count, length = rows.tokens.shape
    features, ids, shares = result.features, result.soft_ids, result.soft_shares
    at = torch.arange(length, device=target.device)
    before = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
    for first in range(0, count, chunk):
        part = slice(first, first + chunk)
        start = rows.start[part].long()
        bias = bias_of((start[:, :, None] == start[:, None, :]) & before, target.dtype)[:, None]
        x, features[first : first + len(start)] = target.run(
            rows.tokens[part].long(), at - start.clamp_min(0), lambda _, q, k, v, bias=bias: attention(q, k, v, bias), taps,
            max(taps) + 1 if ids is None else None,
        )
        if ids is not None and shares is not None:
            for some in range(0, len(x), HEAD_ROWS):
                logits = target.logits(x[some : some + HEAD_ROWS]).flatten(0, 1)
                best = best_columns(logits, SOFT_PLACES)
                at_rows = slice(first + some, first + min(len(x), some + HEAD_ROWS))
                ids[at_rows] = best.view(-1, length, SOFT_PLACES).int()
                shares[at_rows] = logits.gather(1, best).float().softmax(-1).view(-1, length, SOFT_PLACES).to(target.dtype)
