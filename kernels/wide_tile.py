"""The product of a step of many rows: a block multiplies a tile of weight rows with up to 64 rows of activations.

kernels/tile.py reads its weights once for every eight rows; here they are read once for 64, and what is read again by every block
is the activations: a tile is as high as gives each multiprocessor of a large GPU one of a large matrix. What a row yields depends
on that row alone. On a GPU with 16-bit weights the tensor cores take weights and activations from a ring of chunks
(kernels/wide_group_gpu.py), where there are warp groups; elsewhere each sum is computed where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import SIMULATED, device_function, f32, i32
from kernels.lang_overlap import has_warp_groups
from kernels.lang_storage import widen
from kernels.lang_warp import primitive
from kernels.project import divide
from kernels.tile import CHUNK

if not SIMULATED:
    import kernels.wide_group_gpu as wide_group_gpu

WIDE_TOKENS = 64
"""Rows of activations that are multiplied at once."""

HEIGHT = 192
"""Weight rows of a tile, in two halves."""

WIDE_WARPS = 8
"""Warps of a block that multiply, on a GPU."""

RING_BYTES = 0 if SIMULATED else wide_group_gpu.RING_BYTES
"""Dynamic shared memory of a block: most of what a multiprocessor has."""


def _gpu_begin(ring: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return wide_group_gpu.BEGIN.get(str(weight.dtype)) if has_warp_groups() else None


def _gpu_multiply(ring: Any, x: Any, token: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return wide_group_gpu.MULTIPLY.get((str(x.dtype), str(weight.dtype))) if has_warp_groups() else None


def _gpu_sums(ring: Any, x: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return wide_group_gpu.SUMS.get((str(x.dtype), str(weight.dtype))) if has_warp_groups() else None


@primitive(_gpu_begin)
def begin_wide(ring, weight, first, second, part, parts):
    """Ask for the first weights of a tile, before anything else is read: `multiply_wide` follows with the same arguments.

    Args:
        ring: the block's dynamic shared memory, RING_BYTES on a GPU.
        weight: [N, K], 16-bit or float32. A GPU's 16-bit form needs K % 8 == 0 and rows that begin at 16 bytes.
        first, second: int32, first weight rows of the halves of the tile.
        part, parts: int32: of the chunks of CHUNK columns every parts-th from `part` on.
    """


@primitive(_gpu_multiply)
def multiply_wide(ring, x, token, weight, first, second, part, parts):
    """Multiply the tile with rows token .. token + WIDE_TOKENS - 1 of x; behind a barrier `wide_sums` hands out the sums. Called by
    all threads of a block, on a GPU WIDE_WARPS warps or more."""


@device_function
def place_of(item, rows):
    """(token, place in the tile) of an item of eight sums: four neighbours, then the next token, of so many: lanes that read the
    ring together meet in no bank, and what they write is long."""
    group = divide(item >> i32(2), rows)
    return (item >> i32(2)) - group * rows, ((group << i32(2)) + (item & i32(3))) << i32(3)


@primitive(_gpu_sums)
def wide_sums(ring, x, weight, token, row, t, place, part, parts):
    """x[token] @ weight[row + j] for j = 0..7 over the columns of a part, as eight float32.

    Args:
        token, row: int32, of x and of the weights, which have rows up to row + 7.
        t: int32, the token's place among those that were multiplied.
        place: int32, the row's place in the tile, a multiple of 8.
        part, parts: int32, as in `begin_wide`.
    """
    a, b, c, d = f32(0.0), f32(0.0), f32(0.0), f32(0.0)
    e, f, g, h = f32(0.0), f32(0.0), f32(0.0), f32(0.0)
    depth, begin = i32(weight.shape[1]), part * i32(CHUNK)
    while begin < depth:
        for k in range(begin, min(begin + i32(CHUNK), depth)):
            value = widen(x[token, k])
            a += value * widen(weight[row, k])
            b += value * widen(weight[row + i32(1), k])
            c += value * widen(weight[row + i32(2), k])
            d += value * widen(weight[row + i32(3), k])
            e += value * widen(weight[row + i32(4), k])
            f += value * widen(weight[row + i32(5), k])
            g += value * widen(weight[row + i32(6), k])
            h += value * widen(weight[row + i32(7), k])
        begin += parts * i32(CHUNK)
    return a, b, c, d, e, f, g, h
