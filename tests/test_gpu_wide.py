"""The GPU forms of the wide products, from their own source in emulated warps: lanes, fragments, banks, tails, the ring's turns;
warp groups: descriptors, swizzle, and what they see of copies."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulated_module import gpu_module
from tests.fragment_emulator import fragments_module
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

NUMPY = {"bfloat16": "uint16", "float16": "float16"}
RING = np.full(1, 1040 / 65536, np.float32)  # its address in the emulator's own memory: it begins at the next boundary
HALF = 96


@pytest.mark.parametrize(
    ("storage", "tokens", "outputs", "depth", "part", "parts"),
    [
        ("bfloat16", 9, 120, 456, 0, 1),  # the ring of six turns, the last chunk is not whole
        ("bfloat16", 64, 192, 136, 0, 1),
        ("float16", 33, 192, 72, 0, 1),
        ("float16", 21, 200, 64, 0, 1),
        ("bfloat16", 5, 192, 968, 1, 2),
        ("bfloat16", 5, 192, 128, 2, 3),  # no column left
    ],
)
def test_products(storage: str, tokens: int, outputs: int, depth: int, part: int, parts: int) -> None:
    """Rows from 1 on of activations that have a row more in front; halves at rows that leave their last rows without weights."""
    warp = Warp(8)
    module = gpu_module("wide_group_gpu", warp, **{name: fragments_module(warp, name) for name in ("lang_wide", "lang_group")})
    x, weight = stored(floats(1, 1 + tokens, depth), storage), stored(floats(3, outputs, depth), storage)
    kind, first, second = NUMPY[storage], np.int32(outputs - HALF + 8), np.int32(8)
    found, shared = np.full((tokens, 2 * HALF), -7, np.float32), (np.int32(part), np.int32(parts))

    def block() -> None:
        module.BEGIN[kind](RING, weight, first, second, *shared)
        module.MULTIPLY[kind, kind](RING, x, np.int32(1), weight, first, second, *shared)
        warp.syncthreads()
        for item in range(int(warp.threadIdx.x), tokens * 2 * HALF // 8, 256):
            t, place = divmod(item, 2 * HALF // 8)
            where = (np.int32(0), np.int32(0), np.int32(t), np.int32(8 * place))
            found[t, 8 * place : 8 * place + 8] = module.SUMS[kind, kind](RING, x, weight, *where, *shared)

    warp.run(block)
    rows = np.append(first + np.arange(HALF), second + np.arange(HALF))
    held = np.zeros((2 * HALF, depth))
    held[rows < outputs] = widened(weight)[rows[rows < outputs]]
    own = np.arange(depth) // 64 % parts == part
    np.testing.assert_allclose(found, widened(x)[1:, own].astype(np.float64) @ held[:, own].T, rtol=1e-4, atol=1e-3)
