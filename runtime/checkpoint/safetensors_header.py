"""The header of a safetensors file: name, dtype, shape and place of each tensor, checked against the file's length.

Read here instead of through the `safetensors` package because its NumPy side knows no bfloat16 without torch or
ml_dtypes. Format: 8 bytes little-endian header length, JSON header, data (github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import CheckpointError, DamagedFileError
from runtime.shown_value import shown

# BF16 is read as its bits; other dtypes (F64, integers, FP8) are no weights of the supported models.
READABLE: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
               "U64": 8, "U32": 4, "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1}


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies."""

    path: Path
    name: str
    dtype: str  # name in the format, e.g. "BF16"
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file. Raises CheckpointError for a file that is missing, truncated or corrupt."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size == 0:
                raise DamagedFileError(path, "is empty")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise DamagedFileError(path, f"is truncated or corrupt: {size} bytes, header of {length} bytes")
            header = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}; make it readable") from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8
        raise DamagedFileError(path, f"is corrupt: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise DamagedFileError(path, "is corrupt: its header is no JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_layout(path, list(tensors.values()), 8 + length, size)
    return tensors


def _tensor(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        raise DamagedFileError(path, f"is corrupt: the entry of tensor {shown(name)} is {shown(entry)}") from error
    sound = all(isinstance(number, int) and number >= 0 for number in numbers)
    if not sound or not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise DamagedFileError(path, f"is corrupt: the entry of tensor {shown(name)} is {shown(entry)}")
    nbytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != nbytes:
        what = f"tensor {shown(name)} {shown(shape)} {dtype}"
        raise DamagedFileError(path, f"is corrupt: {what} has {end - begin} bytes, not {nbytes}")
    return StoredTensor(path, name, dtype, tuple(shape), start + begin, nbytes)


def _check_layout(path: Path, tensors: list[StoredTensor], start: int, size: int) -> None:
    """The format wants the data without holes or overlaps, ending where the file ends."""
    at = start
    for tensor in sorted(tensors, key=lambda item: (item.offset, item.nbytes)):
        if tensor.offset != at:
            raise DamagedFileError(path, f"is corrupt: tensor {shown(tensor.name)} starts at byte {tensor.offset}, not {at}")
        at += tensor.nbytes
    if at > size:
        raise DamagedFileError(path, f"is truncated: its tensors end at byte {at}, the file has {size}")
    if at < size:
        raise DamagedFileError(path, f"is corrupt: {size - at} bytes follow its last tensor")
