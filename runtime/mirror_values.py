"""Host values on their way into a mirrored buffer: exact, and of its dtype without losing anything."""

from __future__ import annotations

from functools import cache
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from runtime.mirror_errors import MirrorError
from runtime.truth import HostExact, HostUpperBound, require_exact

HostIndex: TypeAlias = "int | slice | EllipsisType | tuple[int | slice | EllipsisType | list[int], ...]"
Values: TypeAlias = "npt.ArrayLike | HostExact | HostUpperBound"


def as_host_values(values: Values, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """`values` as an array of `dtype`; HostExact numbers count as integers.

    Raises:
        StaleValueError: one of them is a HostUpperBound.
        MirrorError: an integer outside the range of `dtype`, or floats for integers.
    """
    if isinstance(values, HostExact | HostUpperBound):
        values = require_exact(values, name)
    array = np.asarray(values)
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "O":
        exact = [require_exact(value, f"{name}[{i}]") for i, value in enumerate(array.ravel())]
        array = np.array(exact, np.int64).reshape(array.shape)
    if dtype.kind in "iu" and array.dtype.kind in "iub":
        least, most = _bounds_of(dtype)
        low, high = (int(array),) * 2 if array.ndim == 0 else (int(array.min(initial=0)), int(array.max(initial=0)))
        if not least <= low <= high <= most:
            raise MirrorError(f"{name}: values {low}..{high} do not fit {dtype} ({least}..{most})")
    elif array.size and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise MirrorError(f"{name}: {array.dtype} values for a {dtype} buffer; convert them first")
    return array.astype(dtype)


@cache
def _bounds_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    bounds = np.iinfo(dtype)
    return int(bounds.min), int(bounds.max)
