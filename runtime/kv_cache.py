"""BlockAllocator: which request owns which block of the paged KV cache (host side; the device sees block tables)."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.errors import CapacityError, ConfigError


class BlockAllocator:
    """Gives out num_blocks blocks of block_size token positions each; every id in 0 .. num_blocks - 1 is usable.

    A block has one owner (no prefix sharing). The free list is LIFO: the block freed last is handed out first. The
    order has no meaning for the device, but it makes reuse of a block that a queued frame may still write the common
    case in every test, instead of one that shows up after the pool has been walked once.

    A freed block may be handed out at once, though a frame already queued on the compute stream may still write it:
    the new owner's writes are queued on the same stream, later, and the new owner reads no position that it has not
    written itself.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """num_blocks >= 1, block_size >= 1 token positions; ConfigError otherwise."""
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ConfigError(f"{name} = {value}: must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._tables: dict[str, list[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_positions(self) -> int:
        """Token positions of the whole pool: the longest request that could ever be held."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_positions: int) -> int:
        """Blocks that cover positions 0 .. num_positions - 1."""
        return -(-num_positions // self.block_size)

    def missing(self, owner: str, num_positions: int) -> int:
        """Blocks that `owner` (known or not) still lacks to cover num_positions."""
        lacking = self.blocks_for(num_positions) - len(self._tables.get(owner, ()))
        return lacking if lacking > 0 else 0

    def covered(self, owner: str) -> int:
        """Positions that the blocks of `owner` are enough for."""
        return len(self._table(owner)) * self.block_size

    def covers(self, owner: str, num_positions: int) -> bool:
        """Does `owner` hold blocks enough for num_positions already?"""
        return self.covered(owner) >= num_positions

    def can_cover(self, owner: str, num_positions: int) -> bool:
        return self.missing(owner, num_positions) <= len(self._free)

    def allocate(self, owner: str, num_positions: int) -> list[tuple[int, int]]:
        """First blocks of a new owner; returns (column, block) pairs. CapacityError when too few are free."""
        if owner in self._tables:
            raise RuntimeError(f"{owner!r} already holds {len(self._tables[owner])} blocks: use extend")
        self._check(owner, num_positions)
        self._tables[owner] = []
        return self.extend(owner, num_positions)

    def extend(self, owner: str, num_positions: int) -> list[tuple[int, int]]:
        """Grow an owner's table to cover num_positions; returns the new (column, block) pairs, often none.

        CapacityError when too few blocks are free: nothing is taken then. A table never shrinks before free().
        """
        self._check(owner, num_positions)
        table = self._table(owner)
        new = []
        for _ in range(self.missing(owner, num_positions)):
            block = self._free.pop()
            new.append((len(table), block))
            table.append(block)
        return new

    def free(self, owner: str) -> int:
        """Give back all blocks of an owner; returns how many. RuntimeError for one that holds none (double free)."""
        self._table(owner)
        blocks = self._tables.pop(owner)
        # The first column is handed out first again, so that a run repeats block for block.
        self._free.extend(reversed(blocks))
        return len(blocks)

    def table(self, owner: str) -> tuple[int, ...]:
        """Blocks of an owner by column."""
        return tuple(self._table(owner))

    def owners(self) -> Iterator[str]:
        return iter(self._tables)

    def check_integrity(self) -> None:
        """RuntimeError unless free blocks and held blocks are together each id exactly once."""
        held = [block for table in self._tables.values() for block in table]
        if sorted(self._free + held) != list(range(self.num_blocks)):
            raise RuntimeError(
                f"block accounting is broken: {len(self._free)} free + {len(held)} held, {self.num_blocks} in total, "
                f"free = {sorted(self._free)}, tables = {self._tables}"
            )

    def _table(self, owner: str) -> list[int]:
        if owner not in self._tables:
            raise RuntimeError(f"{owner!r} holds no blocks: it was freed before, or never allocated")
        return self._tables[owner]

    def _check(self, owner: str, num_positions: int) -> None:
        if not self.can_cover(owner, num_positions):
            raise CapacityError(
                f"{owner!r} needs {self.missing(owner, num_positions)} more KV blocks for {num_positions} positions, "
                f"but only {len(self._free)} of {self.num_blocks} are free; preempt a request or raise the block count"
            )
