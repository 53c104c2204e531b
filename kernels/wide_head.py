"""The head of a step of many rows with the greedy sampler behind it: up to 64 rows at once, each weight read once.

The library multiplies a head as fast, but then an argmax reads all logits again. Here each stripe's best column comes out of the
sums themselves, and a block goes from tile to tile without a pause in what it asks memory for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import NEG_INF, SIMULATED, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import has_warp_groups, let_next_launch_start, wait_for_launches
from kernels.lang_storage import widen
from kernels.lang_warp import primitive
from kernels.wide_shape import HEIGHT

if not SIMULATED:
    import kernels.wide_head_gpu as wide_head_gpu

RING_BYTES = 0 if SIMULATED else wide_head_gpu.RING_BYTES
"""Dynamic shared memory of a block: most of what a multiprocessor has."""

_CELLS = 128
"""A best column for each of 64 rows and group."""

_NONE = i32(2147483647)


def _gpu_stripes(logits: Any, best_value: Any, best_column: Any, x: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return wide_head_gpu.STRIPES.get((str(x.dtype), str(weight.dtype))) if has_warp_groups() else None


def _gpu_has_stripes(x: Any, weight: Any) -> Callable[..., Any] | None:
    return wide_head_gpu.yes if has_warp_groups() and (str(x.dtype), str(weight.dtype)) in wide_head_gpu.STRIPES else None


@primitive(_gpu_has_stripes)
def has_group_stripes(x, weight):
    """Does `group_stripes` do all the work?"""
    return False


@primitive(_gpu_stripes)
def group_stripes(logits, best_value, best_column, x, weight, vocab_size, num_rows, ring, values, columns):
    """What `wide_head` does, on Hopper in 16 bits; nothing elsewhere."""


@device_function
def product(x, token, weight, row):
    """x[token] @ weight[row]."""
    total = f32(0.0)
    for k in range(weight.shape[1]):
        total += widen(x[token, k]) * widen(weight[row, k])
    return total


@device_function
def stripes_of_threads(logits, best_value, best_column, x, weight, vocab_size, num_rows):
    """What `wide_head` does, a thread a row and stripe."""
    wait_for_launches()
    let_next_launch_start()
    outputs, stripes, live = i32(weight.shape[0]), i32(best_value.shape[0]), i32(num_rows[0])
    stripe = i32(cuda.blockIdx.x)
    while stripe < stripes:
        token = i32(cuda.threadIdx.x)
        while token < live:
            value, column, first = NEG_INF, _NONE, stripe * i32(HEIGHT)
            while first < outputs:
                for row in range(first, min(first + i32(HEIGHT), outputs)):
                    total = product(x, token, weight, row)
                    logits[token, row] = total
                    if row < vocab_size and total > value:
                        value, column = total, i32(row)
                first += stripes * i32(HEIGHT)
            best_value[stripe, token], best_column[stripe, token] = value, column
            token += i32(cuda.blockDim.x)
        stripe += i32(cuda.gridDim.x)


@kernel(
    writes=("logits", "best_value", "best_column"), max_registers=168, overlap=True, early=("weight",), shared=RING_BYTES
)
def wide_head(logits, best_value, best_column, x, weight, vocab_size, num_rows):
    """logits[j] = x[j] @ weight.T; best_value[s, j], best_column[s, j] = the largest logit of stripe s and its lowest column, for
    the live rows.

    Stripe s of S holds every S-th tile of HEIGHT columns from tile s on. Columns from vocab_size on (padding) and NaN are never
    best; a stripe without a candidate says -inf.

    Args:
        logits: float32 [J, V'], V' >= vocab_size; V' a multiple of 8 on a GPU.
        best_value: float32 [S, J].
        best_column: int32 [S, J].
        x: [J, K], of the weights' type.
        weight: [V', K], any storage type; 16-bit on a GPU: K a multiple of 8.
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Launch: THREADS threads (kernels/wide_shape.py) on a GPU, any grid, S blocks at best. A block owns its stripes. Barriers are
    reached by all its threads. Idempotent; safe under capture. Oracle: oracle_fused.project_argmax.
    """
    ring = cuda.shared.array(0, f32)
    values = cuda.shared.array(_CELLS, f32)
    columns = cuda.shared.array(_CELLS, i32)
    if has_group_stripes(x, weight):
        group_stripes(logits, best_value, best_column, x, weight, vocab_size, num_rows, ring, values, columns)
    else:
        stripes_of_threads(logits, best_value, best_column, x, weight, vocab_size, num_rows)
