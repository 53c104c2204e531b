"""Layout: where the tiles of a step's attention lie in shared memory, and how they are read (kernels/attend_keys_gpu.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Layout(NamedTuple):
    """Device functions of one layout.

    Attributes:
        tile_bytes: of sixteen keys of the longest heads; values stand as far behind them, and the sums of sixteen pairs take both.
        places: (query_base, base, head_dim) -> where a lane reads queries, keys and values.
        meet: barrier of a warp around reads of a tile, nothing where a lane reads what it copied itself.
        guard: barrier of a warp around heads that are put by hand while others may read, nothing where `meet` sees to that.
        fetch_keys, fetch_values: begin to copy a tile (kernels/attend_pages_gpu.py).
        put_key, put_value: (base, row, head_dim, words) -> a head of the step into a row of a tile, queries as keys.
        cell_first: is the cell of a new key asked for before the key, lest ptxas puts that off until the key is there?
        scores: from the product of a type: (queries, keys, head_dim) -> two sums each of keys 0 .. 7 and 8 .. 15.
        weigh: from the product of a type: (slabs, p, values, half) -> slabs plus the shares `p` of 64 dims of the values.
        keep: (base, head_dim, with_far, near, far) -> the sums of a warp to its part of the ring.
        sum_byte: (head_dim, p, d) -> where that part holds pair p's sums in dims d .. d + 3.
    """

    tile_bytes: int
    places: Any
    meet: Any
    guard: Any
    fetch_keys: Any
    fetch_values: Any
    put_key: Any
    put_value: Any
    cell_first: bool
    scores: Callable[[Any], Any]
    weigh: Callable[[Any], Any]
    keep: Any
    sum_byte: Any
