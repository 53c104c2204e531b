"""Attention of draft blocks on tensor cores: keys of the paged context split over blocks, the own keys of the masks one chunk more.

Flash-decoding (Dao, Haziza, Massa and Sizov, 2023) with the two products of kernels/attend_tile.py. The block's own keys and values
lie in scratch of their own and never in the cache, so that none survives into the next step.
"""

from __future__ import annotations

from kernels.attend import chunk_total
from kernels.attend_tile import PAIRS, RING, SLAB, attend_scores, attend_values, fetch_keys, fetch_values
from kernels.exponential import exp
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, warp_broadcast, warp_max, warp_size, warp_sum
from kernels.project import ceil_div, divide

CHUNK_KEYS = 64
"""Keys of a chunk, and rows of a block at most: its keys and values fit into shared memory together."""

MAX_HEAD_DIM = 128

_UNITS = 4  # warps that sum values
_SCORES = PAIRS * CHUNK_KEYS
_REGISTERS = 128  # four blocks of four warps on a multiprocessor


@device_function
def seen_softmax(scores, largest, normalizer, group, first_pair, pairs, at, first, keys, window, causal, scale, warp, warps):
    """Scores -> shares exp(s - max) of each pair, 0 for keys that its row does not see; its maximum and its sum of shares.

    Row i of the block stands at position at + i, key j of the chunk at first + j.
    """
    p = i32(warp)
    while p < pairs:
        position = at + divide(first_pair + p, group)
        begin, end = i32(0), i32(keys)
        if window > i32(0):
            begin = max(position - window + i32(1) - first, i32(0))
            end = min(end, position + window - first)
        if causal > i32(0):
            end = min(end, position + i32(1) - first)
        top = NEG_INF
        for key in range(lane(), end, warp_size()):
            if key >= begin:
                top = max(top, scores[p * i32(CHUNK_KEYS) + key] * scale)
        top = warp_max(top)
        total = f32(0.0)
        for key in range(lane(), CHUNK_KEYS, warp_size()):
            share = f32(0.0)
            if key >= begin and key < end:
                share = exp(scores[p * i32(CHUNK_KEYS) + key] * scale - top)
            scores[p * i32(CHUNK_KEYS) + key] = share
            total += share
        total = warp_sum(total)
        if lane() == i32(0):
            largest[p] = top
            normalizer[p] = total
        p += warps


@device_function
def reciprocal(normalizer):
    """1 / normalizer; 0 for a row that saw no key."""
    if normalizer > f32(0.0):
        return f32(1.0) / normalizer
    return f32(0.0)


@device_function
def combine_parts(out, totals, stats, chunks, row, head, head_dim):
    """out = the softmax over all chunks of a row and head: rescaled to the largest, in order. Called by a whole warp: a lane
    weighs a chunk, all of them add up dims, of four chunks at once so that their loads are under way together."""
    top = NEG_INF
    for chunk in range(lane(), chunks, warp_size()):
        top = max(top, stats[chunk, row, head, 0])
    top = warp_max(top)
    dim = i32(0)
    while dim < head_dim:
        d = min(dim + lane(), head_dim - i32(1))
        e = min(dim + lane() + warp_size(), head_dim - i32(1))
        here, there, normalizer = f32(0.0), f32(0.0), f32(0.0)
        base = i32(0)
        while base < chunks:
            mine, keep, share = base + lane(), f32(0.0), f32(0.0)
            if mine < chunks and top > NEG_INF:
                keep = exp(stats[mine, row, head, 0] - top)
                share = keep * stats[mine, row, head, 1]
            normalizer += warp_sum(share)
            count = min(chunks - base, warp_size())
            j = i32(0)
            while j < count:
                a, b, c = min(j + i32(1), count - i32(1)), min(j + i32(2), count - i32(1)), min(j + i32(3), count - i32(1))
                k0, k1 = warp_broadcast(keep, j), warp_broadcast(keep, a)
                k2, k3 = warp_broadcast(keep, b), warp_broadcast(keep, c)
                if j + i32(1) >= count:
                    k1 = f32(0.0)
                if j + i32(2) >= count:
                    k2 = f32(0.0)
                if j + i32(3) >= count:
                    k3 = f32(0.0)
                c0, c1, c2, c3 = base + j, base + a, base + b, base + c
                v0, v1 = totals[c0, row, head, d], totals[c1, row, head, d]
                v2, v3 = totals[c2, row, head, d], totals[c3, row, head, d]
                w0, w1 = totals[c0, row, head, e], totals[c1, row, head, e]
                w2, w3 = totals[c2, row, head, e], totals[c3, row, head, e]
                here = here + k0 * v0 + k1 * v1 + k2 * v2 + k3 * v3
                there = there + k0 * w0 + k1 * w1 + k2 * w2 + k3 * w3
                j += i32(4)
            base += warp_size()
        share = reciprocal(normalizer)
        out[row, head * head_dim + d] = narrow(here * share, out)
        out[row, head * head_dim + e] = narrow(there * share, out)
        dim += i32(2) * warp_size()


