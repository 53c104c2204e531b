"""Attention of decode and verify steps of few tiles of pairs, and of all steps with `numerics: batch_invariant`.

What kernels/attend_step.py computes. A GPU's 16-bit form has another layout of keys and values (kernels/attend_lanes_gpu.py), which
was faster between the small products of a small model: clusters of eight blocks of four warps. Elsewhere both are alike.
"""

from __future__ import annotations

from kernels.attend_step import EARLY, MAX_HEAD_DIM, PAIRS, QUERIES, REGISTERS, STATS, WARPS, attend_all
from kernels.lang import cuda, f32, kernel

CLUSTER = 8
"""Blocks that share the keys of a tile of pairs."""

_RING = WARPS * PAIRS * MAX_HEAD_DIM + 4


@kernel(writes=("out", "k_cache", "v_cache"), max_registers=REGISTERS, overlap=True, early=EARLY, cluster=CLUSTER)
def attend_few(
    out, k_cache, v_cache, qkv, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc, num_heads, scale,
    stored, num_requests,
):  # fmt: skip
    """`attend_step` in few blocks.

    Args: as in kernels/attend_step.py: attend_step.

    Launch: grid (tiles of pairs, kv heads, requests), any of them, four warps; a GPU makes a cluster of each tile. Barriers are
    reached by all threads of a cluster: loops depend on blockIdx and device state alone. Safe under capture, and idempotent.
    Oracle: oracle_attend.attend_step.
    """
    ring = cuda.shared.array(_RING, f32)
    queries = cuda.shared.array(QUERIES, f32)
    stats = cuda.shared.array(STATS, f32)
    attend_all(
        out, k_cache, v_cache, qkv, None, None, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
        num_heads, f32(0.0), scale, stored, num_requests, ring, ring, queries, stats, True,
    )  # fmt: skip


@kernel(writes=("out", "k_cache", "v_cache"), max_registers=REGISTERS, overlap=True, early=EARLY, cluster=CLUSTER)
def norm_attend_few(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
    num_heads, eps, scale, stored, num_requests,
):  # fmt: skip
    """`attend_few` of q and k heads that go through RMSNorm first (Qwen3).

    Args: as in kernels/attend_step.py: norm_attend_step.

    Launch and ownership as in `attend_few`. Oracle: oracle_attend.norm_attend_step.
    """
    ring = cuda.shared.array(_RING, f32)
    queries = cuda.shared.array(QUERIES, f32)
    stats = cuda.shared.array(STATS, f32)
    attend_all(
        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
        num_heads, eps, scale, stored, num_requests, ring, ring, queries, stats, True,
    )  # fmt: skip
