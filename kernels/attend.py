"""Attention of decode and verify steps, split along the keys so that a few requests fill a GPU.

Flash-decoding (Dao, Haziza, Massa and Sizov, 2023) over paged keys: each chunk of keys is one piece of work, and whichever block
of a request comes last combines them. Chunks begin at fixed positions, so what a row yields depends on its own
position alone, not on the batch, nor on how many rows its request brings. Sixteen pairs of a query row of a request and a query
head of a kv head go over a chunk together: a tile, which has blocks of its own, so that the tiles of a verify step run at once.
"""

from __future__ import annotations

from kernels.attend_tile import PAIRS, RING, SLAB, attend_scores, attend_values, fetch_keys, fetch_values
from kernels.exponential import exp
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, warp_broadcast, warp_max, warp_size, warp_sum
from kernels.project import ceil_div, divide

CHUNK_KEYS = 64
"""Keys of a chunk: fixed, because it decides the order of every sum. Its keys and values fit into shared memory together."""

MAX_HEAD_DIM = 128
"""Longest head: a block's sums, and the keys and values that are under way to it, fill its shared memory."""

_UNITS = 4  # warps that sum values; their sums [_UNITS, PAIRS, SLAB] take the place of the keys, once these were used
_SCORES = PAIRS * CHUNK_KEYS
_REGISTERS = 128  # six blocks of four warps on a multiprocessor have no more shared memory, and four of them this many registers
_RUNNING = PAIRS * MAX_HEAD_DIM


@device_function
def chunk_softmax(scores, largest, normalizer, positions, token, group, first_pair, pairs, start, keys, scale, warp, warps):
    """Scores -> shares exp(s - max) of each pair, 0 for keys that its row does not see; its maximum and its sum of shares."""
    p = i32(warp)
    while p < pairs:
        seen = min(positions[token + divide(first_pair + p, group)] - start + i32(1), keys)
        top = NEG_INF
        for key in range(lane(), seen, warp_size()):
            top = max(top, scores[p * i32(CHUNK_KEYS) + key] * scale)
        top = warp_max(top)
        total = f32(0.0)
        for key in range(lane(), CHUNK_KEYS, warp_size()):
            share = f32(0.0)
            if key < seen:
                share = exp(scores[p * i32(CHUNK_KEYS) + key] * scale - top)
            scores[p * i32(CHUNK_KEYS) + key] = share
            total += share
        total = warp_sum(total)
        if lane() == 0:
            largest[p] = top
            normalizer[p] = total
        p += warps


@device_function
def chunk_total(sums, parts, slabs, p, d):
    """The weighted sum of values of pair p in dim d: over the parts of a chunk, in order."""
    slab = divide(d, i32(SLAB))
    total = f32(0.0)
    for part in range(parts):
        unit = i32(part) * slabs + slab
        total += sums[(unit * i32(PAIRS) + p) * i32(SLAB) + d - slab * i32(SLAB)]
    return total


