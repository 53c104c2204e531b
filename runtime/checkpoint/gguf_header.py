"""The header of a GGUF file: metadata and where each tensor lies, every length checked against the file.

The `gguf` package's GGUFReader builds several NumPy views per vocabulary entry (2.3-2.7 s for SmolLM2) and trusts the
lengths in the file; this reader takes the constants from that package and the layout from the GGUF specification
(ggml/docs/gguf.md), reads the same header in some 50 ms and refuses what does not fit the file.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
)

from runtime.errors import CheckpointError, DamagedFileError
from runtime.shown_value import shown

READABLE_VERSIONS = (2, 3)
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS

_SCALARS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies. `shape` is row-major ([rows, columns]), the reverse of the order in the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int  # bytes from the start of the file
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata (Python scalars, strings, lists) and tensors of a GGUF file, in the order of the file."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """Parse and check the header. Raises CheckpointError for anything that is no whole, little-endian GGUF 2 or 3."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}; make it readable") from error
    except ValueError as error:
        raise DamagedFileError(path, "is empty") from error  # which cannot be mapped
    return _HeaderReader(path, data).read()


class _HeaderReader:
    """A cursor over the mapped file; every read checks that the bytes exist."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self._path = path
        self._view = data.data
        self._at = 0

    def read(self) -> GgufHeader:
        magic, version = self._unpack("II")
        if magic != GGUF_MAGIC:
            problem = f"is no GGUF file: it starts with {bytes(self._view[:4])!r}, not b'GGUF'"
            raise CheckpointError(f"{self._path}: {problem}; give a .gguf file or a folder")
        if version not in READABLE_VERSIONS:
            hint = "; the file is big-endian" if version & 0xFFFF == 0 else ""
            problem = f"GGUF version = {version}: readable are {READABLE_VERSIONS}{hint}"
            raise CheckpointError(f"{self._path}: {problem}; convert the model anew with llama.cpp")
        tensor_count, metadata_count = self._unpack("QQ")
        metadata: dict[str, Any] = {}
        for _ in range(self._count(metadata_count, 8 + 4 + 1, "metadata entries")):
            key = self._string()
            if key in metadata:
                self._refuse(f"is corrupt: metadata key {shown(key)} occurs twice")
            metadata[key] = self._value(self._unpack("I")[0], key)
        entries = [self._tensor() for _ in range(self._count(tensor_count, 8 + 4 + 8 + 4 + 8, "tensors"))]
        return GgufHeader(metadata, self._placed(entries, metadata))

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + layout)
        self._need(size)
        values = struct.unpack_from("<" + layout, self._view, self._at)
        self._at += size
        return values

    def _need(self, size: int) -> None:
        if size > len(self._view) - self._at:
            self._refuse(f"is truncated: byte {self._at} is followed by {size} bytes that the file does not have")

    def _count(self, count: int, smallest: int, what: str) -> int:
        """A count that the rest of the file could hold, so that a corrupt one is not looped over."""
        if count * smallest > len(self._view) - self._at:
            self._refuse(f"is truncated or corrupt: {count} {what} cannot fit its {len(self._view)} bytes")
        return count

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        self._need(length)
        raw = bytes(self._view[self._at : self._at + length])
        self._at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self._refuse(f"is corrupt: the string at byte {self._at - length} is no UTF-8 ({error.reason})")

    def _value(self, kind: int, key: str) -> Any:
        if kind == GGUFValueType.STRING:
            return self._string()
        if kind == GGUFValueType.ARRAY:
            return self._array(key)
        return self._unpack(self._layout(kind, key))[0]

    def _array(self, key: str) -> list[Any]:
        kind, count = self._unpack("IQ")
        if kind == GGUFValueType.STRING:
            return [self._string() for _ in range(self._count(count, 8, f"strings of {shown(key)}"))]
        if kind == GGUFValueType.ARRAY:
            problem = f"metadata {shown(key)} is an array of arrays, which is not supported"
            raise CheckpointError(f"{self._path}: {problem}; use another file")
        layout = self._layout(kind, key)
        self._count(count, struct.calcsize("<" + layout), f"values of {shown(key)}")
        return list(self._unpack(f"{count}{layout}"))

    def _layout(self, kind: int, key: str) -> str:
        try:
            return _SCALARS[GGUFValueType(kind)]
        except (ValueError, KeyError):
            self._refuse(f"is corrupt: metadata {shown(key)} has the unknown value type {kind}")

    def _tensor(self) -> GgufTensor:
        """One tensor entry; `offset` still counts from the start of the data section."""
        name = self._string()
        (dimensions,) = self._unpack("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            self._refuse(f"is corrupt: tensor {shown(name)} has {dimensions} dimensions, possible are 1 to {MAX_DIMENSIONS}")
        shape = tuple(reversed(self._unpack(f"{dimensions}Q")))
        raw_kind, offset = self._unpack("IQ")
        try:
            kind = GGMLQuantizationType(raw_kind)
        except ValueError:
            problem = f"tensor {shown(name)} has the quantisation type {raw_kind}, unknown to this `gguf` package"
            raise CheckpointError(f"{self._path}: {problem}; pip install --upgrade gguf, or use another file") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            self._refuse(f"is corrupt: rows of tensor {shown(name)} have {shape[-1]} elements, no multiple of {block}")
        return GgufTensor(name, shape, kind, offset, math.prod(shape) // block * block_bytes)

    def _placed(self, entries: list[GgufTensor], metadata: dict[str, Any]) -> dict[str, GgufTensor]:
        """The tensors with offsets from the start of the file; aligned, inside the file, disjoint, distinct names."""
        align = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(align, int) or align < 1 or align & (align - 1):
            self._refuse(f"is corrupt: general.alignment = {shown(align)}: must be a power of two")
        start = -(-self._at // align) * align
        tensors: dict[str, GgufTensor] = {}
        end_of_previous, previous = 0, ""
        for entry in sorted(entries, key=lambda tensor: tensor.offset):
            if entry.name in tensors:
                self._refuse(f"is corrupt: tensor {shown(entry.name)} occurs twice")
            if entry.offset % align:
                self._refuse(f"is corrupt: tensor {shown(entry.name)} is not aligned to {align} bytes")
            if entry.offset < end_of_previous:
                self._refuse(f"is corrupt: tensors {shown(previous)} and {shown(entry.name)} overlap")
            end_of_previous, previous = entry.offset + entry.nbytes, entry.name
            if start + end_of_previous > len(self._view):
                self._refuse(
                    f"is truncated: tensor {shown(entry.name)} ends at byte {start + end_of_previous}, "
                    f"the file has {len(self._view)}"
                )
            tensors[entry.name] = GgufTensor(entry.name, entry.shape, entry.kind, start + entry.offset, entry.nbytes)
        return tensors

    def _refuse(self, problem: str) -> NoReturn:
        raise DamagedFileError(self._path, problem)
