"""Mutations of the attention of prompts on a GPU: what a row sees, where keys lie, how the blocks of a cluster add up."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_ROWS, _SLAB, _SPLIT = "kernels/attend_rows_gpu.py", "kernels/attend_slab_gpu.py", "kernels/attend_split_gpu.py"
_TEST = "tests/test_gpu_attend_rows.py::test_attention_of_many_rows"
_FIRST = _TEST + "[first]"

MUTATIONS = (
    mutation(
        "an-unseen-key-counts-nothing-times-nan",
        "B27",
        "kernels/attend_tile.py",
        "            if share != f32(0.0):  #",
        "            if share == share:  #",
        test="tests/test_kernels_attend_rows.py::test_nan_in_a_key_is_nobodys_who_does_not_see_it",
        text="a rejected draft's NaN reaches the rows before it, whose request then ends with an error",
        expects="AssertionError",
    ),
    mutation(
        "a-key-of-the-next-row",
        "9d-49",
        _SLAB,
        "        s[1] if after < near_seen else NEG_INF,\n",
        "        s[1] if after <= near_seen else NEG_INF,\n",
        test=_FIRST,
        text="one key more among thousands, of the prompt itself",
        expects="AssertionError",
    ),
    mutation(
        "no-mask-on-a-tile-that-some-rows-see-whole",
        "9d-49",
        _ROWS,
        "                if i32(first + i32(_KEYS)) > least:\n",
        "                if i32(first + i32(_KEYS)) > most:\n",
        test=_TEST + "[cached]",
        text="rows that are no multiple of the tile hide it, and so does a prompt in a single row",
        expects="AssertionError",
    ),
    mutation(
        "a-cell-behind-the-last-key-is-read",
        "9d-49",
        _ROWS,
        "        if key < keys:\n",
        "        if key <= keys:\n",
        test=_FIRST,
        text="its share is zero, and whatever lies there is finite until it is not",
        expects="AssertionError",
    ),
    mutation(
        "values-not-where-they-were-copied-to",
        "9d-49",
        _ROWS,
        "        value_turn = u32((octet ^ (lane() >> i32(4))) << i32(4))\n",
        "        value_turn = u32((lane() >> i32(4)) << i32(4))\n",
        test=_FIRST,
        text="only on a GPU",
        expects="AssertionError",
    ),
    mutation(
        "blocks-of-a-cluster-weigh-the-same",
        "9d-49",
        _SPLIT,
        "weight = exp2(read_cluster(cluster_address(stat, i32(block))) - top) / total",
        "weight = f32(1.0) / total",
        test=_TEST + "[three-blocks]",
        text="right where all blocks meet the same largest score, and only on a GPU",
        expects="AssertionError",
    ),
    mutation(
        "the-last-tile-of-a-request-forgotten",
        "B13",
        _ROWS,
        "            tiles = i32(u32(pair_count + i32(_PAIRS - 1)) // u32(_PAIRS))\n",
        "            tiles = i32(u32(pair_count) // u32(_PAIRS))\n",
        test=_FIRST,
        text="chunks of a power of two have none",
        expects="AssertionError",
    ),
    mutation(
        "batch-invariant-prompts-add-up-as-fast-ones",
        "9d-49",
        "graphs/step_attention.py",
        "        if few or self.batch_invariant:\n",
        "        if few:\n",
        test="tests/test_graphs_step_attention.py::test_batch_invariant_steps_of_any_size_add_up_alike[512]",
        text="the last bit of a row, which hardly ever moves a token",
        expects="AssertionError",
    ),
    mutation(
        "batch-invariant-prompts-rotate-as-fast-ones",
        "9d-49",
        "graphs/step_attention.py",
        "        if self.query.dtype.itemsize == 2 and not self.batch_invariant:\n",
        "        if self.query.dtype.itemsize == 2:\n",
        test="tests/test_graphs_step_attention.py::test_batch_invariant_steps_of_any_size_add_up_alike[512]",
        text="the last bit of a key whose head is normalised, which hardly ever moves a token",
        expects="AssertionError",
    ),
    mutation(
        "a-key-turned-by-the-angles-of-its-neighbour",
        "9d-49",
        "kernels/rotate_gpu.py",
        "cosine, sine = read_eight(table, position, column), read_eight(table, position, i32(half + column))",
        "cosine, sine = read_eight(table, position, column), read_eight(table, position, column)",
        test="tests/test_gpu_rotate.py::test_rotation_and_store[False-64-3-1-5-bfloat16]",
        text="attention of the first tokens hardly changes",
        expects="AssertionError",
    ),
)
