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

from kernels.lang import SIMULATED, f32, i32
from kernels.lang_warp import primitive

if not SIMULATED:
    from kernels import lang_cluster

HOPPER = (9, 0)
"""Compute capability from which on a GPU has clusters and overlapping launches."""


def on_hopper() -> bool:
    """Is the GPU that a kernel is compiled for one that has them?"""
    return bool(numba_cuda.get_current_device().compute_capability >= HOPPER)


def has_warp_groups() -> bool:
    """Has it the instructions of kernels/lang_group.py?"""
    return warp_groups_at(numba_cuda.get_current_device().compute_capability)


def warp_groups_at(compute_capability: tuple[int, int]) -> bool:
    """They are Hopper's alone: no later GPU has them."""
    return bool(compute_capability[0] == HOPPER[0])


def _form(name: str, otherwise: str | None = None) -> Any:
    def choose(*types: Any) -> Any:
        if on_hopper():
            return getattr(lang_cluster, name)
        return getattr(lang_cluster, otherwise) if otherwise else None

    return choose


@primitive(_form("wait_form"))
def wait_for_launches():
    """Wait until the launch before this one has ended. Every thread of the grid calls it."""


@primitive(_form("start_form"))
def let_next_launch_start():
    """Let the launch behind this one start, once all blocks have come here or ended. Not before `wait_for_launches`."""


@primitive(lambda counts: lang_cluster.early_count_form)
def early_count(counts):
    """counts[0] of an int32 array named in `early=`. Before `wait_for_launches`: behind it a load queues behind the weights that
    are under way."""
    return counts[0]


@primitive(_form("rank_form"))
def cluster_rank():
    """Place of this block in its cluster."""
    return i32(0)


@primitive(_form("size_form"))
def cluster_size():
    """Blocks of this cluster."""
    return i32(1)


@primitive(_form("number_form", "own_number_form"))
def cluster_number():
    """Place of this block's cluster along the first axis of the grid. On a GPU alone."""
    return i32(0)


@primitive(_form("numbers_form", "own_numbers_form"))
def cluster_numbers():
    """Clusters along the first axis of the grid. On a GPU alone."""
    return i32(1)


@primitive(_form("barrier_form"))
def cluster_barrier():
    """All threads of the cluster wait for each other, and then see what the others stored in shared memory.

    Call it behind cuda.syncthreads(), where stores to shared memory are done. It arrives relaxed. PTX promises that others see
    those stores only if somebody's arrival releases them, which waits for stores to global memory too: on an H200 that takes 0.3
    to 0.5 us of every launch of attention, whether all warps of a block release or one. Where a block is its own cluster this is
    nothing.
    """


@primitive(_form("address_form", "own_address_form"))
def cluster_address(address, rank):
    """A shared address (kernels/lang_mma.py) as block `rank` of the cluster has it, for `read_cluster`. On a GPU alone."""
    return address


@primitive(_form("read_form", "own_read_form"))
def read_cluster(address):
    """The float32 at an address of `cluster_address`. On a GPU alone."""
    return f32(0.0)


@primitive(_form("read_four_form", "own_read_four_form"))
def read_cluster_four(address):
    """The four float32 from an address of `cluster_address`, a multiple of 16, on. On a GPU alone."""
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0)


@primitive(_form("block_form", "own_block_form"))
def read_block(array, place, rank):
    """Element `place` of a shared int32 array as block `rank` of the cluster has it."""
    return array[place]
