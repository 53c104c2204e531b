"""Launches that overlap, and blocks that work together: what a GPU from compute capability 9 on has, and nothing elsewhere.

A kernel declared with `overlap=True` may be started while the launch before it still runs (CUDA's programmatic dependent launch).
It calls `wait_for_launches` before it touches anything that another kernel may write, or read after it: then the launch before has
ended and its stores are seen. Right behind that it calls `let_next_launch_start`. In this order, and only in it, everything
before the launch before has ended when the next kernel starts, so what a kernel reads early (`early=`) may have been written by any
launch but the last; whoever launches looks at that one (graphs/direct_launch.py).

Blocks of a cluster run at the same time and read each other's shared memory. Elsewhere a block is a cluster of its own.
"""

from __future__ import annotations

from typing import Any

from numba import cuda as numba_cuda

from kernels.lang import SIMULATED, i32
from kernels.lang_warp import primitive

if not SIMULATED:
    from kernels import lang_cluster

HOPPER = (9, 0)
"""Compute capability from which on a GPU has clusters and overlapping launches."""


def _form(name: str) -> Any:
    def choose(*types: Any) -> Any:
        if numba_cuda.get_current_device().compute_capability < HOPPER:
            return None
        return getattr(lang_cluster, name)

    return choose


@primitive(_form("wait_form"))
def wait_for_launches():
    """Wait until the launch before this one has ended. Every thread of the grid calls it."""


@primitive(_form("start_form"))
def let_next_launch_start():
    """Let the launch behind this one start, once all blocks have come here or ended. Not before `wait_for_launches`."""


@primitive(_form("rank_form"))
def cluster_rank():
    """Place of this block in its cluster."""
    return i32(0)


@primitive(_form("size_form"))
def cluster_size():
    """Blocks of this cluster."""
    return i32(1)


@primitive(_form("barrier_form"))
def cluster_barrier():
    """All threads of the cluster wait for each other, and then see what the others stored in shared memory.

    Where a block is its own cluster this is nothing: call it behind cuda.syncthreads().
    """


@primitive(lambda array, index, rank: _form("shared_form")())
def shared_of_rank(array, index, rank):
    """Element `index` of the shared float32 array of the cluster's block `rank`."""
    return array[index]
