"""BlockAllocator: coverage arithmetic, reuse order, refusals, and integrity under random use."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import CapacityError, ConfigError
from runtime.kv_cache import BlockAllocator


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for(positions: int, blocks: int) -> None:
    assert BlockAllocator(8, 4).blocks_for(positions) == blocks


def test_every_block_is_usable_and_columns_continue() -> None:
    blocks = BlockAllocator(4, 4)
    assert blocks.allocate("a", 5) == [(0, 0), (1, 1)]
    assert blocks.extend("a", 8) == []
    assert blocks.extend("a", 16) == [(2, 2), (3, 3)]
    assert blocks.table("a") == (0, 1, 2, 3)
    assert blocks.num_free == 0
    blocks.check_integrity()


def test_a_table_never_shrinks_on_extend() -> None:
    blocks = BlockAllocator(4, 4)
    blocks.allocate("a", 12)
    assert blocks.extend("a", 1) == []
    assert len(blocks.table("a")) == 3


def test_the_block_freed_last_is_reused_first() -> None:
    blocks = BlockAllocator(6, 4)
    blocks.allocate("a", 8)
    blocks.allocate("b", 4)
    blocks.free("a")
    assert blocks.allocate("c", 12) == [(0, 0), (1, 1), (2, 3)]


def test_a_refusal_takes_nothing() -> None:
    blocks = BlockAllocator(3, 4)
    blocks.allocate("a", 8)
    with pytest.raises(CapacityError, match="'b' needs 2 more KV blocks for 8 positions, but only 1 of 3 are free"):
        blocks.allocate("b", 8)
    assert blocks.num_free == 1
    assert list(blocks.owners()) == ["a"]
    with pytest.raises(CapacityError):
        blocks.extend("a", 20)
    assert blocks.num_free == 1
    assert len(blocks.table("a")) == 2
    blocks.check_integrity()


def test_misuse_is_refused() -> None:
    blocks = BlockAllocator(3, 4)
    blocks.allocate("a", 4)
    with pytest.raises(RuntimeError, match="already holds 1 blocks"):
        blocks.allocate("a", 4)
    with pytest.raises(RuntimeError, match="holds no blocks"):
        blocks.extend("b", 4)
    assert blocks.free("a") == 1
    with pytest.raises(RuntimeError, match="holds no blocks"):
        blocks.free("a")
    assert blocks.num_free == 3


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4)])
def test_sizes_are_checked(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        BlockAllocator(num_blocks, block_size)


def test_the_integrity_check_can_fail() -> None:
    for damage in ("lost", "twice"):
        blocks = BlockAllocator(3, 4)
        blocks.allocate("a", 8)
        if damage == "lost":
            blocks._tables["a"].pop()
        else:
            blocks._free.append(0)
        with pytest.raises(RuntimeError, match="block accounting is broken"):
            blocks.check_integrity()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.booleans()), max_size=40),
)
def test_random_use_keeps_every_block_once(num_blocks: int, block_size: int, actions: list[tuple[str, int, bool]]) -> None:
    blocks = BlockAllocator(num_blocks, block_size)
    model: dict[str, list[int]] = {}
    for owner, positions, frees in actions:
        if frees and owner in model:
            assert blocks.free(owner) == len(model.pop(owner))
        elif blocks.can_cover(owner, positions):
            new = (blocks.extend if owner in model else blocks.allocate)(owner, positions)
            table = model.setdefault(owner, [])
            assert [column for column, _ in new] == list(range(len(table), len(table) + len(new)))
            table += [block for _, block in new]
            assert blocks.table(owner) == tuple(table)
            assert len(table) * block_size >= positions
        else:
            assert -(-positions // block_size) > num_blocks - sum(
                len(table) for other, table in model.items() if other != owner
            )
        blocks.check_integrity()
        held = [block for table in model.values() for block in table]
        assert len(set(held)) == len(held) == num_blocks - blocks.num_free
