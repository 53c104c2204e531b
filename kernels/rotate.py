"""From the projection to what attention reads: heads of q and k normalised where the model does so, rotated, k and v stored."""

from __future__ import annotations

from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_fast import inverse_root
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import largest, narrow, widen
from kernels.lang_warp import lane, warp_size, warp_sum
from kernels.project import divide

_NAN = f32(float("nan"))


@device_function
def rotate_head(qkv, table, row, start, position, i, half, scale, gain):
    """Both ends of pair i of a head, normalised (gain None: not) and turned by the angle of its position."""
    first, second = widen(qkv[row, start + i]) * scale, widen(qkv[row, start + half + i]) * scale
    if gain is not None:
        first, second = first * gain[i], second * gain[half + i]
    cosine, sine = table[position, i], table[position, half + i]
    return first * cosine - second * sine, second * cosine + first * sine


@device_function
def kept(key, value, cache):
    """One dim of a key and of its value as a cache keeps them: where the value is NaN, or infinite in the type of the cache, it is
    0, and the key is NaN.

    So whoever sees the key yields NaN, and nobody else: tensor cores weigh the values of keys that a row does not see by 0, which
    NaN would outlive.
    """
    if abs(value) <= largest(cache):
        return key, value
    return _NAN, f32(0.0)


@device_function
def head_scale(qkv, gain, row, start, head_dim, eps):
    """1 / rms of a head, 1 where a model has no norm of heads. Called by a whole warp."""
    scale = f32(1.0)
    if gain is not None:
        squares = f32(0.0)
        for i in range(lane(), head_dim, warp_size()):
            squares += widen(qkv[row, start + i]) * widen(qkv[row, start + i])
        scale = inverse_root(warp_sum(squares) / f32(head_dim) + eps)
    return scale


@device_function
def store_heads(
    k_cache, v_cache, qkv, k_gain, table, positions, slot_mapping, token, rows, num_heads, kv_head, eps, warp, warps
):
    """The cache entries of one kv head for rows token .. token + rows: rotated k, and v. Called by `warps` warps."""
    block_size, num_kv_heads, head_dim = i32(k_cache.shape[1]), i32(k_cache.shape[2]), i32(k_cache.shape[3])
    half = head_dim // i32(2)
    j = i32(warp)
    while j < rows:
        row = token + j
        entry = slot_mapping[row]
        if entry >= 0:
            block = divide(entry, block_size)
            offset = entry - block * block_size
            start, value = (num_heads + kv_head) * head_dim, (num_heads + num_kv_heads + kv_head) * head_dim
            scale = head_scale(qkv, k_gain, row, start, head_dim, eps)
            for i in range(lane(), half, warp_size()):
                first, second = rotate_head(qkv, table, row, start, positions[row], i, half, scale, k_gain)
                first, near = kept(first, widen(qkv[row, value + i]), v_cache)
                second, far = kept(second, widen(qkv[row, value + half + i]), v_cache)
                k_cache[block, offset, kv_head, i] = narrow(first, k_cache)
                k_cache[block, offset, kv_head, half + i] = narrow(second, k_cache)
                v_cache[block, offset, kv_head, i] = narrow(near, v_cache)
                v_cache[block, offset, kv_head, half + i] = narrow(far, v_cache)
        j += warps


@device_function
def rotate_rows(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens):
    """What both kernels below do; gains are None where a model has no norm of heads."""
    wait_for_launches()
    let_next_launch_start()
    block_size, num_kv_heads, head_dim = i32(k_cache.shape[1]), i32(k_cache.shape[2]), i32(k_cache.shape[3])
    half = head_dim // i32(2)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    row = i32(cuda.blockIdx.x)
    while row < num_tokens[0]:
        entry, position = slot_mapping[row], positions[row]
        block = divide(max(entry, i32(0)), block_size)
        offset = entry - block * block_size
        head = i32(cuda.blockIdx.y * warps + warp)
        while head < num_heads + i32(2) * num_kv_heads:
            start = head * head_dim
            is_query, is_key = head < num_heads, head < num_heads + num_kv_heads
            scale = head_scale(qkv, q_gain, row, start, head_dim, eps)
            if is_query:
                for i in range(lane(), half, warp_size()):
                    first, second = rotate_head(qkv, table, row, start, position, i, half, scale, q_gain)
                    query[row, start + i] = narrow(first, query)
                    query[row, start + half + i] = narrow(second, query)
            elif is_key:
                if entry >= 0:
                    value = start + num_kv_heads * head_dim
                    for i in range(lane(), half, warp_size()):
                        first, second = rotate_head(qkv, table, row, start, position, i, half, scale, k_gain)
                        first = kept(first, widen(qkv[row, value + i]), v_cache)[0]
                        second = kept(second, widen(qkv[row, value + half + i]), v_cache)[0]
                        k_cache[block, offset, head - num_heads, i] = narrow(first, k_cache)
                        k_cache[block, offset, head - num_heads, half + i] = narrow(second, k_cache)
            elif entry >= 0:
                for i in range(lane(), head_dim, warp_size()):
                    value_of_i = kept(f32(0.0), widen(qkv[row, start + i]), v_cache)[1]
                    v_cache[block, offset, head - num_heads - num_kv_heads, i] = narrow(value_of_i, v_cache)
            head += i32(cuda.gridDim.y * warps)
        row += i32(cuda.gridDim.x)


@kernel(writes=("query", "k_cache", "v_cache"), overlap=True)
def rotate_store(query, k_cache, v_cache, qkv, table, positions, slot_mapping, num_heads, num_tokens):
    """query[t] = rotated q of token t; cache entry slot_mapping[t] = its rotated k and its v; for the live tokens.

    Args:
        query: [T, nh * hd], any storage type.
        k_cache, v_cache: [blocks, block_size, nkv, hd], any storage type.
        qkv: [T, (nh + 2 nkv) * hd], any storage type, bias included.
        table: float32 [L, hd], cos | sin (kernels/rope.py).
        positions: int32 [T], in [0, L).
        slot_mapping: int32 [T], block * block_size + offset, or -1: nothing is stored.
        num_heads: int32.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n), a warp a head. A lane owns both ends of its pairs. No barrier; safe under capture, and idempotent.
    Oracle: oracle_fused.rotate_store.
    """
    rotate_rows(query, k_cache, v_cache, qkv, None, None, table, positions, slot_mapping, num_heads, f32(0.0), num_tokens)


@kernel(writes=("query", "k_cache", "v_cache"), overlap=True)
def norm_rotate_store(
    query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens
):
    """`rotate_store` of q and k heads that go through RMSNorm first (Qwen3).

    Args:
        q_gain, k_gain: float32 [hd].
        eps: float32.
        others: as in `rotate_store`.

    Launch and ownership as in `rotate_store`. Oracle: oracle_fused.norm_rotate_store.
    """
    rotate_rows(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens)
