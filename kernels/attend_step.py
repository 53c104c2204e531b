"""Attention of decode and verify steps, from the projection on: one launch that rotates, stores keys and values, and attends.

A few rows over a few hundred keys are bound by latency, so nothing waits for another launch or for memory that it could have had
before: keys and values of earlier steps are under way before the projection has ended, those of this step never leave the block
that needs them, and a cluster of blocks shares the keys and adds up through shared memory (flash-decoding by Dao, Haziza, Massa
and Sizov, 2023, without its second pass).

Which warp of a cluster takes a tile of sixteen keys depends on the tile alone, and so does the order in which tiles are added up;
a key that a row does not see adds exact zeros. So what a row yields depends on its own position, not on the batch, nor on how many
rows its request brings. Sixteen pairs of a query row of a request and a query head of a kv head go over the keys together: a tile
of pairs, which has a cluster of its own.
"""

from __future__ import annotations

from typing import Any

from kernels.exponential import exp
from kernels.lang import NEG_INF, SIMULATED, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum
from kernels.project import ceil_div, divide
from kernels.rotate import head_scale, rotate_head, store_heads

if not SIMULATED:
    import kernels.attend_step_gpu as attend_step_gpu

PAIRS = 16
"""Pairs that go over the keys together."""

TILE_KEYS = 16
"""Keys that a warp takes at a time."""

MAX_HEAD_DIM = 128
"""Longest head: the sums of a block fill its shared memory."""

WARPS = 4
"""Warps of a block that share its keys in the common form; more do nothing."""

MOST_WARPS = 8
"""The same in the tensor cores' form."""

CLUSTER = 4
"""Blocks that share the keys of a tile of pairs."""


def ring_bytes(warps: int) -> int:
    """Dynamic shared memory of a GPU's block: keys and values of each warp under way, later its sums; it begins at 16 bytes."""
    return warps * PAIRS * 4 * (MAX_HEAD_DIM + 8) + 16


_SUMS = WARPS * PAIRS * MAX_HEAD_DIM
QUERIES = PAIRS * MAX_HEAD_DIM + 4
STATS = 2 * MOST_WARPS * PAIRS + 4
REGISTERS = 168  # three blocks on a multiprocessor, and nothing spilled
EARLY = ("k_cache", "v_cache", "block_tables", "positions", "idx_mapping", "query_start_loc", "num_requests", "slot_mapping")


def _gpu_step(out: Any, k_cache: Any, *rest: Any) -> Any:
    forms = attend_step_gpu.STEP if str(rest[-1]) == "none" else attend_step_gpu.FEW
    return forms.get(str(k_cache.dtype))


def _gpu_has_step(k_cache: Any) -> Any:
    return attend_step_gpu.yes if str(k_cache.dtype) in attend_step_gpu.STEP else None


@primitive(_gpu_has_step)
def has_tensor_step(k_cache):
    """Does `tensor_step` do all the work?"""
    return False


@primitive(_gpu_step)
def tensor_step(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
    num_heads, eps, scale, stored, num_requests, ring, queries, stats, few,
):  # fmt: skip
    """What `attend_requests` does, on a GPU with a cache in 16 bits, for hd = 64 or 128; nothing elsewhere.

    few: None, or anything else for the layout of kernels/attend_few.py.
    """


@device_function
def rotate_queries(queries, k_cache, qkv, gain, table, positions, token, group, kv_head, first_pair, pairs, eps, warp, warps):
    """queries = the rotated queries of the pairs, rounded to the type of the cache, for `attend_keys`. Called by `warps` warps.

    Args:
        queries: float32 shared [PAIRS * MAX_HEAD_DIM + 4].
        others: as in the kernels below.
    """
    head_dim = i32(k_cache.shape[3])
    half = head_dim // i32(2)
    p = i32(warp)
    while p < pairs:
        row = token + divide(first_pair + p, group)
        start = (kv_head * group + first_pair + p - (row - token) * group) * head_dim
        scale = head_scale(qkv, gain, row, start, head_dim, eps)
        for i in range(lane(), half, warp_size()):
            first, second = rotate_head(qkv, table, row, start, positions[row], i, half, scale, gain)
            queries[p * i32(MAX_HEAD_DIM) + i] = widen(narrow(first, k_cache))
            queries[p * i32(MAX_HEAD_DIM) + half + i] = widen(narrow(second, k_cache))
        p += warps


