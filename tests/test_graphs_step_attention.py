"""Which launches a step's attention is, by its rows, its heads and the numerics that were asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs.step_attention import SMALL, StepAttention, row_cluster_blocks, row_tiles
from kernels.attend import BLOCK_PAIRS


class Launches:
    """A launcher that notes kernel, cluster and grid."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, Any]] = []

    def launch(self, kernel: Any, grid: Any, block: int, *args: Any) -> None:
        assert len(args) == len(kernel.params)
        self.found.append((kernel.name, kernel.cluster, grid))


def recorded(
    tokens: int,
    requests: int,
    head_dim: int,
    *,
    batch_invariant: bool,
    normed: bool = False,
    dtype: type = np.uint16,
    query_len: int = 0,
) -> list[tuple[str, int, Any]]:
    heads, kv_heads = 9, 3
    rows: Any = np.zeros((tokens, heads * head_dim), dtype)
    launches, gain = Launches(), np.ones(head_dim, np.float32) if normed else None
    inputs = SimpleNamespace(idx_mapping=rows, query_start_loc=rows, num_requests=rows, query_len=query_len)
    step = SimpleNamespace(inputs=inputs, positions=rows, slot_mapping=rows)
    shape = SimpleNamespace(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, rms_norm_eps=1e-5)
    run: Any = SimpleNamespace(
        launch=launches,
        model=SimpleNamespace(shape=shape, rope_table=rows),
        scratch=SimpleNamespace(attention=rows, qkv=rows),
        state=SimpleNamespace(block_tables=rows),
        step=step,
        num_tokens=tokens,
        live=rows,
        most_requests=requests,
    )
    layer: Any = SimpleNamespace(k_cache=rows, v_cache=rows, q_norm=gain, k_norm=gain)
    StepAttention(rows, batch_invariant=batch_invariant).record(run, layer)
    return launches.found


@pytest.mark.parametrize(("head_dim", "kernel", "sharing"), [(64, "attend_rows", 4), (128, "attend_wide_rows", 3)])
@pytest.mark.parametrize("normed", [False, True])
def test_a_step_of_many_rows_stores_its_keys_and_attends(head_dim: int, kernel: str, sharing: int, normed: bool) -> None:
    store, attend = recorded(512, 1, head_dim, batch_invariant=False, normed=normed)
    assert store[0] == ("norm_rotate_many" if normed else "rotate_many")
    assert attend == (kernel, sharing, (24, 3, 1))


def test_requests_may_each_have_a_tile_that_is_not_full() -> None:
    """Of 64 requests with 8 rows each, none fills a tile of 64 pairs with its 24."""
    assert row_tiles(512, 9, 3) == 512 * 3 // BLOCK_PAIRS
    assert recorded(512, 64, 64, batch_invariant=False)[-1] == ("attend_rows", 4, (87, 3, 1))


@pytest.mark.parametrize(("tiles", "sharing"), [(1, 4), (74, 4), (75, 3), (148, 2), (149, 1), (9000, 1)])
def test_blocks_that_share_a_tile_fill_the_gpu_once(tiles: int, sharing: int) -> None:
    assert row_cluster_blocks(tiles, 296) == sharing


@pytest.mark.parametrize("tokens", [1, 128, 129, 512])
def test_batch_invariant_steps_of_any_size_add_up_alike(tokens: int) -> None:
    """One kernel, one form of it: what a row yields must not depend on how many rows came with it."""
    *before, (name, cluster, _) = recorded(tokens, 1, 64, batch_invariant=True)
    assert (name, cluster) == ("attend_few", SMALL.cluster)
    assert [kernel for kernel, *_ in before] == ["rotate_store"] * (tokens > 128)


@pytest.mark.parametrize(("tokens", "query_len", "launches"), [(32, 0, 1), (33, 0, 2), (128, 8, 1), (129, 3, 2)])
def test_few_rows_are_one_launch(tokens: int, query_len: int, launches: int) -> None:
    """More of them where they belong to several requests: one prompt has many tiles, and each would rotate its keys again."""
    found = recorded(tokens, 1, 64, batch_invariant=False, query_len=query_len)
    assert len(found) == launches
    assert found[-1][0] == ("attend_step" if launches == 1 else "attend_rows")


@pytest.mark.parametrize(
    ("tokens", "requests", "query_len", "kernel", "cluster"),
    [
        (1, 1, 1, "attend_few", 8),
        (2, 2, 1, "attend_few", 8),
        (8, 1, 8, "attend_step", 4),
        (8, 8, 1, "attend_step", 4),
        (64, 8, 8, "attend_step", 2),
    ],
)
def test_few_tiles_one_a_request_have_a_kernel_of_their_own(
    tokens: int, requests: int, query_len: int, kernel: str, cluster: int
) -> None:
    """Of SmolLM2's heads."""
    (found,) = recorded(tokens, requests, 64, batch_invariant=False, query_len=query_len)
    assert found[:2] == (kernel, cluster)


def test_float32_has_a_block_for_every_sixteen_pairs() -> None:
    assert recorded(512, 2, 64, batch_invariant=False, dtype=np.float32)[-1] == ("attend_rows", 1, (96, 3, 2))
