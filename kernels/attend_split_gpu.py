"""Where the sums of a block of attention go (kernels/attend_rows_gpu.py): to the output, or to the blocks of the cluster that have
been over other keys, each of which adds up a share of the dims.

A warp's sums lie as they come: sixteen bytes of a lane at lane * 16 for each eight dims, so nobody waits for a bank.
"""

from __future__ import annotations

from typing import Any

from kernels.attend_slab_gpu import scale_sums
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, i64, u32
from kernels.lang_element import exp2, write4, write16
from kernels.lang_matrix import larger, put4, read4
from kernels.lang_overlap import cluster_address, read_cluster, read_cluster_four
from kernels.lang_warp import lane

WARPS = 4
"""Warps of a block."""

_STAT_BYTES = 2 * 16 * 4  # of a warp: maxima of sixteen pairs, then totals
_WEIGHTS = WARPS * _STAT_BYTES  # behind them, for each block of the cluster: a weight for each pair
_PAIRS = 16 * WARPS


@device_function
def keep_stats(stat_base, warp, near_top, far_top, near_total, far_total):
    if (lane() & i32(3)) == i32(0):
        at = u32(stat_base + u32(warp * i32(_STAT_BYTES) + lane()))  # 4 * g
        write4(at, near_top)
        write4(u32(at + u32(32)), far_top)
        write4(u32(at + u32(64)), near_total)
        write4(u32(at + u32(96)), far_total)


@device_function
def sums_address(ring, warp, head_dim):
    """Where this lane's part of a warp's sums is kept: in the place of keys and values."""
    return u32(ring + u32(warp * i32(16 * 4 * head_dim)) + u32(lane() * i32(16)))


@device_function
def _keep(at, s):
    write16(at, s[0], s[1], s[2], s[3])


@device_function
def _keep_slab(at, s):
    _keep(at, s[0])
    _keep(u32(at + u32(512)), s[1])
    _keep(u32(at + u32(1024)), s[2])
    _keep(u32(at + u32(1536)), s[3])
    _keep(u32(at + u32(2048)), s[4])
    _keep(u32(at + u32(2560)), s[5])
    _keep(u32(at + u32(3072)), s[6])
    _keep(u32(at + u32(3584)), s[7])


@device_function
def keep_sums(ring, warp, head_dim, o, u, wide):
    at = sums_address(ring, warp, head_dim)
    _keep_slab(at, o)
    if wide:
        _keep_slab(u32(at + u32(4096)), u)


def store_slabs_with(pair: Any) -> Any:
    @device_function
    def store(out, near_at, far_at, near, far, s):
        if near:
            put4(out, near_at, pair(s[0], s[1]))
        if far:
            put4(out, far_at, pair(s[2], s[3]))

    @device_function
    def store_slab(out, near_at, far_at, near, far, s):
        store(out, near_at, far_at, near, far, s[0])
        store(out, near_at + i64(8), far_at + i64(8), near, far, s[1])
        store(out, near_at + i64(16), far_at + i64(16), near, far, s[2])
        store(out, near_at + i64(24), far_at + i64(24), near, far, s[3])
        store(out, near_at + i64(32), far_at + i64(32), near, far, s[4])
        store(out, near_at + i64(40), far_at + i64(40), near, far, s[5])
        store(out, near_at + i64(48), far_at + i64(48), near, far, s[6])
        store(out, near_at + i64(56), far_at + i64(56), near, far, s[7])

    @device_function
    def store_slabs(out, near_at, far_at, near, far, near_share, far_share, o, u, wide):
        """A lane's rows of the output, near and far where these are there: the sums times the rows' shares."""
        store_slab(out, near_at, far_at, near, far, scale_sums(o, near_share, far_share))
        if wide:
            store_slab(out, near_at + i64(64), far_at + i64(64), near, far, scale_sums(u, near_share, far_share))

    return store_slabs


def fold_blocks(pair: Any, head_dim: int) -> Any:
    @device_function
    def weights_of(stat_base, active):
        """What the sums of each block count for in each pair: rescaled to the largest maximum, over the total. In order of rank."""
        p = i32(cuda.threadIdx.x)
        if p < i32(_PAIRS):
            stat = u32(stat_base + u32((p >> i32(4)) * i32(_STAT_BYTES) + (p & i32(15)) * i32(4)))
            top, total = NEG_INF, f32(0.0)
            for block in range(active):
                top = larger(top, read_cluster(cluster_address(stat, i32(block))))
            for block in range(active):
                there = cluster_address(stat, i32(block))
                total += read_cluster(u32(there + u32(64))) * exp2(read_cluster(there) - top)
            for block in range(active):
                weight = exp2(read_cluster(cluster_address(stat, i32(block))) - top) / total
                write4(u32(stat_base + u32(i32(_WEIGHTS) + i32(block) * i32(4 * _PAIRS) + p * i32(4))), weight)

    @device_function
    def fold(out, near_at, far_at, near, far, ring, stat_base, rank, ranks, active):
        """Behind a barrier of the cluster; before the next one nobody touches its sums."""
        weights_of(stat_base, active)
        cuda.syncthreads()
        warp = i32(cuda.threadIdx.x >> 5)
        sums = sums_address(ring, warp, head_dim)
        weights = u32(stat_base + u32(i32(_WEIGHTS) + warp * i32(64) + (lane() >> i32(2)) * i32(4)))
        for j in range(rank, head_dim // 8, ranks):
            a, b, c, d = f32(0.0), f32(0.0), f32(0.0), f32(0.0)
            for block in range(active):
                s = read_cluster_four(cluster_address(u32(sums + u32(i32(j) * i32(512))), i32(block)))
                weight = u32(weights + u32(i32(block) * i32(4 * _PAIRS)))
                near_weight, far_weight = read4(weight), read4(u32(weight + u32(32)))
                a, b = a + s[0] * near_weight, b + s[1] * near_weight
                c, d = c + s[2] * far_weight, d + s[3] * far_weight
            if near:
                put4(out, near_at + i64(i32(j) * i32(8)), pair(a, b))
            if far:
                put4(out, far_at + i64(i32(j) * i32(8)), pair(c, d))

    return fold
