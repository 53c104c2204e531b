"""What each kernel of a draft block means, in plain NumPy; those of its context are in kernels/oracle_context.py.

Tests and documentation use it; nothing at run time does.
Every function returns what the kernel's output arrays hold afterwards; inputs are never changed. Sums are float64.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernels.oracle_forward import head_norm, rope
from kernels.oracle_sampling import draft_gumbels

Floats: TypeAlias = "npt.NDArray[np.float32]"
Integers: TypeAlias = "npt.NDArray[np.int32]"


def block_inputs(
    rows: int,
    queries: int,
    num_computed: Integers,
    last_sampled: Integers,
    idx_mapping: Integers,
    mask_token_id: int,
    max_model_len: int,
    num_requests: Integers,
) -> dict[str, Integers]:
    """Every output of the kernel by name, for R = rows and Q = queries."""
    ids, positions = np.zeros((rows, queries), np.int32), np.zeros((rows, queries), np.int32)
    picks = np.zeros((rows, queries - 1), np.int32)
    context_lens, block_lens = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    for row in range(num_requests[0]):
        slot = idx_mapping[row]
        known = 0 <= slot < len(num_computed)
        computed = num_computed[slot] if known else 0
        ids[row] = mask_token_id
        ids[row, 0] = last_sampled[slot] if known else mask_token_id
        positions[row] = np.minimum(computed + np.arange(queries), max_model_len - 1)
        picks[row] = row * queries + np.arange(1, queries)
        context_lens[row] = computed
        block_lens[row] = min(queries, max(max_model_len - computed, 0)) if known else 0
    live = np.array([num_requests[0] * queries, num_requests[0] * (queries - 1)], np.int32)
    return {
        "block_ids": ids.ravel(),
        "block_positions": positions.ravel(),
        "pick_rows": picks.ravel(),
        "context_lens": context_lens,
        "block_lens": block_lens,
        "block_live": live,
    }


def block_embed(
    rows: int, queries: int, residual: Floats, table: Floats, scale: float, **inputs: Any
) -> dict[str, npt.NDArray[Any]]:
    """Every output of the kernel by name; inputs: the others of `block_inputs`."""
    written: dict[str, npt.NDArray[Any]] = dict(block_inputs(rows, queries, **inputs))
    embedded, live = residual.copy(), int(written["block_live"][0])
    ids = written["block_ids"][:live]
    known = (ids >= 0) & (ids < len(table))
    embedded[:live] = np.where(known[:, None], table[np.where(known, ids, 0)] * np.float32(scale), 0)
    return {**written, "residual": embedded}


def block_attention(
    out: Floats,
    qkv: Floats,
    cache: Floats,
    block_tables: Integers,
    idx_mapping: Integers,
    context_lens: Integers,
    block_lens: Integers,
    layer: int,
    num_heads: int,
    window: int,
    causal: int,
    scale: float,
    num_tokens: Integers,
) -> Floats:
    _, _, _, block_size, kv_heads, head_dim = cache.shape
    queries = len(out) // len(context_lens)
    heads = qkv.reshape(len(qkv), -1, head_dim).astype(np.float64)
    result = out.copy()
    for row in range(num_tokens[0]):
        request = row // queries
        context, length = context_lens[request], block_lens[request]
        table = np.maximum(block_tables[max(idx_mapping[request], 0)], 0)
        stored = [cache[layer, :, table[at // block_size], at % block_size] for at in range(context)]
        own = [heads[request * queries + i, num_heads:].reshape(2, kv_heads, head_dim) for i in range(length)]
        at = np.arange(context + length)
        distance = context + row % queries - at
        seen = np.ones(len(at), bool)
        if window:
            seen &= np.abs(distance) < window
        if causal:
            seen &= distance >= 0
        both = np.array([*stored, *own], np.float64).reshape(-1, 2, kv_heads, head_dim)[seen]
        for head in range(num_heads):
            keys, values = both[:, 0, head * kv_heads // num_heads], both[:, 1, head * kv_heads // num_heads]
            weights = np.exp((scores := keys @ heads[row, head] * scale) - scores.max(initial=-np.inf))
            result[row, head * head_dim : (head + 1) * head_dim] = weights @ values / weights.sum() if seen.any() else 0.0
    return result


def block_conv(
    out: Floats, x: Floats, base_kernel: Floats, delta: Floats, side: int, queries: int, num_tokens: Integers
) -> Floats:
    _, taps, width = base_kernel.shape
    kernels = delta.astype(np.float64).reshape(len(delta), 2, taps, -1)
    result = out.copy()
    for row in range(num_tokens[0]):
        total = np.zeros(width)
        for s in range(min(taps, row % queries + 1)):
            kernel = base_kernel[side, s] + np.repeat(kernels[row, side, s], width // kernels.shape[-1])
            total += kernel * x[row - s]
        result[row] = total
    return result


def logit_scale(logits: Floats, multiplier: float, cap: float, num_rows: Integers) -> Floats:
    result, live = logits.copy(), num_rows[0]
    scaled = logits[:live].astype(np.float64) * multiplier
    result[:live] = cap * np.tanh(scaled / cap) if cap else scaled
    return result


def top_candidates(
    ids: Integers, values: Floats, logits: Floats, vocab_size: int, num_rows: Integers
) -> tuple[Integers, Floats]:
    """(ids, values) afterwards."""
    ids, values, count = ids.copy(), values.copy(), ids.shape[1]
    for row in range(num_rows[0]):
        numbers = np.flatnonzero(~np.isnan(logits[row, :vocab_size]))
        columns = numbers[np.argsort(-logits[row, numbers], kind="stable")][:count]
        ids[row], values[row] = 0, -np.inf
        ids[row, : len(columns)], values[row, : len(columns)] = columns, logits[row, columns]
    return ids, values


def edge_scores(
    scores: Floats,
    ids: Integers,
    values: Floats,
    gate: Floats,
    predecessors: Floats,
    successors: Floats,
    block_ids: Integers,
    picks: int,
    num_rows: Integers,
) -> Floats:
    result = scores.copy()
    for row in range(num_rows[0]):
        first = row % picks == 0
        previous = block_ids[[row // picks * (picks + 1)]] if first else ids[row - 1]
        edges = predecessors[np.clip(previous, 0, len(predecessors) - 1)].astype(np.float64) * gate[row]
        result[row, : len(previous)] = values[row] + edges @ successors[ids[row]].astype(np.float64).T
    return result


def selector_walk(
    draft_tokens: Integers,
    num_draft: Integers,
    q_ids: Integers,
    q_probs: Floats,
    ids: Integers,
    scores: Floats,
    context_lens: Integers,
    block_lens: Integers,
    finished: Integers,
    idx_mapping: Integers,
    num_sampled: Integers,
    temperature: Floats,
    seed: Integers,
    num_requests: Integers,
) -> dict[str, npt.NDArray[Any]]:
    """Every output of the kernel by name."""
    picks = draft_tokens.shape[1]
    out: dict[str, npt.NDArray[Any]] = {
        "draft_tokens": draft_tokens.copy(), "num_draft": num_draft.copy(), "q_ids": q_ids.copy(), "q_probs": q_probs.copy()
    }  # fmt: skip
    for request in range(num_requests[0]):
        slot = idx_mapping[request]
        if not 0 <= slot < len(draft_tokens):
            continue
        proposes = num_sampled[request] > 0 and finished[slot] == 0
        count = min(picks, max(block_lens[request] - 1, 0)) if proposes else 0
        for name, nothing in (("draft_tokens", -1), ("num_draft", count), ("q_ids", -1), ("q_probs", 0)):
            out[name][slot] = nothing
        before = 0
        for step in range(count):
            row, position = request * picks + step, int(context_lens[request]) + 1 + step
            line = np.where(np.isnan(scores[row, before]), -np.inf, scores[row, before]).astype(np.float64)
            shares, heat = np.zeros(len(line)), float(temperature[slot])
            if heat > 0 and np.isfinite(line.max()):
                weights = np.exp((line - line.max()) / heat)
                shares = weights / weights.sum()
                noise = draft_gumbels((int(seed[slot, 0]), int(seed[slot, 1])), position, step, int(ids[row].max()) + 1)
                line = (line - line.max()) / heat + noise[ids[row]]
            before = int(np.argmax(line))
            if not shares.any():
                shares[before] = 1
            out["draft_tokens"][slot, step] = ids[row, before]
            drawn = np.isfinite(line) if heat > 0 and np.isfinite(line.max()) else shares > 0
            out["q_ids"][slot, step] = np.where(drawn, ids[row], -1)
            out["q_probs"][slot, step] = shares
    return out


def store_drafts(
    draft_tokens: Integers,
    num_draft: Integers,
    chosen: Integers,
    block_lens: Integers,
    finished: Integers,
    idx_mapping: Integers,
    num_sampled: Integers,
    num_requests: Integers,
) -> tuple[Integers, Integers]:
    """(draft_tokens, num_draft) afterwards."""
    drafts, counts, k = draft_tokens.copy(), num_draft.copy(), draft_tokens.shape[1]
    for row in range(num_requests[0]):
        slot = idx_mapping[row]
        if not 0 <= slot < len(drafts):
            continue
        proposes = num_sampled[row] > 0 and finished[slot] == 0
        count = min(k, max(block_lens[row] - 1, 0)) if proposes else 0
        picks = chosen[row * k : row * k + count].tolist()
        picks = picks[: picks.index(-1)] if -1 in picks else picks
        drafts[slot], counts[slot] = -1, len(picks)
        drafts[slot, : len(picks)] = picks
    return drafts, counts




def _conv(x: Floats, base_kernel: Floats, delta: Floats, side: int, queries: int) -> npt.NDArray[np.float64]:
    everything = np.array([len(x)], np.int32)
    return block_conv(np.zeros_like(x), x, base_kernel, delta, side, queries, everything).astype(np.float64)


def _joined(
    residual: Floats, added: Floats, done_kernel: Floats, done_delta: Floats, joins: int, queries: int, live: int
) -> npt.NDArray[np.float64]:
    total = residual[:live].astype(np.float64)
    return total + _conv(added[:live], done_kernel, done_delta[:live], 1, queries) if joins else total


def _normed(x: npt.NDArray[np.float64], gain: Floats, eps: float) -> npt.NDArray[np.float64]:
    return np.asarray(x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * gain)


def join_conv(
    total: Floats,
    out: Floats,
    delta: Floats,
    residual: Floats,
    added: Floats,
    done_kernel: Floats,
    done_delta: Floats,
    gain: Floats,
    base_kernel: Floats,
    projection: Floats,
    eps: float,
    joins: int,
    queries: int,
    num_requests: Integers,
) -> dict[str, Floats]:
    """Every output of the kernel by name."""
    total, out, delta, live = total.copy(), out.copy(), delta.copy(), num_requests[0] * queries
    total[:live] = _joined(residual, added, done_kernel, done_delta, joins, queries, live)
    normed = _normed(_joined(residual, added, done_kernel, done_delta, joins, queries, live), gain, eps)
    delta[:live] = normed @ projection.T.astype(np.float64)
    out[:live] = _conv(normed.astype(np.float32), base_kernel, delta[:live], 0, queries)
    return {"total": total, "out": out, "delta": delta}


def join_norm(
    out: Floats,
    residual: Floats,
    added: Floats,
    done_kernel: Floats,
    done_delta: Floats,
    gain: Floats,
    eps: float,
    queries: int,
    num_tokens: Integers,
) -> Floats:
    result, live = out.copy(), num_tokens[0]
    result[:live] = _normed(_joined(residual, added, done_kernel, done_delta, 1, queries, live), gain, eps)
    return result


def block_attend(
    out: Floats,
    k_cache: Floats,
    v_cache: Floats,
    qkv: Floats,
    q_gain: Floats,
    k_gain: Floats,
    table: Floats,
    block_tables: Integers,
    idx_mapping: Integers,
    context_lens: Integers,
    block_lens: Integers,
    num_heads: int,
    eps: float,
    window: int,
    causal: int,
    scale: float,
    num_requests: Integers,
) -> Floats:
    """`block_attention` of one layer of a cache, behind the norm and the rotation of the block's heads."""
    queries, kv_heads = len(out) // len(context_lens), k_cache.shape[2]
    live = np.array([num_requests[0] * queries], np.int32)
    positions = (context_lens[:, None] + np.arange(queries, dtype=np.int32)).ravel().clip(0, len(table) - 1)
    turned = rope(head_norm(qkv, q_gain, k_gain, num_heads, kv_heads, eps, live), table, positions, num_heads, kv_heads, live)
    cache = np.stack([k_cache, v_cache])[None]
    where = (block_tables, idx_mapping, context_lens, block_lens)
    return block_attention(out, turned, cache, *where, 0, num_heads, window, causal, scale, live)
