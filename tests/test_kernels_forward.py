"""Forward kernels against their NumPy oracles, under njit and in the simulator, over grids and block sizes."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import oracle_forward as oracle
from kernels.attention import paged_attention
from kernels.bias import add_bias
from kernels.embed import embed
from kernels.gather import gather_rows
from kernels.head_norm import head_norm
from kernels.kv_store import store_kv
from kernels.rmsnorm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu
from tests.kernel_cases import Launch, floats, guarded, ints, launches, live, poisoned, untouched
from tests.storage_cases import LIMIT, STORAGES, stored, widened

CAPACITY = 5
ROWS = pytest.mark.parametrize("count", [0, 1, 3, CAPACITY])
ROW_LAUNCHES = launches((1, 1), (2, 3), (7, 4), (1, 32))
HEAD_LAUNCHES = launches((1, 1), ((2, 2), 3), ((5, 7), 2), ((1, 1), 32))
EPS = 1e-5


@ROW_LAUNCHES
@ROWS
def test_embed(launch: Launch, count: int) -> None:
    args = {
        "out": untouched(CAPACITY, 7),
        "table": floats(1, 11, 7),
        "input_ids": poisoned(ints(10, 0, -1, 11, 10), count),  # the last id, a draft that is none, one past the end, a repeat
        "num_tokens": live(count),
    }
    expected = oracle.embed(**args)
    launch.check(embed, args, {"out": expected}, rtol=0, atol=0)
    assert not expected[2:4][: max(count - 2, 0)].any()


@ROW_LAUNCHES
@ROWS
@pytest.mark.parametrize("width", [1, 5, 33])
def test_rms_norm(launch: Launch, count: int, width: int) -> None:
    args = {
        "out": untouched(CAPACITY, width),
        "x": poisoned(floats(2, CAPACITY, width) * 3, count),
        "weight": floats(3, width),
        "eps": EPS,
        "num_tokens": live(count),
    }
    launch.check(rms_norm, args, {"out": oracle.rms_norm(**args)})


@ROW_LAUNCHES
def test_rms_norm_of_a_zero_row_is_zero(launch: Launch) -> None:
    args = {"out": untouched(1, 6), "x": np.zeros((1, 6), np.float32), "weight": floats(3, 6), "eps": EPS, "num_tokens": live(1)}
    launch.check(rms_norm, args, {"out": np.zeros((1, 6), np.float32)}, atol=0)


@ROW_LAUNCHES
@ROWS
@pytest.mark.parametrize("width", [1, 5, 33])
def test_add_rms_norm(launch: Launch, count: int, width: int) -> None:
    args = {
        "out": untouched(CAPACITY, width),
        "residual": guarded(floats(4, CAPACITY, width), count),
        "x": poisoned(floats(5, CAPACITY, width), count),
        "weight": floats(6, width),
        "eps": EPS,
        "num_tokens": live(count),
    }
    out, residual = oracle.add_rms_norm(**args)
    launch.check(add_rms_norm, args, {"out": out, "residual": residual})


@pytest.mark.parametrize("kernel_in_place", [rms_norm, add_rms_norm], ids=lambda k: k.name)
@ROW_LAUNCHES
def test_norms_may_write_over_their_input(launch: Launch, kernel_in_place) -> None:
    x, residual, weight = floats(5, 3, 9), floats(4, 3, 9), floats(6, 9)
    if kernel_in_place is rms_norm:
        expected = oracle.rms_norm(x, x, weight, EPS, live(3))
        launch.run(rms_norm, x, x, weight, EPS, live(3))
    else:
        expected, _ = oracle.add_rms_norm(x, residual, x, weight, EPS, live(3))
        launch.run(add_rms_norm, x, residual, x, weight, EPS, live(3))
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


@ROW_LAUNCHES
@ROWS
def test_add_bias(launch: Launch, count: int) -> None:
    args = {"x": guarded(floats(7, CAPACITY, 13), count), "bias": floats(8, 13), "num_tokens": live(count)}
    launch.check(add_bias, args, {"x": oracle.add_bias(**args)})
HEADS = pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(3, 1, 4), (4, 4, 6), (8, 2, 64)], ids=str)


def qkv_rows(seed: int, num_heads: int, num_kv_heads: int, head_dim: int) -> np.ndarray:
    return floats(seed, CAPACITY, (num_heads + 2 * num_kv_heads) * head_dim)


@HEAD_LAUNCHES
@HEADS
@pytest.mark.parametrize("count", [0, 3])
def test_head_norm(launch: Launch, count: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    args = {
        "qkv": guarded(qkv_rows(9, num_heads, num_kv_heads, head_dim), count),
        "q_weight": floats(10, head_dim),
        "k_weight": floats(11, head_dim),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "eps": EPS,
        "num_tokens": live(count),
    }
    launch.check(head_norm, args, {"qkv": oracle.head_norm(**args)})


@HEAD_LAUNCHES
@HEADS
@pytest.mark.parametrize("count", [0, 3])
def test_rope(launch: Launch, count: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    angles = np.arange(20)[:, None] * 0.7 ** np.arange(head_dim // 2)
    args = {
        "qkv": guarded(qkv_rows(12, num_heads, num_kv_heads, head_dim), count),
        "table": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        "positions": poisoned(ints(19, 0, 7, 7, 1), count),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "num_tokens": live(count),
    }
    launch.check(rope, args, {"qkv": oracle.rope(**args)})


def test_rope_oracle_turns_by_the_difference_of_positions() -> None:
    """The property that rotary embedding is for: q . k depends on the distance alone."""
    angles = np.arange(20)[:, None] * 0.7 ** np.arange(4)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    qkv = np.tile(floats(13, 1, 3 * 8), (4, 1))
    turned = oracle.rope(qkv, table, ints(3, 5, 13, 15), 1, 1, live(4))
    q, k = turned[:, :8], turned[:, 8:16]
    assert q[1] @ k[0] == pytest.approx(q[3] @ k[2], rel=1e-5)
    assert q[1] @ k[0] != pytest.approx(q[2] @ k[0], rel=1e-2)


@HEAD_LAUNCHES
@HEADS
@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_store_kv(launch: Launch, count: int, block_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    blocks = 12 // block_size
    args = {
        "k_cache": floats(14, blocks, block_size, num_kv_heads, head_dim),
        "v_cache": floats(15, blocks, block_size, num_kv_heads, head_dim),
        "qkv": poisoned(qkv_rows(16, num_heads, num_kv_heads, head_dim), count),
        "slot_mapping": ints(11, -1, 0, 5, 6),  # a stale entry behind the live rows must not be followed
        "num_heads": num_heads,
        "num_tokens": live(count),
    }
    k_cache, v_cache = oracle.store_kv(**args)
    launch.check(store_kv, args, {"k_cache": k_cache, "v_cache": v_cache}, rtol=0, atol=0)
@HEAD_LAUNCHES
@pytest.mark.parametrize("storage", STORAGES)
def test_a_value_that_a_cache_cannot_hold_is_0_with_nan_in_its_key(launch: Launch, storage: str) -> None:
    """Values at both sides of the first that the cache's type takes for infinity; what a key is decides nothing."""
    limit = np.float32(LIMIT[storage])
    largest = np.nextafter(limit, np.float32(0))
    keys = np.array([[3, 5, -np.inf, 7, 8, 9], [1, np.nan, 2, 3, 4, 5]], np.float32)
    values = np.array([[0, largest, -largest, limit, np.inf, np.nan], [-limit, 1.5, -1e-3, -np.inf, 2, 3]], np.float32)
    caches = [stored(floats(seed, 1, 3, 1, 6), storage) for seed in (14, 15)]
    qkv = np.hstack([keys, keys, values])
    expected = oracle.store_kv(widened(caches[0]), widened(caches[1]), qkv, ints(2, 0), 1, live(2), float(limit))
    launch.run(store_kv, *caches, qkv, ints(2, 0), 1, live(2))
    for found, wanted in zip(caches, expected, strict=True):
        np.testing.assert_array_equal(widened(found), widened(stored(wanted, storage)))
    lost = np.array([[0, 0, 0, 1, 1, 1], [1, 0, 0, 1, 0, 0]], bool)
    np.testing.assert_array_equal(widened(caches[0])[0, [2, 0], 0], np.where(lost, np.nan, keys))
    np.testing.assert_array_equal(widened(caches[1])[0, [2, 0], 0][lost], 0)


