"""Mutations of the products whose weights flow: what is asked for, when, and who waits for whom."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_FILE, _HELD = "kernels/flow_gpu.py", "kernels/held_gpu.py"
_TILES = "tests/test_gpu_flow.py::test_tiles[8-40-576-3-6-8-40-bfloat16]"

MUTATIONS = (
    mutation(
        "columns-of-the-first-stage-twice",
        "9d-49",
        _FILE,
        "        column = (line + place * i32(_LINES)) << i32(6)",
        "        column = line << i32(6)",
        test=_TILES,
        text="only on a GPU",
        expects="AssertionError",
    ),
    mutation(
        "rows-of-a-slab-that-meet-in-a-bank",
        "9d-49",
        _FILE,
        "    return u32(row * i32(_ROW_BYTES) + ((row + i32(1)) >> i32(1)) * i32(_GAP))",
        "    return u32(row * i32(_ROW_BYTES) + (row >> i32(1)) * i32(_GAP))",
        test="tests/test_gpu_flow.py::test_lanes_of_a_read_have_banks_of_their_own",
        text="only on a GPU, and only in the time of a step",
        expects="assert",
    ),
    mutation(
        "block-ends-before-what-it-asked-for-came",
        "9d-49",
        "kernels/flow_project.py",
        "    while token < max(live, i32(1)):",
        "    while token < live:",
        test="tests/test_gpu_flow.py::test_nothing_is_under_way_when_a_block_ends[0]",
        text="only on a GPU, and only where a step has no live rows: whoever has that shared memory next finds weights in it",
        expects="assert",
    ),
    mutation(
        "odd-rows-of-a-slab-meet-even-ones-in-a-bank",
        "9d-49",
        "kernels/slab_gpu.py",
        "    return u32(((row & i32(1)) << i32(6)) + (quad << i32(4)))",
        "    return u32(quad << i32(4))",
        test="tests/test_gpu_slab.py::test_lanes_of_a_read_have_banks_of_their_own",
        text="only on a GPU, and there the halves of odd rows are changed over: the ids are others",
        expects="assert",
    ),
    mutation(
        "gate-in-both-halves-of-a-slab",
        "9d-49",
        "kernels/slab_gpu.py",
        "            copy_run(u32(address + u32(size << u32(2))), weight, i64(other) * i64(depth), lower, barrier, evict_first())",
        "            copy_run(u32(address + u32(size << u32(2))), weight, i64(row) * i64(depth), lower, barrier, evict_first())",
        test="tests/test_gpu_slab.py::test_gate_up[8-35-512-2-8]",
        text="only on a GPU, and only where this form of gate and up was measured fastest",
        expects="AssertionError",
    ),
    mutation(
        "block-of-slabs-ends-before-what-it-asked-for-came",
        "9d-49",
        "kernels/slab_gate_up.py",
        "    while token < max(live, i32(1)):",
        "    while token < live:",
        test="tests/test_gpu_slab.py::test_nothing_is_under_way_when_a_block_ends[0]",
        text="as of the form beside it: whoever has that shared memory next finds weights in it",
        expects="assert",
    ),
    mutation(
        "lines-of-the-same-tile-asked-for-again",
        "9d-49",
        _HELD,
        "        near, far = place_of(weight, after + member), place_of(weight, after + member + i32(8))",
        "        near, far = place_of(weight, row + member), place_of(weight, row + member + i32(8))",
        test="tests/test_gpu_held.py::test_head[2-100-3-1-bfloat16]",
        text="only on a GPU: the common form holds nothing",
        expects="AssertionError",
    ),
    mutation(
        "tile-behind-the-last-one-read",
        "9d-49",
        _HELD,
        "        member, quad, wanted = lane() >> i32(2), lane() & i32(3), is_there(weight, after)",
        "        member, quad, wanted = lane() >> i32(2), lane() & i32(3), u32(1)",
        test="tests/test_gpu_held.py::test_no_weight_is_asked_for_twice",
        text="no result depends on it: a third of the weights is read once more",
        expects="assert",
    ),
    mutation(
        "rows-beyond-eight-with-the-last-tile-s-weights",
        "9d-49",
        "kernels/held_head.py",
        "                    after = first\n",
        "                    after = outputs\n",
        test="tests/test_gpu_held.py::test_head[3-90-9-1-bfloat16]",
        text="only on a GPU, and only with more than eight rows of logits",
        expects="AssertionError",
    ),
)
