"""Storage types: how an element lies in memory, and how arithmetic sees it.

Weights, activations and the KV cache are float32, float16 or bfloat16; arithmetic is float32. A bfloat16 element is its bits in a
uint16: NumPy has no such type. Where a compiler knows no float16 (numba.njit), an executor hands the bits over as int16.
Kernels read `widen(x[i])` and write `out[i] = narrow(value, out)`; which conversion that is, the types decide at compile time
(in the simulator at each call), so that at float32 nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import extending as cpu_extending

from kernels.lang import SIMULATED, f32

if not SIMULATED:
    from numba.cuda import extending as gpu_extending
    from numba.cuda.types import float16


def by_dtype(name: str, argument: int, choices: Mapping[str, Callable[..., Any]], doc: str) -> Callable[..., Any]:
    """A function for kernels whose source is chosen by the element type of one argument (a value or an array).

    Args:
        name: of the function.
        argument: position of the argument that decides.
        choices: source by NumPy's name of the element type. Each is compiled on its own, so it may use NumPy scalars alone.
        doc: its docstring.
    """

    by_letter = {np.dtype(kind).char: source for kind, source in choices.items()}  # a dtype puts its name together at each call

    def dispatch(*args: Any) -> Any:
        return by_letter[args[argument].dtype.char](*args)

    def choose(*types: Any) -> Callable[..., Any] | None:
        kind = types[argument]
        return choices.get(str(getattr(kind, "dtype", kind)))

    dispatch.__name__, dispatch.__qualname__, dispatch.__doc__ = name, name, doc
    cpu_extending.overload(dispatch, strict=False)(choose)
    if not SIMULATED:
        gpu_extending.overload(dispatch, strict=False)(choose)
    return dispatch


def _same(value):
    return value


def _widen_native(value):
    return f32(value)


def _widen_bfloat16(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def _widen_float16(bits):
    """Exponent and mantissa moved to a float32's place, then the biases' difference multiplied in: right for subnormals too."""
    wide = np.uint32(np.uint32(bits) & np.uint32(0xFFFF))
    sign = np.uint32(np.uint32(wide & np.uint32(0x8000)) << np.uint32(16))
    rest = np.uint32(wide & np.uint32(0x7FFF))
    scaled = np.float32(np.uint32(rest << np.uint32(13)).view(np.float32) * np.uint32(0x77800000).view(np.float32))
    magnitude = np.float32(scaled).view(np.uint32)
    if rest >= np.uint32(0x7C00):  # infinity and NaN
        magnitude = np.uint32(magnitude | np.uint32(0x7F800000))
    return np.uint32(sign | magnitude).view(np.float32)


widen = by_dtype(
    "widen",
    0,
    {"float32": _same, "float16": _widen_native, "uint16": _widen_bfloat16, "int16": _widen_float16},
    """The float32 value of a stored element: float32, float16, bfloat16 bits (uint16) or float16 bits (int16). Exact.""",
)


def _narrow_float32(value, array):
    return value


def _narrow_native(value, array):
    return float16(value)


def _narrow_simulated(value, array):
    with np.errstate(over="ignore"):
        return np.float16(value)


def _narrow_bfloat16(value, array):
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):  # NaN: the carry could make it a zero
        rounded = np.uint32(np.uint32(bits >> np.uint32(16)) | np.uint32(0x40))
    return np.uint16(rounded)


def _narrow_float16(value, array):
    """Round to nearest even by integer carry; below the normal range by adding 0.5, whose last bit is worth 2**-24."""
    bits = np.float32(value).view(np.uint32)
    sign = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))
    rest = np.uint32(bits & np.uint32(0x7FFFFFFF))
    odd = np.uint32(np.uint32(rest >> np.uint32(13)) & np.uint32(1))
    half = np.uint32(np.uint32(rest - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13))
    if rest < np.uint32(0x38800000):
        shifted = np.float32(np.uint32(rest).view(np.float32) + np.float32(0.5))
        half = np.uint32(np.float32(shifted).view(np.uint32) - np.uint32(0x3F000000))
    if rest >= np.uint32(0x477FF000):  # rounds to 65536 or more
        half = np.uint32(0x7C00)
    if rest > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)
    return np.uint16(sign | half).view(np.int16)


narrow = by_dtype(
    "narrow",
    1,
    {
        "float32": _narrow_float32,
        "float16": _narrow_simulated if SIMULATED else _narrow_native,
        "uint16": _narrow_bfloat16,
        "int16": _narrow_float16,
    },
    """narrow(value, array): the float32 `value` as an element of `array`, rounded to nearest even; too large is infinity.""",
)


def _largest_of(bits: int) -> Callable[..., Any]:
    limit = np.uint32(bits).view(np.float32)

    def largest_held(array):
        return limit

    return largest_held


largest = by_dtype(
    "largest",
    0,
    {
        "float32": _largest_of(0x7F7FFFFF),
        "float16": _largest_of(0x477FEFFF),
        "uint16": _largest_of(0x7F7F7FFF),
        "int16": _largest_of(0x477FEFFF),
    },
    """largest(array): the largest float32 that `narrow` does not make infinite: 65519.996 of float16, whose own is 65504.""",
)
