"""Ops of the JSON form that draw tokens: stochastic verification with given uniforms, and the processing of logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.lang import cuda, f32, kernel
from kernels.penalties import IN_PROMPT
from kernels.process_adjust import adjust_logits
from kernels.process_buckets import FOUND, MEMBERS, find_buckets
from kernels.process_histogram import BUCKETS, count_logits
from kernels.process_members import list_members, rank_members
from kernels.process_search import LOWEST_LOGIT
from kernels.reject import BLOCK, STANDARD, accept_drafts, draft_probability
from kernels.reject_residual import residual_logit
from kernels.reject_rows import sum_rows, sum_stripes
from tests.vectors.fields import Inputs, ints, live

Launch = Callable[..., None]
Outputs = dict[str, Any]
Floats = npt.NDArray[np.float32]


@kernel(writes=("out",))
def residual_weights(out, processed, row, log_sum, scale, residual, draft_ids, draft_probs):  # type: ignore[no-untyped-def]
    """out[v] = the weight with which residual_stripes draws token v behind `row` accepted drafts."""
    for column in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        q = f32(0.0)
        if residual[0] > 0:
            q = draft_probability(draft_ids, draft_probs, 0, row, column)
        out[column] = f32(math.exp(residual_logit(processed[row, column], log_sum[row], scale[0], q) - log_sum[row]))


def reject_stochastic(launch: Launch, inputs: Inputs) -> Outputs:
    """One request in slot 0 at temperature 1. `q` null: the drafter is certain; -1 is no draft. residual: what the next token is
    drawn from, null when that is the bonus row, whose p the form does not give."""
    drafts, p = [int(token) for token in inputs["drafts"]], np.array(inputs["p"], np.float32)
    k, vocab_size = len(drafts), p.shape[1]
    with np.errstate(divide="ignore"):
        processed = np.concatenate([np.log(p[:k]), np.zeros((1, vocab_size), np.float32)]).astype(np.float32)
    if inputs.get("q") is None:
        draft_ids, draft_probs = ints(drafts).reshape(1, k, 1), np.ones((1, k, 1), np.float32)
    else:
        draft_ids = ints(np.tile(np.arange(vocab_size), (1, k, 1)))
        draft_probs = np.array(inputs["q"], np.float32)[None, :k].copy()
    rows = k + 1
    largest, total, column = (np.full((1, rows), -7, kind) for kind in (np.float32, np.float32, np.int32))
    log_sum, uniforms = np.full(rows, -7, np.float32), np.full(rows, -7, np.float32)
    row_argmax = np.full(rows, -7, np.int32)
    where, zeros = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    everything = np.full(rows, LOWEST_LOGIT, np.float32)
    launch(sum_stripes, largest, total, column, processed, everything, vocab_size, live(rows))
    of_rows = (log_sum, row_argmax, uniforms)
    launch(sum_rows, *of_rows, largest, total, column, ints([[0, 0]]), zeros, where, where, where, live(rows))
    uniforms[:k] = np.array(inputs["uniforms"], np.float32)[:k]
    accepted, scale, residual, num_drafts = ints([-7]), np.array([-7], np.float32), ints([-7]), ints([-7])
    launch(
        accept_drafts,
        accepted,
        scale,
        residual,
        num_drafts,
        processed,
        everything,
        log_sum,
        row_argmax,
        uniforms,
        ints([0, *drafts]),
        where,
        ints([0, rows]),
        draft_ids,
        draft_probs,
        np.ones(1, np.float32),
        ints([0]),
        int(BLOCK if inputs.get("verification") == "block" else STANDARD),
        live(1),
    )
    kept = int(accepted[0])
    weights = np.full(vocab_size, -7, np.float32)
    launch(residual_weights, weights, processed, kept, log_sum, scale, residual, draft_ids, draft_probs)
    return {"accepted": kept, "residual": None if kept == k else weights / weights.sum(), "num_drafts": int(num_drafts[0])}


def sample(launch: Launch, inputs: Inputs) -> Outputs:
    """Each row of logits is a request of its own. Parameters are lists by row, or one value for all. `prompt` and `output` are what
    penalties count. allowed: ids that may be drawn; logits: what they are drawn by."""
    logits = np.array(inputs["logits"], np.float32)
    rows, vocab_size = logits.shape

    def by_row(name: str, default: float, kind: Any = np.float32) -> Any:
        value = inputs.get(name)
        return np.array(np.broadcast_to(np.array(default if value is None else value, kind), (rows,)))

    counts = np.zeros((rows, vocab_size), np.int32)
    for row in range(rows):
        counts[row, list(_of_row(inputs.get("prompt"), row))] = IN_PROMPT
        for token in _of_row(inputs.get("output"), row):
            counts[row, token] += 1
    temperature = by_row("temperature", 1.0)
    processed, slots, zeros = np.full_like(logits, -7), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    penalties = [by_row(name, off) for name, off in (("repetition_penalty", 1), ("presence_penalty", 0), ("frequency_penalty", 0))]
    none = np.full((rows, 1), -1, np.int32)
    bias = (zeros, none, none.astype(np.float32))
    allowed = np.zeros((rows, -(-vocab_size // 32)), np.int32)
    step = (slots, zeros, zeros, slots, live(rows))
    best = np.zeros((1, rows), np.float32)
    launch(adjust_logits, processed, best, logits, temperature, *penalties, counts, *bias, zeros, allowed, *step)
    kinds = (temperature, by_row("top_k", 0, np.int32), by_row("top_p", 1), by_row("min_p", 0), slots, live(rows))
    histogram, found = np.zeros((rows, 2, BUCKETS), np.int32), np.zeros((rows, FOUND), np.int64)
    threshold, members, num_members = np.zeros(rows, np.float32), np.zeros((rows, MEMBERS), np.float32), np.zeros(rows, np.int32)
    launch(count_logits, histogram, processed, best, *kinds[:3], *kinds[4:])
    launch(find_buckets, found, threshold, num_members, histogram, processed, best, *kinds)
    launch(list_members, members, num_members, found, processed, best, *kinds[4:])
    launch(rank_members, threshold, members, num_members, found, best, *kinds[1:3], *kinds[4:])
    processed[processed < threshold[:, None]] = -np.inf
    return {"logits": processed, "allowed": [np.flatnonzero(row > -np.inf).tolist() for row in processed]}


def _of_row(values: Any, row: int) -> Sequence[int]:
    if values is None:
        return []
    return values[row] if values and isinstance(values[0], Sequence) else values


SAMPLING_OPS: dict[str, Callable[[Launch, Inputs], Outputs]] = {"reject_stochastic": reject_stochastic, "sample": sample}
