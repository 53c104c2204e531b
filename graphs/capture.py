"""Raw CUDA work that CuPy's arrays refuse under capture, and the capture itself. Imported on machines with CuPy alone.

A capture is one short loop over work that is bound already: whatever can fail in a recorder (a shape, a compile error, an
exception of its own) fails before the stream has entered capture mode. CuPy's graphs keep no array alive: their owner does
(runtime/cuda_graph.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
from cuda.bindings import driver
from cupy.cuda import runtime

from graphs.direct_launch import DriverError

_MEMSETS = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}


@dataclass(frozen=True)
class Rows:
    """Device-visible memory as rows of contiguous bytes: `height` rows of `width` bytes, `pitch` bytes apart, from `pointer`."""

    pointer: int
    width: int
    height: int
    pitch: int

    @classmethod
    def of(cls, pointer: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Rows | None:
        """The rows of a strided array (strides in bytes); None when no single pitch reaches them all."""
        axes = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
        if any(n == 0 for n, _ in axes):
            return cls(pointer, 0, 1, 0)
        width = itemsize
        while axes and axes[-1][1] == width:
            width *= axes.pop()[0]
        if not axes:
            return cls(pointer, width, 1, width)
        height, pitch = axes.pop()
        while axes and axes[-1][1] == height * pitch:
            height *= axes.pop()[0]
        return None if axes else cls(pointer, width, height, pitch)

    def split(self, width: int) -> Rows | None:
        """The same bytes as rows of `width`; None when that needs another pitch."""
        if width == self.width:
            return self
        if self.height == 1 and width and self.width % width == 0:
            return Rows(self.pointer, width, self.width // width, width)
        return None


def copy_async(dst: Rows, src: Rows, stream: int) -> Callable[[], object] | None:
    """A call that queues dst = src of as many bytes; None when their rows do not fit each other."""
    width = min(dst.width, src.width)
    target, source = dst.split(width), src.split(width)
    if target is None or source is None or target.height != source.height:
        return None
    if not width:
        return _nothing
    kind = runtime.memcpyDefault
    if target.height == 1:
        return partial(runtime.memcpyAsync, target.pointer, source.pointer, width, kind, stream)
    rows = target.pointer, target.pitch, source.pointer, source.pitch, width, target.height
    return partial(runtime.memcpy2DAsync, *rows, kind, stream)


def _nothing() -> None:
    """A copy without bytes."""


def fill_async(dst: Rows, value: int | float, dtype: npt.DTypeLike, stream: int) -> None:
    """Queue dst = value for elements of 1, 2 or 4 bytes."""
    pattern = np.array(value, dtype)
    memset = _MEMSETS[pattern.itemsize]
    word = int(pattern.view(f"u{pattern.itemsize}"))
    for row in range(dst.height):
        if dst.width:
            pointer = driver.CUdeviceptr(dst.pointer + row * dst.pitch)
            (status,) = memset(pointer, word, dst.width // pattern.itemsize, driver.CUstream(stream))
            if status != driver.CUresult.CUDA_SUCCESS:
                raise DriverError(f"{memset.__name__}: {status.name}")


@dataclass(frozen=True)
class Action:
    """Something bound that goes onto a stream: a node of the graph, or an event record or wait between its branches."""

    label: str
    issue: Callable[[], object]


class CaptureFailed(Exception):  # noqa: N818 - the exception of one outcome, raised and caught by name
    """CUDA refused an action inside a capture, or the capture as a whole. The stream is out of capture mode."""

    def __init__(self, label: str, cause: BaseException) -> None:
        super().__init__(f"{label}: {type(cause).__name__}: {cause}")


def capture(stream: cupy.cuda.Stream, actions: Sequence[Action]) -> Any:
    """The cupy.cuda.Graph of `actions`, instantiated and uploaded. The stream works again however this ends.

    Raises:
        CaptureFailed: names the action that failed.
    """
    try:
        stream.begin_capture()
    except runtime.CUDARuntimeError as error:
        raise CaptureFailed("begin", error) from error
    for action in actions:
        try:
            action.issue()
        except BaseException as error:
            _leave_capture(stream)
            if isinstance(error, Exception):
                raise CaptureFailed(action.label, error) from error
            raise
    try:
        graph = stream.end_capture()
        graph.upload(stream)
    except runtime.CUDARuntimeError as error:
        raise CaptureFailed("end", error) from error
    return graph


def _leave_capture(stream: cupy.cuda.Stream) -> None:
    """End a capture that nobody wants. CUDA reports again that it was invalidated; the stream has left capture mode even so."""
    try:
        stream.end_capture()
    except runtime.CUDARuntimeError:
        if stream.is_capturing():
            raise
