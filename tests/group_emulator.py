"""Warp groups of an emulated block, and the statements of kernels/lang_group.py: PTX ISA 8, "Asynchronous warpgroup level matrix
instructions". Descriptors are decoded, and the swizzle applied to addresses, as the hardware does it."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np

from tests.storage_cases import widened
from tests.warp_emulator import LANES, Warp

_WARPS = 4
_KINDS = {"bf16": np.uint16, "f16": np.float16}
_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)\.\2 \{([$\d, ]+)\}, \$(\d+), \$(\d+), 1, 1, 1, 0, 0;"
)


class _Group:
    def __init__(self) -> None:
        self.barrier = threading.Barrier(_WARPS * LANES, timeout=60)
        self.offered: dict[int, Any] = {}
        self.result = np.zeros((0, 0), np.float32)


class WarpGroups:
    """Those of all blocks of `warp`."""

    def __init__(self, warp: Warp) -> None:
        self._warp = warp
        self._groups: dict[tuple[int, int], _Group] = {}
        self._lock = threading.Lock()

    def multiply(self, text: str, constraints: str, args: Any) -> tuple[np.float32, ...]:
        """The sums of this thread behind one statement: fence, products, the end of their group, the wait for it."""
        begin, *products, end, wait = text.split("\n")
        assert begin == "wgmma.fence.sync.aligned;"
        assert end == "wgmma.commit_group.sync.aligned;"
        assert wait == "wgmma.wait_group.sync.aligned 0;"
        found = [_PRODUCT.fullmatch(product) for product in products]
        thread, count = int(self._warp.threadIdx.x), int(found[0][1]) // 2  # type: ignore[index]
        words = constraints.split(",")
        assert words[: 2 * count] == ["=f"] * count + [str(i) for i in range(count)], "sums in are not sums out"
        assert set(words[2 * count :]) == {"l", "~{memory}"}
        with self._lock:
            group = self._groups.setdefault((int(self._warp.cluster_rank()), thread // (_WARPS * LANES)), _Group())
        group.offered[thread] = args[count:]
        if group.barrier.wait() == 0:
            assert len({tuple(map(int, each)) for each in group.offered.values()}) == 1, "threads of a group differ"
            group.offered.clear()
            group.result = np.zeros((64, 2 * count), np.float32)
            for each in found:
                assert each is not None, products
                assert re.findall(r"\d+", each[3]) == [str(i) for i in range(count)], "sums out of order"
                a, b = (self._operand(int(args[int(each[i]) - count]), height, each[2]) for i, height in ((4, 64), (5, 2 * count)))
                group.result += a @ b.T
        group.barrier.wait()
        row, column = thread // LANES % _WARPS * 16 + thread % LANES // 4, 2 * (thread % 4)
        places = [(row + i // 2 % 2 * 8, column + i // 4 * 8 + i % 2) for i in range(count)]
        return tuple(np.float32(total + group.result[place]) for total, place in zip(args[:count], places, strict=True))

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
