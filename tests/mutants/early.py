"""Mutations of what starts before the work ahead of it has ended: right on every machine but a GPU, and there most of the time."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, mutation

_DEVICE = "runtime/cuda_device.py"
_RULE, _STEP, _KEYS = "runtime/early_start.py", "kernels/attend_step_gpu.py", "kernels/attend_keys_gpu.py"
_WHAT_STARTS = "tests/test_runtime_early_start.py::test_what_may_start_early"
_A_STEP = "tests/test_gpu_attend.py::test_a_step_of_attention[float16-True-64-16-15-2-10-1-1]"

MUTATIONS: tuple[Mutation, ...] = (
    mutation(
        "early-reads-behind-their-writer",
        "9a-15",
        _RULE,
        "return not any(array in early for work in before for array in work.writes)",
        "return True",
        test=_WHAT_STARTS,
        text="positions of the step before: right unless the kernel that writes them is late",
    ),
    mutation(
        "early-start-behind-a-copy",
        "9a-15",
        _RULE,
        "if not before or not before[-1].computes:",
        "if not before:",
        test=_WHAT_STARTS,
        text="a copy lets nothing start early, so CUDA would order the two in full or refuse: on this driver nothing shows",
    ),
    mutation(
        "kernel-that-does-not-wait",
        "9a-15",
        "kernels/rotate.py",
        "    wait_for_launches()\n    let_next_launch_start()\n",
        "    let_next_launch_start()\n",
        test="tests/test_ptx_order.py::test_a_kernel_as_it_stands_waits_first",
        text="elsewhere the two calls are nothing; on a GPU the projection has nearly always ended by then",
    ),
    mutation(
        "new-keys-read-from-the-cache",
        "9a-17",
        _STEP,
        "                    limit = before\n",
        "                    limit = keys\n",
        test=_A_STEP,
        text="the cell holds what a rejected draft left there: plausible text of another continuation",
        expects="AssertionError",
    ),
    mutation(
        "row-sees-the-key-behind-it",
        "9d-49",
        _KEYS,
        "    if key < seen:\n",
        "    if key <= seen:\n",
        test=_A_STEP,
        text="a verify row then attends to the draft it is to judge; a decode row to an empty cell, which weighs little",
        expects="AssertionError",
    ),
    mutation(
        "shared-new-keys-in-the-tile-of-another-warp",
        "9d-49",
        _KEYS,
        "to = u32(base - u32(warp * i32(tiles)) + u32(part * i32(tiles)))",
        "to = base",
        test="tests/test_gpu_attend.py::test_a_step_of_attention[bfloat16-True-64-32-12-8-2-2-1]",
        text="only on a GPU, and only where a step brings more than two rows of a request",
        expects="AssertionError",
    ),
    mutation(
        "zeros-over-the-keys-of-the-step",
        "9d-49",
        "kernels/attend_pages_gpu.py",
        "    return row < count or row >= behind\n",
        "    return True\n",
        test="tests/test_gpu_attend.py::test_a_step_of_attention[bfloat16-True-64-32-12-8-2-2-1]",
        text="right wherever the copies from the cache arrive before the projection does",
        expects="AssertionError",
    ),
    mutation(
        "few-blocks-for-two-tiles-of-a-request",
        "9d-49",
        "graphs/step_attention.py",
        "    if grid[0] == 1 and tiles <= _FEW_TILES:\n",
        "    if tiles <= _FEW_TILES:\n",
        test="tests/test_graphs_step_attention.py::test_few_tiles_one_a_request_have_a_kernel_of_their_own",
        text="no number changes; a small model verifies seven drafts of one request 4 % slower",
        expects="AssertionError",
    ),
    mutation(
        "rows-of-a-tile-without-room-between",
        "9d-49",
        "kernels/attend_matrix_gpu.py",
        "    return i32(head_dim * i32(2) + i32(16))\n",
        "    return i32(head_dim * i32(2))\n",
        test="tests/test_gpu_attend.py::test_a_step_of_attention[bfloat16-True-64-32-12-8-2-2-1]",
        text="no number changes: eight rows of a matrix are in one bank, and a GPU reads them one after the other",
        expects="meet in a bank",
    ),
    mutation(
        "poison-that-comes-late",
        "9a-15",
        _DEVICE,
        """array.dtype.kind == "f" else 0xA5, array.nbytes)
                self._settle()
""",
        """array.dtype.kind == "f" else 0xA5, array.nbytes)
""",
        test="tests/test_cuda_device_start.py::test_poison_does_not_overwrite_what_a_kernel_wrote_first",
        text="random weights become nearly zero where a GPU is shared and slow; elsewhere the memset has run by then",
    ),
    mutation(
        "constant-that-comes-late",
        "9a-15",
        _DEVICE,
        """                runtime.memcpy(array.pointer, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)
                self._settle()
""",
        """                runtime.memcpy(array.pointer, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)
""",
        test="tests/test_cuda_device_start.py::test_constants_are_there_when_the_call_returns",
        text="seconds pass before the first step reads it",
    ),
)
