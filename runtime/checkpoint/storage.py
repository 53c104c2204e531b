"""Bytes of a checkpoint to the dtype of the weights: bfloat16 without any library that knows it, in bounded chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from runtime.checkpoint.weights import STORAGE, WeightArray, WeightDtype
from runtime.errors import CheckpointError

CHUNK_ELEMENTS = 1 << 16  # scratch stays in the cache; measured best of 2^14 .. 2^20 for dequantising


def row_chunks(shape: tuple[int, ...], elements: int | None = None) -> Iterator[slice]:
    """Slices over the first axis, of about that many elements (None: CHUNK_ELEMENTS)."""
    width = max(1, int(np.prod(shape[1:])))
    step = max(1, (elements or CHUNK_ELEMENTS) // width)
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Exact: a bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even; NaN stays NaN (the rounding carry alone could turn it into infinity)."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        rounded[nan] = 0x7FC0
    return rounded


def store(destination: WeightArray, values: npt.NDArray[np.float32], dtype: WeightDtype, origin: str) -> None:
    """destination[...] = values in `dtype`.

    `origin` names file and tensor. Raises CheckpointError where a value overflows float16.
    """
    if dtype == "bfloat16":
        destination[...] = float32_to_bfloat16(values)
        return
    try:
        with np.errstate(over="raise"):
            destination[...] = values
    except FloatingPointError:
        raise CheckpointError(
            f"{origin} holds values beyond 65504, the largest of dtype = float16: use dtype = bfloat16 or float32"
        ) from None


def check_finite(stored: WeightArray, dtype: WeightDtype, origin: str) -> None:
    """Refuse NaN and infinity among weights that were just stored, while they are in the cache: in a drafter they would show as
    lost acceptance alone. A chunk of 65536 weights takes 6 microseconds in each dtype, about as long as copying it.

    Raises CheckpointError.
    """
    if dtype == "float32":
        finite = bool(np.isfinite(stored).all())
    else:  # by their bits: an exponent of ones. NumPy's own test of float16 takes fifteen times as long, and it knows no bfloat16
        exponent = np.uint16(0x7C00 if dtype == "float16" else 0x7F80)
        finite = bool((stored.view(np.uint16) & exponent).max(initial=0) != exponent)
    if not finite:
        values = bfloat16_to_float32(stored) if dtype == "bfloat16" else stored
        first = values[~np.isfinite(values)][0]
        raise CheckpointError(
            f"{origin} holds {first}: weights must be finite numbers; the file is damaged or its training diverged: remove it "
            "and fetch it again, or use another checkpoint"
        )


def check_dtype(dtype: str) -> None:
    if dtype not in STORAGE:
        raise CheckpointError(f"dtype = {dtype!r}: weights can be stored as {', '.join(STORAGE)}")


def check_tensors(
    origin: object, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], label: Callable[[str], str]
) -> None:
    """Compare the tensors of a checkpoint with those of its spec; `label` turns a neutral name into the file's own.

    Raises one CheckpointError that lists every missing, unexpected and misshapen tensor.
    """
    lines = [f"missing: {label(name)} {list(expected[name])}" for name in expected if name not in found]
    lines += [f"unexpected: {label(name)} {list(found[name])}" for name in found if name not in expected]
    lines += [
        f"misshapen: {label(name)} is {list(found[name])}, the model's shape says {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if lines:
        remedy = "fetch all its files from one place"
        raise CheckpointError.listing(f"{origin}: {len(lines)} tensors do not fit the model that it describes; {remedy}", lines)
