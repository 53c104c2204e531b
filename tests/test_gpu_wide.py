"""The GPU forms of the wide products, from their own source in emulated warps: turns of the ring, tails, which sums go where; warp
groups: descriptors, swizzle, and what they see of copies."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.emulated_module import gpu_module
from tests.fragment_emulator import fragments_module
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

NUMPY = {"bfloat16": "uint16", "float16": "float16"}
RING = np.full(1, 1040 / 65536, np.float32)  # its address in the emulator's own memory: it begins at the next boundary
HEIGHT = 192


def forms(warp: Warp) -> ModuleType:
    modules = {name: fragments_module(warp, name) for name in ("lang_wide", "lang_group", "lang_head")}
    return gpu_module("wide_group_gpu", warp, **modules)


@pytest.mark.parametrize(
    ("storage", "tokens", "outputs", "depth", "part", "parts"),
    [
        ("bfloat16", 9, 120, 456, 0, 1),  # the ring of six turns, the last chunk is not whole
        ("bfloat16", 64, 200, 136, 0, 1),
        ("float16", 21, 208, 64, 0, 1),
        ("bfloat16", 5, 192, 968, 1, 2),
        ("bfloat16", 5, 192, 128, 2, 3),  # no column left
    ],
)
def test_parts(storage: str, tokens: int, outputs: int, depth: int, part: int, parts: int) -> None:
    """Rows from 1 on of activations that have a row more on either side; a tile that may leave its last rows without weights."""
    warp = Warp(8)
    module = forms(warp)
    x, weight = stored(floats(1, 2 + tokens, depth), storage), stored(floats(3, outputs, depth), storage)
    kind, first, shared = NUMPY[storage], np.int32(8), (np.int32(part), np.int32(parts))
    found = np.full((2 + tokens, parts * outputs + 8), -7, np.float32)

    def block() -> None:
        module.BEGIN_PARTS[kind](RING, weight, first, *shared)
        module.STORE_PARTS[kind, kind](RING, found, x, np.int32(1), np.int32(1 + tokens), weight, first, *shared)

    warp.run(block)
    own, columns = np.arange(depth) // 64 % parts == part, slice(first, min(first + HEIGHT, outputs))
    expected = np.full_like(found, -7)
    sums = widened(x)[1:-1, own].astype(np.float64) @ widened(weight)[columns, own].T
    expected[1:-1, part * outputs :][:, columns] = sums
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("storage", "tokens", "outputs", "depth", "first"),
    [("bfloat16", 9, 72, 456, 0), ("float16", 33, 200, 72, 96), ("bfloat16", 64, 112, 64, 96)],
)
def test_gate_up(storage: str, tokens: int, outputs: int, depth: int, first: int) -> None:
    """As above; tiles that end within the columns of the second group, the first, and the first eight."""
    warp = Warp(8)
    module = forms(warp)
    x, weight = stored(floats(1, 2 + tokens, depth) * np.float32(0.25), storage), stored(floats(3, 2 * outputs, depth), storage)
    kind, found = NUMPY[storage], stored(np.full((2 + tokens, outputs), -7, np.float32), storage)

    def block() -> None:
        module.BEGIN_GATE_UP[kind](RING, weight, np.int32(first))
        module.STORE_GATE_UP[kind, kind](RING, found, x, np.int32(1), np.int32(1 + tokens), weight, np.int32(first))

    warp.run(block)
    columns, expected = slice(first, first + HEIGHT // 2), np.full(found.shape, -7, np.float64)
    gate, up = np.split(widened(x)[1:-1].astype(np.float64) @ widened(weight).T.astype(np.float64), 2, axis=1)
    expected[1:-1, columns] = (gate / (1 + np.exp(-gate)) * up)[:, columns]
    np.testing.assert_allclose(widened(found), expected, rtol=1e-2, atol=1e-2)
