"""The product of a step of many rows: a block multiplies a tile of weight rows with up to 64 rows of activations.

kernels/tile.py reads its weights once for every eight rows; here they are read once for 64, and what is read again by every block
is the activations: a tile is as high as gives each multiprocessor of a large GPU one of a large matrix. What a row yields depends
on that row alone. On a GPU with 16-bit weights the tensor cores take weights and activations from a ring of chunks
(kernels/wide_group_gpu.py), where there are warp groups; elsewhere each sum is computed where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.gated import gated
from kernels.lang import SIMULATED, cuda, device_function, f32, i32
from kernels.lang_eight import write_eight
from kernels.lang_overlap import has_warp_groups
from kernels.lang_storage import widen
from kernels.lang_warp import primitive
from kernels.project import divide
from kernels.tile import CHUNK
from kernels.wide_shape import HEIGHT

if not SIMULATED:
    import kernels.wide_group_gpu as wide_group_gpu

WIDE_TOKENS = 64
"""Rows of activations that are multiplied at once."""

RING_BYTES = 0 if SIMULATED else wide_group_gpu.RING_BYTES
"""Dynamic shared memory of a block: most of what a multiprocessor has."""


def _gpu(form: str, weight: int, x: int | None = None) -> Callable[..., Callable[..., Any] | None]:
    """What chooses a GPU's form by the types of its arguments at these places."""

    def choose(*types: Any) -> Callable[..., Any] | None:
        key = str(types[weight].dtype) if x is None else (str(types[x].dtype), str(types[weight].dtype))
        found: Callable[..., Any] | None = getattr(wide_group_gpu, form).get(key) if has_warp_groups() else None
        return found

    return choose


@primitive(_gpu("BEGIN_PARTS", 1))
def begin_parts(ring, weight, first, part, parts):
    """Ask for the first weights of a tile, before anything else is read: `store_parts` follows with the same arguments.

    Args:
        ring: the block's dynamic shared memory, RING_BYTES on a GPU.
        weight: [N, K], 16-bit or float32. A GPU's 16-bit form needs K % 8 == 0 and rows that begin at 16 bytes.
        first: int32, first weight row of the tile.
        part, parts: int32: of the chunks of CHUNK columns every parts-th from `part` on.
    """


@primitive(_gpu("STORED", 1, 0))
def has_tiles(x, weight):
    """Do `store_parts` and `store_gate_up` do all the work?"""
    return False


@primitive(_gpu("STORE_PARTS", 5, 2))
def store_parts(ring, out, x, token, live, weight, first, part, parts):
    """`parts_of_threads` where there are warp groups, behind `begin_parts`; nothing elsewhere. Called by all threads of a block,
    WARPS warps (kernels/wide_shape.py) or more; behind a barrier the ring is free."""


@device_function
def parts_of_threads(out, x, token, live, weight, first, part, parts):
    """out[t, part * N + n] = x[t] @ weight[n] over the columns of a part, for tokens t from `token` on, WIDE_TOKENS at most, below
    `live`, and weight rows n of the tile."""
    item, rows, outputs = i32(cuda.threadIdx.x), min(live - token, i32(WIDE_TOKENS)), i32(weight.shape[0])
    while item < rows * i32(HEIGHT // 8):
        place = divide(item, rows)
        row, output = token + item - place * rows, first + (place << i32(3))
        if output < outputs:
            write_eight(out, row, part * outputs + output, wide_sums(x, weight, row, output, part, parts))
        item += i32(cuda.blockDim.x)


@primitive(_gpu("BEGIN_GATE_UP", 1))
def begin_gate_up(ring, weight, first):
    """As `begin_parts`, of gate's rows from `first` on, and as many of up."""


@primitive(_gpu("STORE_GATE_UP", 5, 2))
def store_gate_up(ring, out, x, token, live, weight, first):
    """`gate_up_of_threads`, as `store_parts`."""


@device_function
def gate_up_of_threads(out, x, token, live, weight, first):
    """out[t, n] = silu(x[t] @ weight[n]) * (x[t] @ weight[I + n]) for columns n of the tile, half as many as it has weight rows;
    tokens as in `parts_of_threads`."""
    item, rows, outputs = i32(cuda.threadIdx.x), min(live - token, i32(WIDE_TOKENS)), i32(out.shape[1])
    while item < rows * i32(HEIGHT // 16):
        place = divide(item, rows)
        row, output = token + item - place * rows, first + (place << i32(3))
        if output < outputs:
            gates = wide_sums(x, weight, row, output, i32(0), i32(1))
            ups = wide_sums(x, weight, row, outputs + output, i32(0), i32(1))
            write_eight(out, row, output, eight_gated(gates, ups))
        item += i32(cuda.blockDim.x)


@device_function
def eight_gated(g, u):
    return (
        gated(g[0], u[0]),
        gated(g[1], u[1]),
        gated(g[2], u[2]),
        gated(g[3], u[3]),
        gated(g[4], u[4]),
        gated(g[5], u[5]),
        gated(g[6], u[6]),
        gated(g[7], u[7]),
    )


@device_function
def wide_sums(x, weight, token, row, part, parts):
    """x[token] @ weight[row + j] for j = 0..7 over the columns of a part, as eight float32."""
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
