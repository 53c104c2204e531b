"""Global memory and words of registers as the instructions of kernels/lang_*.py see them, for tests/warp_emulator.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.storage_cases import stored, widened

Words = tuple[np.uint32, ...]


def load16(array: np.ndarray, offset: int) -> Words:
    """Refuses what the hardware would fault on: an address that is no multiple of 16, and one beyond the array."""
    start = int(offset) * array.itemsize
    assert start % 16 == 0, f"element {offset} of {array.dtype} is not aligned"
    assert 0 <= start <= array.nbytes - 16, f"element {offset} is outside {array.shape}"
    return tuple(array.reshape(-1).view(np.uint8)[start : start + 16].view(np.uint32))


def put16(array: np.ndarray, offset: int, words: Words) -> None:
    """Refuses what `load16` refuses."""
    load16(array, offset)
    array.reshape(-1)[int(offset) :].view(np.uint8)[:16] = np.array(words, np.uint32).view(np.uint8)


def load4(array: np.ndarray, offset: int) -> np.uint32:
    """Refuses odd elements, and those beyond the array."""
    assert array.itemsize == 2
    assert int(offset) % 2 == 0, f"element {offset} is not aligned"
    assert 0 <= int(offset) <= array.size - 2, f"element {offset} is outside {array.shape}"
    word: np.uint32 = array.reshape(-1)[int(offset) : int(offset) + 2].view(np.uint32)[0]
    return word


def put4(array: np.ndarray, offset: int, word: Any) -> None:
    """Refuses what `load4` refuses."""
    load4(array, offset)
    array.reshape(-1)[int(offset) : int(offset) + 2].view(np.uint32)[0] = word


def eight_float32(array: np.ndarray, offset: int) -> tuple[np.float32, ...]:
    """`eight_float32` of kernels/lang_vector.py."""
    load16(array, offset)
    return tuple(widened(array.reshape(-1)[int(offset) : int(offset) + 8]))


def pair_of(dtype: str) -> Callable[[Any, Any], np.uint32]:
    def pair(low: Any, high: Any) -> np.uint32:
        word: np.uint32 = stored(np.array([low, high], np.float32), dtype).view(np.uint32)[0]
        return word

    return pair


def select_bytes(low: Any, high: Any, selector: Any) -> np.uint32:
    taken = np.array([low, high], np.uint32).view(np.uint8)
    word: np.uint32 = np.array([taken[int(selector) >> (4 * i) & 7] for i in range(4)], np.uint8).view(np.uint32)[0]
    return word
