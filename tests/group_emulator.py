"""Warp groups of an emulated block, and the statements of kernels/lang_group.py: PTX ISA 8, "Asynchronous warpgroup level matrix
instructions". Descriptors are decoded, and the swizzle applied to addresses, as the hardware does it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.storage_cases import widened
from tests.turns import Meeting
from tests.warp_emulator import LANES, Warp

_WARPS = 4
_KINDS = {"bf16": np.uint16, "f16": np.float16}
_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)\.\2 \{([$\d, ]+)\}, \$(\d+), \$(\d+), 1, 1, 1, 0, 0;"
)


class WarpGroups:
    """Those of all blocks of `warp`. While products are under way their sums are NaN, and their operands are read when they are
    waited for: what is stored there meanwhile shows."""

    def __init__(self, warp: Warp) -> None:
        self._warp = warp
        self._groups: dict[tuple[int, int], Meeting] = {}

    def run(self, text: str, constraints: str, args: Any) -> tuple[np.float32, ...]:
        """The sums of this thread behind a statement: a group of products, or the wait for all such groups but the last ones."""
        if wait := re.fullmatch(r"wgmma\.wait_group\.sync\.aligned (\d+);", text):
            self._check(constraints, len(args))
            return self._wait(int(wait[1]), args)
        begin, *products, end = text.split("\n")
        assert begin == "wgmma.fence.sync.aligned;"
        assert end == "wgmma.commit_group.sync.aligned;"
        asked: list[tuple[str, int, int]] = []
        for product in products:
            found = _PRODUCT.fullmatch(product)
            assert found is not None, product
            count = int(found[1]) // 2
            self._check(constraints, count)
            assert re.findall(r"\d+", found[3]) == [str(i) for i in range(count)], "sums out of order"
            rows, weights = (int(args[int(found[i]) - count]) for i in (4, 5))
            asked.append((found[2], rows, weights))
        if not self._under_way:
            self._warp.local.sums = args[:count]
        self._under_way.append(tuple(asked))
        return (np.float32(np.nan),) * count

    @property
    def _under_way(self) -> list[tuple[tuple[str, int, int], ...]]:
        """Groups of products that this thread has not waited for: of each storage type, and descriptors of rows and weights."""
        local = self._warp.local
        if not hasattr(local, "products"):
            local.products = []
        products: list[tuple[tuple[str, int, int], ...]] = local.products
        return products

    def _check(self, constraints: str, count: int) -> None:
        words = constraints.split(",")
        assert words[: 2 * count] == ["=f"] * count + [str(i) for i in range(count)], "sums in are not sums out"
        assert set(words[2 * count :]) <= {"l", "~{memory}"}

    def _wait(self, left: int, args: Any) -> tuple[np.float32, ...]:
        thread, count = int(self._warp.threadIdx.x), len(args)
        if not self._under_way:
            return tuple(args)
        meeting = self._groups.setdefault(
            (int(self._warp.cluster_rank()), thread // (_WARPS * LANES)), self._warp.meeting(_WARPS * LANES)
        )
        done = max(len(self._under_way) - left, 0)
        offered = tuple(self._under_way[:done])
        del self._under_way[:done]
        result = meeting.wait(offered, lambda offers: self._products(offers, 2 * count))
        row, column = thread // LANES % _WARPS * 16 + thread % LANES // 4, 2 * (thread % 4)
        places = [(row + i // 2 % 2 * 8, column + i // 4 * 8 + i % 2) for i in range(count)]
        local = self._warp.local
        local.sums = [total + result[place] for total, place in zip(local.sums, places, strict=True)]
        return tuple(map(np.float32, local.sums)) if not self._under_way else (np.float32(np.nan),) * count

    def _products(self, offers: list[Any], width: int) -> np.ndarray:
        (products,) = set(offers)  # the same for all threads
        result = np.zeros((64, width), np.float32)
        for kind, rows, weights in (each for of_group in products for each in of_group):
            result += self._operand(rows, 64, kind) @ self._operand(weights, width, kind).T
        return result

    def _operand(self, descriptor: int, height: int, kind: str) -> np.ndarray:
        """[height, 16] float32: what a descriptor names, each row a line of 128 bytes in swizzled groups of eight."""
        assert descriptor >> 62 == 1, "not the 128-byte swizzle"
        assert descriptor >> 49 & 7 == 0
        start, stride = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        pieces = []
        for line in range(height):
            for piece in range(2):
                address = start + line // 8 * stride + line % 8 * 128 + piece * 16
                pieces.append(self._warp.seen16(address ^ (address >> 7 & 7) << 4))
        return widened(np.array(pieces, np.uint32).view(_KINDS[kind])).reshape(height, 16)
