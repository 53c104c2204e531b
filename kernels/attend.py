"""Attention of steps with many rows over paged keys: prompts, and whatever comes with them.

A block takes pairs of a query row of a request and a query head of a kv head over all their keys, a chunk at a time, with a running
softmax (FlashAttention, Dao, Fu, Ermon, Rudra and Ré, 2022): on a GPU in 16 bits 64 of them on tensor cores
(kernels/attend_rows_gpu.py), elsewhere sixteen (kernels/attend_tile.py).
"""

from __future__ import annotations

from typing import Any

from kernels.attend_tile import PAIRS, RUNNING, SCORES, SUMS, attend_requests
from kernels.lang import SIMULATED, cuda, f32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import primitive

if not SIMULATED:
    import kernels.attend_rows_gpu as attend_rows_gpu

BLOCK_PAIRS = 64
"""Pairs that a block of the GPU's form takes: sixteen of each of four warps."""

NARROW_HEAD = 64
"""Longest head that `attend_rows` takes on a GPU in 16 bits; `attend_wide_rows` has registers for more."""


def ring_bytes(head_dim: int) -> int:
    """Dynamic shared memory of the GPU's form: two tiles of 64 keys and values in 16 bits, and what it begins at 16 bytes with."""
    return 2 * 2 * 64 * 2 * head_dim + 16


def _gpu_rows(out: Any, query: Any, k_cache: Any, *rest: Any) -> Any:
    return attend_rows_gpu.ROWS.get(str(k_cache.dtype)) if str(query.dtype) == str(k_cache.dtype) else None


def _gpu_wide_rows(out: Any, query: Any, k_cache: Any, *rest: Any) -> Any:
    return attend_rows_gpu.WIDE_ROWS.get(str(k_cache.dtype)) if str(query.dtype) == str(k_cache.dtype) else None


def _gpu_has_rows(query: Any, k_cache: Any) -> Any:
    return attend_rows_gpu.yes if _gpu_rows(None, query, k_cache) else None


@primitive(_gpu_has_rows)
def has_tensor_rows(query, k_cache):
    """Do `tensor_rows` and `tensor_wide_rows` do all the work?"""
    return False


@primitive(_gpu_rows)
def tensor_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests, ring,
    stats,
):  # fmt: skip
    """What `attend_requests` does, on a GPU with queries and a cache in 16 bits, for hd = 64; nothing elsewhere.

    ring: dynamic shared memory of ring_bytes(hd); stats: float32 shared [SCORES].
    """


@primitive(_gpu_wide_rows)
def tensor_wide_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests, ring,
    stats,
):  # fmt: skip
    """The same for hd = 128."""


@kernel(writes=("out",), overlap=True, shared=ring_bytes(64))
def attend_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests
):
    """out[t, h] = softmax(scale * q[t, h] . K) V over the keys 0..positions[t] of the row's request, for the live requests.

    On a GPU in 16 bits the blocks of a cluster share the keys, by tiles of 64 positions, and add up in order of rank: what a row
    yields depends on its own keys and on the size of the cluster.

    Args:
        out: [T, nh * hd], any storage type.
        query: [T, nh * hd], rotated queries.
        k_cache, v_cache: [blocks, block_size, nkv, hd], the step's own keys included (kernels/rotate.py); hd <= MAX_HEAD_DIM,
            and 64 on a GPU in 16 bits.
        block_tables: int32 [N, B]; an entry below 0 is read as block 0 (its row is thrown away).
        positions: int32 [T], ascending within a request.
        idx_mapping: int32 [R], slot of a request.
        query_start_loc: int32 [R + 1], rows of request r: query_start_loc[r] .. query_start_loc[r + 1].
        num_heads: int32.
        scale: float32.
        num_requests: int32 [1], live requests.

    Launch: any grid of up to three axes, four warps. On a GPU in 16 bits: (tiles of BLOCK_PAIRS pairs over all requests, kv heads)
    at best, clusters of any size; elsewhere (rows * group / PAIRS, kv heads, requests). Barriers are reached by all threads of a
    cluster: loops depend on blockIdx and device state alone. Safe under capture. Oracle: oracle_fused.attend.
    """
    ring = cuda.shared.array(0, f32)
    scores = cuda.shared.array(SCORES, f32)
    sums = cuda.shared.array(SUMS, f32)
    largest = cuda.shared.array(PAIRS, f32)
    normalizer = cuda.shared.array(PAIRS, f32)
    running = cuda.shared.array(RUNNING, f32)
    running_largest = cuda.shared.array(PAIRS, f32)
    running_normalizer = cuda.shared.array(PAIRS, f32)
    wait_for_launches()
    let_next_launch_start()
    if has_tensor_rows(query, k_cache):
        tensor_rows(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            ring, scores,
        )  # fmt: skip
    else:
        attend_requests(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            scores, sums, largest, normalizer, running, running_largest, running_normalizer,
        )  # fmt: skip


@kernel(writes=("out",), overlap=True, shared=ring_bytes(128))
def attend_wide_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests
):
    """`attend_rows`, whose 16-bit form on a GPU takes heads of 128 dims, with the registers and shared memory that these need.

    Args: as in `attend_rows`. Launch and ownership as there. Oracle: oracle_fused.attend.
    """
    ring = cuda.shared.array(0, f32)
    scores = cuda.shared.array(SCORES, f32)
    sums = cuda.shared.array(SUMS, f32)
    largest = cuda.shared.array(PAIRS, f32)
    normalizer = cuda.shared.array(PAIRS, f32)
    running = cuda.shared.array(RUNNING, f32)
    running_largest = cuda.shared.array(PAIRS, f32)
    running_normalizer = cuda.shared.array(PAIRS, f32)
    wait_for_launches()
    let_next_launch_start()
    if has_tensor_rows(query, k_cache):
        tensor_wide_rows(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            ring, scores,
        )  # fmt: skip
    else:
        attend_requests(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            scores, sums, largest, normalizer, running, running_largest, running_normalizer,
        )  # fmt: skip
