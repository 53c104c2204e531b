"""What kernels/rotate.py does, for steps of many rows: on a GPU in 16 bits a lane takes sixteen dims of a head.

Sums of squares have another order there, so `numerics: batch_invariant` keeps to kernels/rotate.py, which adds up as the
attention of small steps does (kernels/attend_heads_gpu.py).
"""

from __future__ import annotations

from typing import Any

from kernels.lang import SIMULATED, device_function, f32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import primitive
from kernels.rotate import rotate_rows

if not SIMULATED:
    import kernels.rotate_gpu as rotate_gpu

DIMS_A_LANE = 16
"""Of a head, in the GPU's form."""


def _gpu_rotate(query: Any, k_cache: Any, *rest: Any) -> Any:
    return rotate_gpu.ROTATE.get(str(k_cache.dtype)) if str(query.dtype) == str(k_cache.dtype) else None


def _gpu_has_rotate(query: Any, k_cache: Any) -> Any:
    return rotate_gpu.takes if _gpu_rotate(query, k_cache) else None


@primitive(_gpu_has_rotate)
def has_rotate_form(query, k_cache):
    """Does `rotate_form` do all the work?"""
    return False


@primitive(_gpu_rotate)
def rotate_form(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens):
    """What `rotate_rows` does, on a GPU with queries and a cache in 16 bits, for hd = 64 or 128; nothing elsewhere."""


@device_function
def rotate_all(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens):
    """What both kernels below do; gains are None where a model has no norm of heads."""
    if has_rotate_form(query, k_cache):
        wait_for_launches()
        let_next_launch_start()
        rotate_form(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens)
    else:
        rotate_rows(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens)


@kernel(writes=("query", "k_cache", "v_cache"), overlap=True)
def rotate_many(query, k_cache, v_cache, qkv, table, positions, slot_mapping, num_heads, num_tokens):
    """query[t] = rotated q of token t; cache entry slot_mapping[t] = its rotated k and its v; for the live tokens.

    Args: as in kernels/rotate.py: rotate_store.

    Launch: any grid of up to two axes, whole warps: (tokens, n), a warp a head; on a GPU in 16 bits sixteen dims of a head a lane,
    heads counted over all tokens. A lane owns both ends of its pairs. No barrier; safe under capture, and idempotent.
    Oracle: oracle_fused.rotate_store.
    """
    rotate_all(query, k_cache, v_cache, qkv, None, None, table, positions, slot_mapping, num_heads, f32(0.0), num_tokens)


@kernel(writes=("query", "k_cache", "v_cache"), overlap=True)
def norm_rotate_many(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens):
    """`rotate_many` of q and k heads that go through RMSNorm first (Qwen3).

    Args:
        q_gain, k_gain: float32 [hd].
        eps: float32.
        others: as in `rotate_many`.

    Launch and ownership as in `rotate_many`. Oracle: oracle_fused.norm_rotate_store.
    """
    rotate_all(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens)