@kernel(writes=("out", "totals", "stats", "arrivals"), max_registers=_REGISTERS)
def attend(
    out,
    totals,
    stats,
    arrivals,
    query,
    k_cache,
    v_cache,
    block_tables,
    positions,
    idx_mapping,
    query_start_loc,
    num_heads,
    scale,
    num_requests,
):
    """out[t, h] = softmax(scale * q[t, h] . K) V over the keys 0..positions[t] of the row's request, for the live requests.

    Args:
        out: [T, nh * hd], any storage type.
        totals: float32 [C, T, nh, hd], C = chunks of the longest request: sums of a chunk; scratch.
        stats: float32 [C, T, nh, 2]: maximum and normalizer of a chunk; scratch.
        arrivals: int32 [R, nkv, tiles of the largest request], all 0 before the launch, and again behind it.
        query: [T, nh * hd], rotated queries.
        k_cache, v_cache: [blocks, block_size, nkv, hd], the step's own keys included (kernels/rotate.py); hd <= MAX_HEAD_DIM.
        block_tables: int32 [N, B]; an entry below 0 is read as block 0 (its row is thrown away).
        positions: int32 [T], ascending within a request.
        idx_mapping: int32 [R], slot of a request.
        query_start_loc: int32 [R + 1], rows of request r: query_start_loc[r] .. query_start_loc[r + 1].
        num_heads: int32.
        scale: float32.
        num_requests: int32 [1], live requests.

    Launch: grid (pieces, kv heads, requests), any of them, four warps; pieces are the chunks of tiles that run at once. A block
    without one does nothing. Block-wide barriers are reached by all its threads: loops depend on blockIdx and device state alone.
    The last block of a tile to arrive adds its chunks up in order. Safe under capture. Oracle: oracle_fused.attend.
    """
    scores = cuda.shared.array(_SCORES, f32)
    sums = cuda.shared.array(RING, f32)
    value_ring = cuda.shared.array(RING, f32)
    largest = cuda.shared.array(PAIRS, f32)
    normalizer = cuda.shared.array(PAIRS, f32)
    arrived = cuda.shared.array(1, i32)
    num_kv_heads, head_dim = i32(k_cache.shape[2]), i32(k_cache.shape[3])
    group = divide(num_heads, num_kv_heads)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    slabs = ceil_div(head_dim, i32(SLAB))
    parts = max(divide(min(warps, i32(_UNITS)), slabs), i32(1))
    share_keys = ceil_div(i32(CHUNK_KEYS // 16), parts) * i32(16)  # of a whole chunk: how many keys it holds must not matter
    request = i32(cuda.blockIdx.z)
    while request < num_requests[0]:
        token, slot = query_start_loc[request], idx_mapping[request]
        rows = query_start_loc[request + 1] - token
        tiles = ceil_div(rows * group, i32(PAIRS))
        most = i32(0)
        if rows > 0:
            most = ceil_div(positions[token + rows - 1] + i32(1), i32(CHUNK_KEYS))
        kv_head = i32(cuda.blockIdx.y)
        while kv_head < num_kv_heads:
            piece = i32(cuda.blockIdx.x)
            while piece < most * tiles:
                chunk = divide(piece, tiles)
                tile = piece - chunk * tiles
                first_pair = i32(tile * i32(PAIRS))
                pairs = min(rows * group - first_pair, i32(PAIRS))
                seen = positions[token + divide(first_pair + pairs - i32(1), group)] + i32(1)
                chunks = ceil_div(seen, i32(CHUNK_KEYS))
                start = i32(chunk * i32(CHUNK_KEYS))
                if chunk < chunks:
                    keys = min(seen - start, i32(CHUNK_KEYS))
                    fetch_keys(sums, k_cache, block_tables, slot, kv_head, start, keys, warp, warps)
                    fetch_values(
                        value_ring, v_cache, block_tables, slot, kv_head, start, share_keys, keys, slabs, parts, warp, warps
                    )
                    attend_scores(
                        scores,
                        i32(CHUNK_KEYS),
                        sums,
                        query,
                        k_cache,
                        block_tables,
                        slot,
                        kv_head,
                        token,
                        group,
                        first_pair,
                        pairs,
                        start,
                        keys,
                        warp,
                        warps,
                    )
                    cuda.syncthreads()
                    chunk_softmax(
                        scores,
                        largest,
                        normalizer,
                        positions,
                        token,
                        group,
                        first_pair,
                        pairs,
                        start,
                        keys,
                        scale,
                        warp,
                        warps,
                    )
                    cuda.syncthreads()
                    unit = i32(warp)
                    while unit < slabs * parts:
                        part = divide(unit, slabs)
                        attend_values(
                            sums,
                            unit,
                            scores,
                            i32(CHUNK_KEYS),
                            value_ring,
                            v_cache,
                            block_tables,
                            slot,
                            kv_head,
                            pairs,
                            start,
                            part * share_keys,
                            (part + i32(1)) * share_keys,
                            keys,
                            (unit - part * slabs) * i32(SLAB),
                        )
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
                            out[token + row, head * head_dim + d] = narrow(total * (f32(1.0) / normalizer[p]), out)
                        else:
                            totals[chunk, token + row, head, d] = total
                            if d == 0:
                                stats[chunk, token + row, head, 0] = largest[p]
                                stats[chunk, token + row, head, 1] = normalizer[p]
                        item += i32(cuda.blockDim.x)
                    cuda.syncthreads()
                    if chunks > 1:
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
                                combine_chunks(out, totals, stats, positions, token + row, head, head_dim)
                                p += warps
                            if cuda.threadIdx.x == 0:
                                arrivals[request, kv_head, tile] = 0
                        cuda.syncthreads()
                piece += i32(cuda.gridDim.x)
            kv_head += i32(cuda.gridDim.y)
        request += i32(cuda.gridDim.z)


@device_function
def clamp_chunk(j, ahead, count):
    """j + ahead, or the last of `count`: what is read there is weighed with 0."""
    return min(j + ahead, count - i32(1))


@device_function
def chunk_weight(keep, place, j, ahead):
    """What lane `place` keeps of its chunk, 0 where it stands for one beyond the last. Called by a whole warp."""
    weight = warp_broadcast(keep, place)
    if place < j + ahead:
        return f32(0.0)
    return weight


@device_function
def combine_chunks(out, totals, stats, positions, row, head, head_dim):
    """out = the softmax over the chunks that a row sees, for one head: rescaled to the largest, in order. Called by a whole warp.

    A lane weighs a chunk and tells the others; each lane adds up four dims, of four chunks at once, so that sixteen loads are under
    way. A row that sees one chunk alone gets the bits that the short way gives it: keep is 1 there, and the quotient is a product
    with the reciprocal in both places, because a compiler may choose either for a division.
    """
    chunks = ceil_div(positions[row] + i32(1), i32(CHUNK_KEYS))
    top = NEG_INF
    for chunk in range(lane(), chunks, warp_size()):
        top = max(top, stats[chunk, row, head, 0])
    top = warp_max(top)
    column, last = head * head_dim, head_dim - i32(1)
    dim = i32(0)
    while dim < head_dim:
        d0, d1 = min(dim + lane(), last), min(dim + lane() + warp_size(), last)
        d2, d3 = min(dim + lane() + i32(2) * warp_size(), last), min(dim + lane() + i32(3) * warp_size(), last)
        t0, t1, t2, t3, normalizer = f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0)
        base = i32(0)
        while base < chunks:
            mine, keep, share = base + lane(), f32(0.0), f32(0.0)
            if mine < chunks:
                keep = exp(stats[mine, row, head, 0] - top)
                share = keep * stats[mine, row, head, 1]
            normalizer += warp_sum(share)
            count = min(chunks - base, warp_size())
            j = i32(0)
            while j < count:
                j1, j2, j3 = clamp_chunk(j, i32(1), count), clamp_chunk(j, i32(2), count), clamp_chunk(j, i32(3), count)
                k0, k1 = warp_broadcast(keep, j), chunk_weight(keep, j1, j, i32(1))
                k2, k3 = chunk_weight(keep, j2, j, i32(2)), chunk_weight(keep, j3, j, i32(3))
                c0, c1, c2, c3 = base + j, base + j1, base + j2, base + j3
                a0, a1 = totals[c0, row, head, d0], totals[c0, row, head, d1]
                a2, a3 = totals[c0, row, head, d2], totals[c0, row, head, d3]
                b0, b1 = totals[c1, row, head, d0], totals[c1, row, head, d1]
                b2, b3 = totals[c1, row, head, d2], totals[c1, row, head, d3]
                e0, e1 = totals[c2, row, head, d0], totals[c2, row, head, d1]
                e2, e3 = totals[c2, row, head, d2], totals[c2, row, head, d3]
                f0, f1 = totals[c3, row, head, d0], totals[c3, row, head, d1]
                f2, f3 = totals[c3, row, head, d2], totals[c3, row, head, d3]
                t0 = t0 + k0 * a0 + k1 * b0 + k2 * e0 + k3 * f0
                t1 = t1 + k0 * a1 + k1 * b1 + k2 * e1 + k3 * f1
                t2 = t2 + k0 * a2 + k1 * b2 + k2 * e2 + k3 * f2
                t3 = t3 + k0 * a3 + k1 * b3 + k2 * e3 + k3 * f3
                j += i32(4)
            base += warp_size()
        share = f32(1.0) / normalizer
        out[row, column + d0] = narrow(t0 * share, out)
        out[row, column + d1] = narrow(t1 * share, out)
        out[row, column + d2] = narrow(t2 * share, out)
        out[row, column + d3] = narrow(t3 * share, out)
        dim += i32(4) * warp_size()


@kernel(writes=("out",))
def attend_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests
):
    """What `attend` computes, for steps with many rows: a block takes sixteen pairs over all their keys, with a running softmax.

    The rows fill the GPU here, so keys need not be split and nothing is combined. Keys and values are read once for every sixteen
    pairs, mostly from L2. The order of sums differs from `attend`'s.

    Args:
        as in `attend`.

    Launch: grid (n, kv heads, requests) for any n, about rows * group / 16, four warps. Block-wide barriers are reached by all its
    threads. Safe under capture. Oracle: oracle_fused.attend.
    """
    scores = cuda.shared.array(_SCORES, f32)
    sums = cuda.shared.array(RING, f32)
    value_ring = cuda.shared.array(RING, f32)
    largest = cuda.shared.array(PAIRS, f32)
    normalizer = cuda.shared.array(PAIRS, f32)
    running = cuda.shared.array(_RUNNING, f32)
    running_largest = cuda.shared.array(PAIRS, f32)
    running_normalizer = cuda.shared.array(PAIRS, f32)
    num_kv_heads, head_dim = i32(k_cache.shape[2]), i32(k_cache.shape[3])
    group = divide(num_heads, num_kv_heads)
    tid = i32(cuda.threadIdx.x)
    warp, warps = divide(tid, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    slabs = ceil_div(head_dim, i32(SLAB))
    parts = max(divide(min(warps, i32(_UNITS)), slabs), i32(1))
    share_keys = ceil_div(i32(CHUNK_KEYS // 16), parts) * i32(16)
    request = i32(cuda.blockIdx.z)
    while request < num_requests[0]:
        token, slot = query_start_loc[request], idx_mapping[request]
        rows = query_start_loc[request + 1] - token
        kv_head = i32(cuda.blockIdx.y)
        while kv_head < num_kv_heads:
            first_pair = i32(cuda.blockIdx.x * PAIRS)
            while first_pair < rows * group:
                pairs = min(rows * group - first_pair, i32(PAIRS))
                last_row = divide(first_pair + pairs - i32(1), group)
                num_keys = positions[token + last_row] + i32(1)
                item = tid
                while item < pairs * head_dim:
                    running[item] = f32(0.0)
                    item += i32(cuda.blockDim.x)
                p = tid
                while p < pairs:
                    running_largest[p] = NEG_INF
                    running_normalizer[p] = f32(0.0)
                    p += i32(cuda.blockDim.x)
                start = i32(0)
                while start < num_keys:
                    keys = min(num_keys - start, i32(CHUNK_KEYS))
                    fetch_keys(sums, k_cache, block_tables, slot, kv_head, start, keys, warp, warps)
                    fetch_values(
                        value_ring, v_cache, block_tables, slot, kv_head, start, share_keys, keys, slabs, parts, warp, warps
                    )
                    attend_scores(
                        scores,
                        i32(CHUNK_KEYS),
                        sums,
                        query,
                        k_cache,
                        block_tables,
                        slot,
                        kv_head,
                        token,
                        group,
                        first_pair,
                        pairs,
                        start,
                        keys,
                        warp,
                        warps,
                    )
                    cuda.syncthreads()
                    chunk_softmax(
                        scores,
                        largest,
                        normalizer,
                        positions,
                        token,
                        group,
                        first_pair,
                        pairs,
                        start,
                        keys,
                        scale,
                        warp,
                        warps,
                    )
                    cuda.syncthreads()
                    unit = i32(warp)
                    while unit < slabs * parts:
                        part = divide(unit, slabs)
                        attend_values(
                            sums,
                            unit,
                            scores,
                            i32(CHUNK_KEYS),
                            value_ring,
                            v_cache,
                            block_tables,
                            slot,
                            kv_head,
                            pairs,
                            start,
                            part * share_keys,
                            (part + i32(1)) * share_keys,
                            keys,
                            (unit - part * slabs) * i32(SLAB),
                        )
                        unit += warps
                    cuda.syncthreads()
                    item = tid
                    while item < pairs * head_dim:
                        p = divide(item, head_dim)
                        d = item - p * head_dim
                        top = max(running_largest[p], largest[p])
                        total = running[item] * exp(running_largest[p] - top)
                        total += chunk_total(sums, parts, slabs, p, d) * exp(largest[p] - top)
                        running[item] = total
                        item += i32(cuda.blockDim.x)
                    cuda.syncthreads()
                    p = tid
                    while p < pairs:
                        top = max(running_largest[p], largest[p])
                        kept = running_normalizer[p] * exp(running_largest[p] - top)
                        running_normalizer[p] = kept + normalizer[p] * exp(largest[p] - top)
                        running_largest[p] = top
                        p += i32(cuda.blockDim.x)
                    cuda.syncthreads()
                    start += i32(CHUNK_KEYS)
                item = tid
                while item < pairs * head_dim:
                    p = divide(item, head_dim)
                    row = divide(first_pair + p, group)
                    head = kv_head * group + first_pair + p - row * group
                    column = head * head_dim + item - p * head_dim
                    out[token + row, column] = narrow(running[item] * (f32(1.0) / running_normalizer[p]), out)
                    item += i32(cuda.blockDim.x)
                cuda.syncthreads()
                first_pair += i32(cuda.gridDim.x * PAIRS)
            kv_head += i32(cuda.gridDim.y)
        request += i32(cuda.gridDim.z)
