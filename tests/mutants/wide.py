"""Mutations of the products of many rows: what their ring holds, and where."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_TILE, _TEST = "kernels/wide_tile_gpu.py", "tests/test_gpu_wide.py::test_products"
_SMALL = _TEST + "[bfloat16-9-120-456-0-1-wide_tile_gpu]"

MUTATIONS = (
    mutation(
        "ring-refilled-before-it-was-read",
        "9d-49",
        _TILE,
        "                copy_weights(u32(to + behind), weight, first, second, ahead)",
        "                copy_weights(u32(to + turn), weight, first, second, ahead)",
        test=_SMALL,
        text="only on a GPU, and only where a row has more chunks than the ring",
        expects="AssertionError",
    ),
    mutation(
        "pieces-of-a-line-that-meet-in-a-bank",
        "9d-49",
        _TILE,
        "    return u32(line * i32(LINE) + ((piece ^ (line & i32(7))) << i32(4)))",
        "    return u32(line * i32(LINE) + (piece << i32(4)))",
        test=_SMALL,
        text="only on a GPU",
        expects="AssertionError",
    ),
)
