"""Mutations of the products of many rows: what their ring holds and where, and what warp groups see of it."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_GROUP, _LANG, _TEST = "kernels/wide_group_gpu.py", "kernels/lang_group.py", "tests/test_gpu_wide.py::test_parts"
_SMALL = _TEST + "[bfloat16-9-120-456-0-1]"

MUTATIONS = (
    mutation(
        "ring-refilled-before-it-was-read",
        "9d-49",
        _GROUP,
        "                    copy(u32(to + behind), weight, first, ahead)",
        "                    copy(u32(to + turn), weight, first, ahead)",
        test=_SMALL,
        text="only on a GPU, and only where a row has more chunks than the ring",
        expects="AssertionError",
    ),
    mutation(
        "pieces-where-warp-groups-do-not-look",
        "9d-49",
        _GROUP,
        "    return u32(line * i32(LINE) + ((piece ^ (line & i32(7))) << i32(4)))",
        "    return u32(line * i32(LINE) + (piece << i32(4)))",
        test=_SMALL,
        text="only on a GPU",
        expects="AssertionError",
    ),
    mutation(
        "copies-that-warp-groups-do-not-see",
        "9d-49",
        _GROUP,
        "                let_groups_see_copies()\n",
        "",
        test=_SMALL,
        text="only on a GPU, and there seldom",
        expects="AssertionError",
    ),
    mutation(
        "ring-that-begins-within-a-swizzle",
        "9d-49",
        _GROUP,
        "u32(ATOM - 1)) & u32(0xFFFFFC00)",
        "u32(LINE - 1)) & u32(0xFFFFFF80)",
        test=_SMALL,
        text="only on a GPU whose driver puts shared memory elsewhere than at a multiple of 1,024 bytes",
        expects="AssertionError",
    ),
    mutation(
        "sixteen-columns-too-far",
        "9d-49",
        _LANG,
        "builder.add(first, ir.Constant(_LONG, 2 * step))",
        "builder.add(first, ir.Constant(_LONG, 4 * step))",
        test=_SMALL,
        text="only on a GPU",
        expects="AssertionError",
    ),
    mutation(
        "sums-that-are-still-under-way",
        "9d-49",
        _GROUP,
        "            return _sums(totals)\n",
        "            return totals\n",
        test=_SMALL,
        text="only on a GPU, by chance",
        expects="AssertionError",
    ),
    mutation(
        "rows-stored-over-those-eight-above",
        "9d-49",
        _GROUP,
        "_store_far(out, i64(row + i32(8)) * pitch + at, totals, column, outputs)",
        "_store_far(out, i64(row) * pitch + at, totals, column, outputs)",
        test=_SMALL,
        text="only on a GPU",
        expects="AssertionError",
    ),
    mutation(
        "gates-of-other-columns",
        "9d-49",
        _GROUP,
        "put(out, at + i64(24), i32(24) < left, s[24], s[25], s[28], s[29])",
        "put(out, at + i64(24), i32(24) < left, s[24], s[25], s[20], s[21])",
        test="tests/test_gpu_wide.py::test_gate_up[bfloat16-9-72-456-0]",
        text="only on a GPU",
        expects="AssertionError",
    ),
    # ---- the head of many rows ---------------------------------------------------------------------------------------
    mutation(
        "head-that-asks-for-its-first-tile-again",
        "9d-49",
        "kernels/wide_head_gpu.py",
        "next_chunk, next_first = i32(0), i32(next_first + step)",
        "next_chunk, next_first = i32(0), i32(next_first)",
        test="tests/test_gpu_wide_head.py::test_head[float16-66-600-590-128-1]",
        text="only on a GPU: tokens of a tile whose logits are those of another",
    ),
    mutation(
        "sums-that-go-on-in-the-next-tile",
        "9d-49",
        "kernels/wide_head_gpu.py",
        "chunk, column, totals = i32(0), i32(column + step), _no_sums()",
        "chunk, column = i32(0), i32(column + step)",
        test="tests/test_gpu_wide_head.py::test_head[float16-66-600-590-128-1]",
        text="only on a GPU",
    ),
    mutation(
        "highest-column-of-equal-logits",
        "9d-49",
        "kernels/wide_head.py",
        "total > value:",
        "total >= value:",
        test="tests/test_kernels_wide_head.py::test_head_and_best_columns[64-590-2-200-1-float32-cpu-1x1]",
        text="only where two logits are equal",
    ),
)