@kernel(writes=("out", "totals", "stats", "arrivals"), max_registers=_REGISTERS, overlap=True)
def block_attend(
    out,
    totals,
    stats,
    arrivals,
    query,
    own_keys,
    own_values,
    own_table,
    k_cache,
    v_cache,
    block_tables,
    idx_mapping,
    context_lens,
    block_lens,
    num_heads,
    window,
    causal,
    scale,
    num_requests,
):
    """What kernels/block_attention.py computes, of queries and own keys that were rotated before, for the live requests.

    Args:
        out: [R * Q, nh * hd], any storage type, Q <= CHUNK_KEYS.
        totals: float32 [C + 1, R * Q, nh, hd], C = chunks of the longest context: sums of a chunk; scratch.
        stats: float32 [C + 1, R * Q, nh, 2]: maximum and normalizer of a chunk; scratch.
        arrivals: int32 [R, nkv, tiles of Q * nh / nkv pairs], all 0 before the launch, and again behind it.
        query: [R * Q, nh * hd], rotated.
        own_keys, own_values: [R, Q, nkv, hd], of the query's type, rotated.
        own_table: int32 [R, 1], own_table[r, 0] = r: a block's own keys are a page of a cache of its own.
        k_cache, v_cache: [blocks, block_size, nkv, hd] of one draft layer, hd <= MAX_HEAD_DIM.
        block_tables: int32 [N, B]; an entry below 0 is read as block 0 (its row is thrown away).
        idx_mapping, context_lens, block_lens: int32 [R].
        num_heads: int32.
        window: int32 in positions, 0 = none.
        causal: int32, 0 or 1.
        scale: float32.
        num_requests: int32 [1], live requests.

    Launch: grid (pieces, kv heads, requests), any of them, four warps; pieces are the chunks of tiles that run at once. Barriers
    are reached by all threads of a block: loops depend on blockIdx and device state alone. The last block of a tile to arrive adds
    its chunks up in order. Safe under capture. Oracle: oracle_dflash.block_attend.
    """
    scores = cuda.shared.array(_SCORES, f32)
    sums = cuda.shared.array(RING, f32)
    value_ring = cuda.shared.array(RING, f32)
    largest = cuda.shared.array(PAIRS, f32)
    normalizer = cuda.shared.array(PAIRS, f32)
    arrived = cuda.shared.array(1, i32)
    wait_for_launches()
    let_next_launch_start()
    num_kv_heads, head_dim = i32(k_cache.shape[2]), i32(k_cache.shape[3])
    queries = i32(own_keys.shape[1])
    group = divide(num_heads, num_kv_heads)
    tiles = ceil_div(queries * group, i32(PAIRS))
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    slabs = ceil_div(head_dim, i32(SLAB))
    parts = max(divide(min(warps, i32(_UNITS)), slabs), i32(1))
    part_keys = ceil_div(i32(CHUNK_KEYS // 16), parts) * i32(16)
    request = i32(cuda.blockIdx.z)
    while request < num_requests[0]:
        token, slot, context = i32(request * queries), max(idx_mapping[request], i32(0)), context_lens[request]
        skipped = i32(0)
        if window > i32(0):
            skipped = divide(max(context - window + i32(1), i32(0)), i32(CHUNK_KEYS))
        chunks = max(ceil_div(context, i32(CHUNK_KEYS)) - skipped, i32(0)) + i32(1)
        kv_head = i32(cuda.blockIdx.y)
        while kv_head < num_kv_heads:
            piece = i32(cuda.blockIdx.x)
            while piece < chunks * tiles:
                chunk = divide(piece, tiles)
                first_pair = i32((piece - chunk * tiles) * i32(PAIRS))
                pairs = min(queries * group - first_pair, i32(PAIRS))
                start = i32((skipped + chunk) * i32(CHUNK_KEYS))
                # Own keys and values are a page of a cache of their own: request r has page r.
                keys_of, values_of, tables, owner = k_cache, v_cache, block_tables, slot
                first, keys = start, min(context - start, i32(CHUNK_KEYS))
                if chunk == chunks - i32(1):
                    keys_of, values_of, tables, owner = own_keys, own_values, own_table, request
                    start, first, keys = i32(0), context, block_lens[request]
                fetch_keys(sums, keys_of, tables, owner, kv_head, start, keys, warp, warps)
                fetch_values(
                    value_ring, values_of, tables, owner, kv_head, start, part_keys, keys, slabs, parts, warp, warps
                )
                attend_scores(
                    scores, i32(CHUNK_KEYS), sums, query, keys_of, tables, owner, kv_head, token, group, first_pair, pairs, start,
                    keys, warp, warps,
                )  # fmt: skip
                cuda.syncthreads()
                seen_softmax(
                    scores, largest, normalizer, group, first_pair, pairs, context, first, keys, window, causal, scale, warp, warps
                )
                cuda.syncthreads()
                unit = i32(warp)
                while unit < slabs * parts:
                    part = divide(unit, slabs)
                    attend_values(
                        sums, unit, scores, i32(CHUNK_KEYS), value_ring, values_of, tables, owner, kv_head, pairs, start,
                        part * part_keys, (part + i32(1)) * part_keys, keys, (unit - part * slabs) * i32(SLAB),
                    )  # fmt: skip
                    unit += warps
                cuda.syncthreads()
                item = i32(cuda.threadIdx.x)
                while item < pairs * head_dim:
                    p = divide(item, head_dim)
                    d = item - p * head_dim
                    total = chunk_total(sums, parts, slabs, p, d)
                    row = divide(first_pair + p, group)
                    head = kv_head * group + first_pair + p - row * group
                    if chunks == 1:
                        out[token + row, head * head_dim + d] = narrow(total * reciprocal(normalizer[p]), out)
                    else:
                        totals[chunk, token + row, head, d] = total
                        if d == 0:
                            stats[chunk, token + row, head, 0] = largest[p]
                            stats[chunk, token + row, head, 1] = normalizer[p]
                    item += i32(cuda.blockDim.x)
                cuda.syncthreads()
                if chunks > 1:
                    tile = piece - chunk * tiles
                    cuda.threadfence()
                    cuda.syncthreads()
                    if cuda.threadIdx.x == 0:
                        arrived[0] = cuda.atomic.add(arrivals, (request, kv_head, tile), 1)
                    cuda.syncthreads()
                    if arrived[0] == chunks - 1:
                        cuda.threadfence()
                        p = i32(warp)
                        while p < pairs:
                            row = divide(first_pair + p, group)
                            head = kv_head * group + first_pair + p - row * group
                            combine_parts(out, totals, stats, chunks, token + row, head, head_dim)
                            p += warps
                        if cuda.threadIdx.x == 0:
                            arrivals[request, kv_head, tile] = 0
                    cuda.syncthreads()
                piece += i32(cuda.gridDim.x)
            kv_head += i32(cuda.gridDim.y)
        request += i32(cuda.gridDim.z)

