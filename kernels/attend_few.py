"""Attention of decode and verify steps of few tiles of pairs, and of all steps with `numerics: batch_invariant`.

What kernels/attend_step.py computes, in the form of the tensor cores that was faster there: between the small products of a small
model, clusters of eight blocks of four warps (kernels/few_step_gpu.py). Elsewhere both are the same.
"""

from __future__ import annotations

from typing import Any

from kernels.attend_step import _EARLY, _REGISTERS, MAX_HEAD_DIM, PAIRS, WARPS, attend_requests
from kernels.lang import SIMULATED, cuda, f32, kernel
from kernels.lang_warp import primitive

if not SIMULATED:
    import kernels.few_step_gpu as few_step_gpu

CLUSTER = 8
"""Blocks that share the keys of a tile of pairs."""

_RING = WARPS * PAIRS * MAX_HEAD_DIM + 4
_QUERIES = PAIRS * MAX_HEAD_DIM + 4
_STATS = 2 * WARPS * PAIRS + 4


def _gpu_few(out: Any, k_cache: Any, *rest: Any) -> Any:
    return few_step_gpu.STEP.get(str(k_cache.dtype))


def _gpu_has_few(k_cache: Any) -> Any:
    return few_step_gpu.yes if str(k_cache.dtype) in few_step_gpu.STEP else None


@primitive(_gpu_has_few)
def has_tensor_few(k_cache):
    """Does `tensor_few` do all the work?"""
    return False


@primitive(_gpu_few)
def tensor_few(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
    num_heads, eps, scale, stored, num_requests, ring, queries, stats,
):  # fmt: skip
    """What `attend_requests` does, on a GPU with a cache in 16 bits, for hd = 64 or 128; nothing elsewhere."""


@kernel(writes=("out", "k_cache", "v_cache"), max_registers=_REGISTERS, overlap=True, early=_EARLY, cluster=CLUSTER)
def attend_few(
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

    Launch: grid (tiles of pairs, kv heads, requests), any of them, four warps; a GPU makes a cluster of each tile. Barriers are
    reached by all threads of a cluster: loops depend on blockIdx and device state alone. Safe under capture, and idempotent.
    Oracle: oracle_attend.attend_step.
    """
    ring = cuda.shared.array(_RING, f32)
    queries = cuda.shared.array(_QUERIES, f32)
    stats = cuda.shared.array(_STATS, f32)
    if has_tensor_few(k_cache):
        tensor_few(
            out, k_cache, v_cache, qkv, None, None, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
            num_heads, f32(0.0), scale, stored, num_requests, ring, queries, stats,
        )  # fmt: skip
    else:
        attend_requests(
            out, k_cache, v_cache, qkv, None, None, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
            num_heads, f32(0.0), scale, stored, num_requests, ring, queries, stats,
        )  # fmt: skip


@kernel(writes=("out", "k_cache", "v_cache"), max_registers=_REGISTERS, overlap=True, early=_EARLY, cluster=CLUSTER)
def norm_attend_few(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
    num_heads, eps, scale, stored, num_requests,
):  # fmt: skip
    """`attend_few` of q and k heads that go through RMSNorm first (Qwen3).

    Args:
        q_gain, k_gain: float32 [hd].
        eps: float32.
        others: as in `attend_few`.

    Launch and ownership as in `attend_few`. Oracle: oracle_attend.norm_attend_step.
    """
    ring = cuda.shared.array(_RING, f32)
    queries = cuda.shared.array(_QUERIES, f32)
    stats = cuda.shared.array(_STATS, f32)
    if has_tensor_few(k_cache):
        tensor_few(
            out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
            num_heads, eps, scale, stored, num_requests, ring, queries, stats,
        )  # fmt: skip
    else:
        attend_requests(
            out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
            num_heads, eps, scale, stored, num_requests, ring, queries, stats,
        )  # fmt: skip