@device_function
def attend_keys(
    ring, k_cache, v_cache, stats, queries, block_tables, positions, slot, kv_head, token, group, first_pair, pairs, keys, scale,
    warp, warps,
):  # fmt: skip
    """The pairs over the calling warp's tiles of keys: the sums of values by their shares to `ring`, maximum and total to `stats`.

    Args:
        ring: float32 shared [WARPS * PAIRS * MAX_HEAD_DIM]; a sum of pair p is element (warp * PAIRS + p) * MAX_HEAD_DIM + d.
        k_cache, v_cache: [blocks, block_size, nkv, hd].
        stats: float32 shared [WARPS, 2, PAIRS], flat.
        queries: of `rotate_queries`.
        block_tables, positions, scale: as in the kernels below.
        token: int32, the request's first row. group: int32, query heads of a kv head.
        keys: int32, all that the pairs see.
        warp, warps: int32; the warp takes tiles warp, warp + warps, ..
    """
    block_size, head_dim = i32(k_cache.shape[1]), i32(k_cache.shape[3])
    for p in range(pairs):
        seen = min(positions[token + divide(first_pair + i32(p), group)] + i32(1), keys)
        sums, query = (warp * i32(PAIRS) + i32(p)) * i32(MAX_HEAD_DIM), i32(p) * i32(MAX_HEAD_DIM)
        for d in range(lane(), head_dim, warp_size()):
            ring[sums + d] = f32(0.0)
        top, total = NEG_INF, f32(0.0)
        tile = i32(warp)
        while tile * i32(TILE_KEYS) < seen:
            for key in range(tile * i32(TILE_KEYS), min((tile + i32(1)) * i32(TILE_KEYS), seen)):
                page = divide(key, block_size)
                block, offset = max(block_tables[slot, page], i32(0)), i32(key) - page * block_size
                score = f32(0.0)
                for d in range(lane(), head_dim, warp_size()):
                    score += queries[query + d] * widen(k_cache[block, offset, kv_head, d])
                score = warp_sum(score) * scale
                highest = max(top, score)
                keep, share = exp(top - highest), exp(score - highest)
                total = total * keep + share
                for d in range(lane(), head_dim, warp_size()):
                    ring[sums + d] = ring[sums + d] * keep + share * widen(v_cache[block, offset, kv_head, d])
                top = highest
            tile += warps
        if lane() == 0:
            stats[warp * i32(2 * PAIRS) + i32(p)] = top
            stats[warp * i32(2 * PAIRS) + i32(PAIRS + p)] = total


@device_function
def fold_warps(out, ring, stats, k_cache, token, group, kv_head, first_pair, pairs, active, warp, warps):
    """out = the softmax over the `active` warps that had keys: rescaled to the largest, in order. The warps share the pairs."""
    head_dim = i32(k_cache.shape[3])
    p = i32(warp)
    while p < pairs:
        top = NEG_INF
        for w in range(active):
            top = max(top, stats[w * (2 * PAIRS) + p])
        normalizer = f32(0.0)
        for w in range(active):
            normalizer += stats[w * (2 * PAIRS) + PAIRS + p] * exp(stats[w * (2 * PAIRS) + p] - top)
        row = divide(first_pair + p, group)
        column = (kv_head * group + first_pair + p - row * group) * head_dim
        for d in range(lane(), head_dim, warp_size()):
            total = f32(0.0)
            for w in range(active):
                total += ring[(w * PAIRS + p) * MAX_HEAD_DIM + d] * exp(stats[w * (2 * PAIRS) + p] - top)
            out[token + row, column + d] = narrow(total * (f32(1.0) / normalizer), out)
        p += warps


@device_function
def attend_requests(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
    num_heads, eps, scale, stored, num_requests, ring, queries, stats,
):  # fmt: skip
    """What both kernels below do where there is no `tensor_step`; gains are None where a model has no norm of heads."""
    num_kv_heads = i32(k_cache.shape[2])
    group = divide(num_heads, num_kv_heads)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    warps = min(warps, i32(WARPS))
    wait_for_launches()
    let_next_launch_start()
    request = i32(cuda.blockIdx.z)
    while request < num_requests[0]:
        token, slot = query_start_loc[request], idx_mapping[request]
        pair_count = (query_start_loc[request + 1] - token) * group
        kv_head = i32(cuda.blockIdx.y)
        while kv_head < num_kv_heads:
            first_pair = i32(cuda.blockIdx.x * PAIRS)
            while first_pair < pair_count:
                pairs = min(pair_count - first_pair, i32(PAIRS))
                keys = positions[token + divide(first_pair + pairs - i32(1), group)] + i32(1)
                if warp < warps:
                    rotate_queries(
                        queries, k_cache, qkv, q_gain, table, positions, token, group, kv_head, first_pair, pairs, eps, warp, warps
                    )
                    if stored == i32(0):  # what this block will read: other blocks may store the same
                        store_heads(
                            k_cache, v_cache, qkv, k_gain, table, positions, slot_mapping, token, keys - positions[token],
                            num_heads, kv_head, eps, warp, warps,
                        )  # fmt: skip
                cuda.syncthreads()
                if warp < warps:
                    attend_keys(
                        ring, k_cache, v_cache, stats, queries, block_tables, positions, slot, kv_head, token, group, first_pair,
                        pairs, keys, scale, warp, warps,
                    )  # fmt: skip
                cuda.syncthreads()
                if warp < warps:
                    active = min(ceil_div(keys, i32(TILE_KEYS)), warps)
                    fold_warps(out, ring, stats, k_cache, token, group, kv_head, first_pair, pairs, active, warp, warps)
                cuda.syncthreads()
                first_pair += i32(cuda.gridDim.x * PAIRS)
            kv_head += i32(cuda.gridDim.y)
        request += i32(cuda.gridDim.z)


