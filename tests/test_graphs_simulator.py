"""The simulator: threads in turns between barriers, shared memory of each block, and how a kernel that is wrong shows in it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kernels import lang_storage
from kernels.lang import SIMULATED, block_sum, cuda, f32, i32, kernel

if SIMULATED:
    from graphs.simulator_executor import SimulatorExecutor, widen

pytestmark = pytest.mark.skipif(not SIMULATED, reason="this process has Numba without its simulator")


@kernel(writes=("out",))
def places(out):
    block = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    out[cuda.threadIdx.x + cuda.blockDim.x * block] += i32(1)
    cuda.atomic.add(out, out.shape[0] - 1, cuda.gridsize(1))


@kernel(writes=("out",))
def reverse(out):
    scratch = cuda.shared.array(8, i32)
    tid = cuda.threadIdx.x
    scratch[tid] = out[cuda.blockIdx.x, tid]
    cuda.syncthreads()
    out[cuda.blockIdx.x, tid] = scratch[cuda.blockDim.x - tid - 1]


@kernel(writes=("out",))
def reverse_without_a_barrier(out):
    scratch = cuda.shared.array(8, i32)
    tid = cuda.threadIdx.x
    scratch[tid] = out[cuda.blockIdx.x, tid]
    out[cuda.blockIdx.x, tid] = scratch[cuda.blockDim.x - tid - 1]


@kernel(writes=("out",))
def counts_in_shared_memory(out):
    scratch = cuda.shared.array(1, f32)
    whole = cuda.shared.array(1, i32)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = scratch[0] + f32(whole[0])
        scratch[0] = f32(0)


@kernel(writes=("out",))
def parted_at_a_barrier(out):
    scratch = cuda.shared.array(4, f32)
    if cuda.threadIdx.x < 2:
        cuda.syncthreads()
    else:
        out[0] = i32(block_sum(f32(1), scratch))


@kernel(writes=("out",))
def early_end(out):
    if cuda.threadIdx.x == 0:
        return
    cuda.syncthreads()
    out[cuda.threadIdx.x] = i32(1)


@kernel(writes=("out",))
def sums(out, x):
    scratch = cuda.shared.array(8, f32)
    out[cuda.blockIdx.x] = block_sum(x[cuda.blockIdx.x, cuda.threadIdx.x], scratch)


@kernel(writes=("out",))
def too_large(out):
    square = out[cuda.threadIdx.x] * out[cuda.threadIdx.x]
    out[cuda.threadIdx.x] = square - square


def test_every_thread_of_every_block_runs_once() -> None:
    out = np.zeros(3 * 2 * 2 * 5 + 1, np.int32)
    SimulatorExecutor().bind(places, (2, 2, 3), 5, (out,))()
    assert out[:-1].tolist() == [1] * 60
    assert out[-1] == 60 * 10


@pytest.mark.parametrize("block", [1, 2, 7, 8])
def test_a_barrier_parts_stores_from_loads(block: int) -> None:
    rows = np.arange(4 * block, dtype=np.int32).reshape(4, block)
    out = rows.copy()
    SimulatorExecutor().bind(reverse, 4, block, (out,))()
    np.testing.assert_array_equal(out, rows[:, ::-1])


def test_a_missing_barrier_shows_from_both_sides() -> None:
    """Half of the threads of a block read before the other half has stored; which half depends on the block."""
    out = np.arange(1, 17, dtype=np.int32).reshape(2, 8)
    SimulatorExecutor().bind(reverse_without_a_barrier, 2, 8, (out,))()
    assert out.tolist() == [[-7] * 4 + [4, 3, 2, 1], [16, 15, 14, 13] + [-7] * 4]


def test_no_block_sees_what_another_left_in_shared_memory() -> None:
    out = np.zeros(3, np.float32)
    for block in (1, 3):
        SimulatorExecutor().bind(counts_in_shared_memory, 3, block, (out,))()
        assert np.isnan(out).all()


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.filterwarnings("error")
def test_infinity_and_nan_are_nothing_to_warn_of(block: int) -> None:
    out = np.full(block, 3e38, np.float32)
    SimulatorExecutor().bind(too_large, 1, block, (out,))()
    assert np.isnan(out).all()


def test_threads_at_different_barriers_are_a_fault() -> None:
    with pytest.raises(RuntimeError, match=r"at different barriers: block_sum at byte \d+, parted_at_a_barrier at byte"):
        SimulatorExecutor().bind(parted_at_a_barrier, 1, 4, (np.zeros(4, np.int32),))()


def test_a_thread_that_has_ended_is_not_waited_for() -> None:
    out = np.zeros(4, np.int32)
    SimulatorExecutor().bind(early_end, 1, 4, (out,))()
    assert out.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("block", [1, 3])
def test_a_thread_that_fails_ends_the_launch_and_its_threads(block: int) -> None:
    executor = SimulatorExecutor()
    before = threading.active_count()
    with pytest.raises(IndexError, match=r"block \(9, 0, 0\), thread \(., 0, 0\): index 9 is out of bounds"):
        executor.bind(sums, 10, block, (np.zeros(9, np.float32), np.zeros((9, 8), np.float32)))()
    assert threading.active_count() == before
    out = np.zeros(2, np.float32)
    executor.bind(sums, 2, block, (out, np.ones((2, 8), np.float32)))()
    assert out.tolist() == [block, block]


@pytest.mark.parametrize("kind", ["uint16", "int16", "float16", "float32"])
def test_a_stored_element_widens_as_its_kernel_says(kind: str) -> None:
    """Each bfloat16 and each float16 there is."""
    values = np.arange(1 << 16, dtype=np.uint16).view(kind) if kind != "float32" else np.array([0.1, -0.0, np.nan], np.float32)
    with np.errstate(over="ignore"):
        found, expected = (np.array([form(value) for value in values]) for form in (widen, lang_storage.widen))
    assert found.dtype == expected.dtype == np.float32
    assert found.tobytes() == expected.tobytes()