# Slots with different tables, ids scattered over the cache, -1 behind the last block; four queries of two slots plus a pad.
TABLES = np.array([[7, 2, 9, -1], [-1, -1, -1, -1], [0, 8, 3, 5]], np.int32)


def attention_case(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, positions: np.ndarray, count: int) -> dict:
    cache = (10, block_size, num_kv_heads, head_dim)
    k_cache, v_cache = floats(17, *cache), floats(18, *cache)
    for unused in (1, 4, 6):  # blocks of no slot: reading one shows
        k_cache[unused], v_cache[unused] = np.nan, np.nan
    return {
        "out": untouched(CAPACITY, num_heads * head_dim),
        "qkv": poisoned(qkv_rows(19, num_heads, num_kv_heads, head_dim), count),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": TABLES,
        "token_slot": poisoned(ints(2, 0, 2, 0, 2), count),
        "positions": poisoned(positions.astype(np.int32), count),
        "num_heads": num_heads,
        "scale": head_dim**-0.5,
        "num_tokens": live(count),
    }


@launches((1, 1), ((2, 2), 3), ((5, 3), 2), ((1, 1), 32))
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(3, 1, 4), (2, 2, 6), (4, 1, 5)], ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_paged_attention(launch: Launch, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> None:
    positions = ints(0, 1, block_size, 3 * block_size - 1, 0)  # first key, mid, first of the second block, last of the table
    args = attention_case(num_heads, num_kv_heads, head_dim, block_size, positions, 4)
    launch.check(paged_attention, args, {"out": oracle.paged_attention(**args)}, rtol=1e-4, atol=1e-5)


@launches(((2, 2), 3))
@pytest.mark.parametrize("count", [0, 1, CAPACITY])
def test_paged_attention_leaves_pads_alone(launch: Launch, count: int) -> None:
    args = attention_case(4, 2, 4, 2, ints(5, 1, 6, 2, 7), count)
    launch.check(paged_attention, args, {"out": oracle.paged_attention(**args)}, rtol=1e-4, atol=1e-5)


@launches(((2, 1), 64))
@pytest.mark.parametrize("length", [127, 128, 129, 300])
def test_paged_attention_across_chunks_of_keys(launch: Launch, length: int) -> None:
    """Scores that grow and that fall along the keys, so that the running maximum moves between chunks, or never again."""
    head_dim, block_size = 4, 100
    args = attention_case(2, 1, head_dim, block_size, np.full(CAPACITY, length - 1), 2)
    for slot, direction in ((2, 40.0), (0, -40.0)):
        ramp = np.linspace(0, direction, 300, dtype=np.float32).reshape(3, block_size)
        args["k_cache"][TABLES[slot, :3], :, 0, 0] = ramp
    args["qkv"][:, [0, head_dim]] = 1.0
    launch.check(paged_attention, args, {"out": oracle.paged_attention(**args)}, rtol=1e-4, atol=1e-5)


@launches((1, 3))
def test_paged_attention_of_a_row_without_blocks_stays_in_the_cache(launch: Launch) -> None:
    """A negative table entry reads block 0; the row is thrown away later, but must not read elsewhere."""
    args = attention_case(2, 1, 4, 2, ints(3, 7, 0, 0, 0), 2)
    launch.check(paged_attention, args, {"out": oracle.paged_attention(**args)}, rtol=1e-4, atol=1e-5)


@launches((1, 3))
def test_paged_attention_keeps_a_nan_to_its_own_row(launch: Launch) -> None:
    args = attention_case(2, 1, 4, 2, ints(3, 5, 2, 1, 0), 4)
    args["qkv"][1, :4] = np.nan
    out = args["out"].copy()
    launch.run(paged_attention, out, *(args[name] for name in paged_attention.params[1:]))
    assert np.isnan(out[1, :4]).all()
    assert np.isfinite(out[1, 4:]).all()
    assert np.isfinite(out[[0, 2, 3]]).all()


@launches((1, 1), ((2, 2), 3), ((7, 1), 4), ((1, 3), 32))
@ROWS
@pytest.mark.parametrize("width", [1, 9, 35, 48])
def test_swiglu(launch: Launch, count: int, width: int) -> None:
    gate_up = floats(20, CAPACITY, 2 * width) * 8
    gate_up[0, 0], gate_up[1, 0] = -100.0, 100.0
    args = {"out": untouched(CAPACITY, width), "gate_up": poisoned(gate_up, count), "num_tokens": live(count)}
    launch.check(swiglu, args, {"out": oracle.swiglu(**args)}, rtol=2e-6, atol=1e-7)


@ROW_LAUNCHES
@pytest.mark.parametrize("count", [0, 2, 4])
def test_gather_rows(launch: Launch, count: int) -> None:
    args = {
        "out": untouched(4, 9),
        "x": floats(21, 6, 9),
        "indices": poisoned(ints(5, 0, 5, 2), count),
        "num_rows": live(count),
    }
    args["indices"][count:] = 0
    launch.check(gather_rows, args, {"out": oracle.gather_rows(**args)}, rtol=0, atol=0)
