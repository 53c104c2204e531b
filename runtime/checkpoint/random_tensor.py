"""A weight that is no data but a seed: it stands where an array would, and is made in the memory where it will be used."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphs.launch import Array
from kernels.fill_random import fill_random
from runtime.checkpoint.stored_weight import StoredWeight
from runtime.device import Device, Stream

FILL_BLOCKS, FILL_THREADS = 1024, 256


@dataclass(frozen=True)
class RandomTensor:
    """Uniform values of standard deviation `deviation`, the same for the same seed on every device.

    shape, dtype: as of an array. seed: int32 >= 0.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    deviation: float
    seed: int

    @classmethod
    def named(cls, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], deviation: float, seed: int) -> RandomTensor:
        """Of a seed that depends on the tensor's name as well as on the model's seed."""
        return cls(shape, dtype, deviation, zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class ConstantMemory:
    """Puts weights into read-only device memory: arrays by a copy, stored ones once they were read, random ones by a kernel there.

    Args:
        prefix: in front of every name.
    """

    def __init__(self, device: Device, prefix: str = "") -> None:
        self._device, self._prefix = device, prefix
        self._stream: Stream | None = None

    def __call__(self, name: str, values: Any) -> Array:
        """Blocks until the values are there. Raises DeviceError when they do not fit."""
        name = self._prefix + name
        if isinstance(values, StoredWeight):
            return self._device.constant(name, values.read())
        if not isinstance(values, RandomTensor):
            return self._device.constant(name, values)
        if self._stream is None:
            self._stream = self._device.stream(f"{self._prefix}random weights")
        array = self._device.array(name, values.shape, values.dtype)
        flat = array.reshape((math.prod(values.shape),))
        self._stream.launch(fill_random, FILL_BLOCKS, FILL_THREADS, flat, values.deviation * math.sqrt(3.0), values.seed)
        self._device.seal(array)
        return array