@device_function
def attend_all(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
    num_heads, eps, scale, stored, num_requests, ring, sums, queries, stats, few,
):  # fmt: skip
    """What all kernels do that attend to a step; `ring` of a GPU's 16-bit form, `sums` of all others."""
    if has_tensor_step(k_cache):
        tensor_step(
            out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
            num_heads, eps, scale, stored, num_requests, ring, queries, stats, few,
        )  # fmt: skip
    else:
        attend_requests(
            out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
            num_heads, eps, scale, stored, num_requests, sums, queries, stats,
        )  # fmt: skip


@kernel(
    writes=("out", "k_cache", "v_cache"),
    max_registers=REGISTERS,
    overlap=True,
    early=EARLY,
    cluster=CLUSTER,
    shared=ring_bytes(MOST_WARPS),
)
def attend_step(
    out, k_cache, v_cache, qkv, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc, num_heads, scale,
    stored, num_requests,
):  # fmt: skip
    """out[t, h] = softmax(scale * q[t, h] . K) V over the keys 0..positions[t] of the row's request, for the live requests.

    q and k of the projection are rotated first, and k and v go into the cache.

    Args:
        out: [T, nh * hd], any storage type.
        k_cache, v_cache: [blocks, block_size, nkv, hd], hd <= MAX_HEAD_DIM.
        qkv: [T, (nh + 2 nkv) * hd], any storage type, bias included.
        table: float32 [L, hd], cos | sin (kernels/rope.py).
        block_tables: int32 [N, B]; an entry below 0 is read as block 0 (its row is thrown away).
        positions: int32 [T], in [0, L), consecutive within a request; the last may repeat (kernels/prepare.py).
        slot_mapping: int32 [T], block * block_size + offset, or -1: nothing is stored.
        idx_mapping: int32 [R], slot of a request.
        query_start_loc: int32 [R + 1], rows of request r: query_start_loc[r] .. query_start_loc[r + 1].
        num_heads: int32.
        scale: float32.
        stored: int32; not 0: `rotate_store` has stored the step's keys and values before.
        num_requests: int32 [1], live requests.

    Launch: grid (tiles of pairs, kv heads, requests), any of them, eight warps at most; a GPU makes a cluster of each tile.
    Barriers are reached by all threads of a cluster: loops depend on blockIdx and device state alone. Safe under capture, and
    idempotent.
    Oracle: oracle_attend.attend_step.
    """
    ring = cuda.shared.array(0, f32)
    sums = cuda.shared.array(_SUMS, f32)
    queries = cuda.shared.array(QUERIES, f32)
    stats = cuda.shared.array(STATS, f32)
    attend_all(
        out, k_cache, v_cache, qkv, None, None, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
        num_heads, f32(0.0), scale, stored, num_requests, ring, sums, queries, stats, None,
    )  # fmt: skip


@kernel(
    writes=("out", "k_cache", "v_cache"),
    max_registers=REGISTERS,
    overlap=True,
    early=EARLY,
    cluster=CLUSTER,
    shared=ring_bytes(MOST_WARPS),
)
def norm_attend_step(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
    num_heads, eps, scale, stored, num_requests,
):  # fmt: skip
    """`attend_step` of q and k heads that go through RMSNorm first (Qwen3).

    Args:
        q_gain, k_gain: float32 [hd].
        eps: float32.
        others: as in `attend_step`.

    Launch and ownership as in `attend_step`. Oracle: oracle_attend.norm_attend_step.
    """
    ring = cuda.shared.array(0, f32)
    sums = cuda.shared.array(_SUMS, f32)
    queries = cuda.shared.array(QUERIES, f32)
    stats = cuda.shared.array(STATS, f32)
    attend_all(
        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
        num_heads, eps, scale, stored, num_requests, ring, sums, queries, stats, None,
    )  # fmt: skip
