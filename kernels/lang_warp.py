"""Warps: thirty-two threads in step on a GPU, a single thread everywhere else.

The simulator and a CPU have no shuffles. There a warp is one thread, so that what its lanes would exchange, the thread holds
already: the same source strides by `warp_size()` in all three worlds. `primitive` declares a function with one meaning and two
forms: its own source for simulator and CPU, and a form in GPU instructions. Only the second form is beyond the reach of
laptop tests, so it is kept short and compared with the first on a GPU (tests with `-m gpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import cuda as numba_cuda
from numba import extending as cpu_extending

from kernels.lang import SIMULATED, i32

if not SIMULATED:
    from numba.cuda import extending as gpu_extending

_F = TypeVar("_F", bound=Callable[..., Any])

_ALL_LANES = 0xFFFFFFFF


def primitive(on_gpu: Callable[..., Callable[..., Any] | None]) -> Callable[[_F], _F]:
    """Declare the decorated source as what simulator and CPU run, and `on_gpu` as what chooses the GPU's form.

    Args:
        on_gpu: from the Numba types of the arguments to a source for them, or None: the common source then.
    """

    def declare(source: _F) -> _F:
        # Of the CPU alone: else it would stand in, silently, where the GPU's form does not take the types.
        options = {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}
        cpu_extending.overload(source, strict=False, target="cpu", jit_options=options)(lambda *types: source)
        if not SIMULATED:
            gpu_extending.overload(source, strict=False)(lambda *types: on_gpu(*types) or source)
        return source

    return declare


def _gpu_warp_size():
    return i32(32)


@primitive(lambda: _gpu_warp_size)
def warp_size():
    """Threads of a warp: 32 on a GPU, else 1."""
    return i32(1)


def _gpu_lane():
    return i32(numba_cuda.threadIdx.x & 31)


@primitive(lambda: _gpu_lane)
def lane():
    """Place of this thread in its warp. Blocks are one-dimensional."""
    return i32(0)


def _gpu_warp_sum(value):
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 16)
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 8)
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 4)
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 2)
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 1)
    return value


@primitive(lambda value: _gpu_warp_sum)
def warp_sum(value):
    """Sum over the warp, returned to every lane; every lane must call it. Butterfly: the order is always the same."""
    return value


def _gpu_warp_max(value):
    value = max(value, numba_cuda.shfl_xor_sync(_ALL_LANES, value, 16))
    value = max(value, numba_cuda.shfl_xor_sync(_ALL_LANES, value, 8))
    value = max(value, numba_cuda.shfl_xor_sync(_ALL_LANES, value, 4))
    value = max(value, numba_cuda.shfl_xor_sync(_ALL_LANES, value, 2))
    value = max(value, numba_cuda.shfl_xor_sync(_ALL_LANES, value, 1))
    return value


@primitive(lambda value: _gpu_warp_max)
def warp_max(value):
    """Maximum over the warp, returned to every lane; every lane must call it."""
    return value


def _gpu_warp_broadcast(value, source):
    return numba_cuda.shfl_sync(_ALL_LANES, value, source)


@primitive(lambda value, source: _gpu_warp_broadcast)
def warp_broadcast(value, source):
    """The value, int32 or float32, that lane `source` (int32, the same in every lane) holds; every lane must call it."""
    return value


@primitive(lambda value, source: _gpu_warp_broadcast)
def warp_take(value, source):
    """The value, int32 or float32, that lane `source` (int32, each lane's own choice) holds; every lane must call it."""
    return value


def _gpu_quad_sum(value):
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 1)
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 2)
    return value


@primitive(lambda value: _gpu_quad_sum)
def quad_sum(value):
    """Sum over lanes 4 g .. 4 g + 3, returned to each of them; every lane of the warp must call it."""
    return value


def _gpu_quad_max(value):
    value = max(value, numba_cuda.shfl_xor_sync(_ALL_LANES, value, 1))
    value = max(value, numba_cuda.shfl_xor_sync(_ALL_LANES, value, 2))
    return value


@primitive(lambda value: _gpu_quad_max)
def quad_max(value):
    """Maximum over lanes 4 g .. 4 g + 3, returned to each of them; every lane of the warp must call it."""
    return value


def _gpu_warp_barrier():
    numba_cuda.syncwarp()


@primitive(lambda: _gpu_warp_barrier)
def warp_barrier():
    """The lanes of a warp wait for each other, and then see what the others stored in shared memory."""


def _gpu_octet_lane():
    return i32(numba_cuda.threadIdx.x & 7)


def _gpu_octet_size():
    return i32(8)


def _gpu_octet_sum(value):
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 4)
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 2)
    value += numba_cuda.shfl_xor_sync(_ALL_LANES, value, 1)
    return value


def _gpu_octet_best(value, column):
    for distance in (4, 2, 1):
        other = numba_cuda.shfl_xor_sync(_ALL_LANES, value, distance)
        place = numba_cuda.shfl_xor_sync(_ALL_LANES, column, distance)
        if other > value or (other == value and place < column):
            value, column = other, place
    return value, column


@primitive(lambda: _gpu_octet_lane)
def octet_lane():
    """Place of this thread among the eight neighbours that share a row of eight sums; a CPU's thread is alone."""
    return i32(0)


@primitive(lambda: _gpu_octet_size)
def octet_size():
    """Threads that share a row of eight sums: 8 on a GPU, else 1."""
    return i32(1)


@primitive(lambda value: _gpu_octet_sum)
def octet_sum(value):
    """Sum over the octet, returned to each of its threads; every lane of the warp must call it."""
    return value


@primitive(lambda value, column: _gpu_octet_best)
def octet_best(value, column):
    """(largest value of the octet, lowest column that holds it), returned to each of its threads; every lane must call it."""
    return value, column
