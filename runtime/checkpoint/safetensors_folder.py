"""A folder of safetensors, one file or shards with an index: which tensors it holds, and their way into host memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.checkpoint.safetensors_header import READABLE, StoredTensor, read_safetensors_header
from runtime.checkpoint.storage import bfloat16_to_float32, check_finite, row_chunks, store
from runtime.checkpoint.weights import Progress, WeightArray, WeightDtype
from runtime.errors import CheckpointError, DamagedFileError
from runtime.shown_value import shown

WINDOW_ELEMENTS = 1 << 21
"""Elements of a file that are mapped at a time: a map of a whole tensor would double what reading it takes."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SAME_STORAGE: dict[str, WeightDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def check_readable(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """CheckpointError that names every tensor of a dtype that weights cannot have."""
    strange = [f"{tensor.name} ({tensor.dtype})" for tensor in tensors.values() if tensor.dtype not in READABLE]
    if strange:
        kinds = ", ".join(READABLE)
        raise CheckpointError.listing(f"{folder}: weights can be {kinds}; use another checkpoint, these are not", strange)


def copy_tensors(
    tensors: Mapping[str, StoredTensor],
    destinations: Mapping[str, WeightArray],
    dtype: WeightDtype,
    progress: Progress | None = None,
) -> None:
    """Copy or convert tensor by tensor straight into `destinations`, by name, in chunks of rows.

    Raises CheckpointError for a file that cannot be read, and for values that are not finite or overflow float16.
    """
    done, total = 0, sum(tensors[name].nbytes for name in destinations)
    for name, destination in destinations.items():
        tensor = tensors[name]
        origin = f"{tensor.path}: tensor {name!r}"
        for window in row_chunks(tensor.shape, elements=WINDOW_ELEMENTS):
            raw, target = _mapped(tensor, window), destination[window]
            for rows in row_chunks(raw.shape):
                if _SAME_STORAGE[tensor.dtype] == dtype:
                    target[rows] = raw[rows]
                else:
                    store(target[rows], _as_float32(raw[rows], tensor.dtype), dtype, origin)
                check_finite(target[rows], dtype, origin)
                done += raw[rows].nbytes
                if progress is not None:
                    progress(done, total)


def _mapped(tensor: StoredTensor, rows: slice) -> npt.NDArray[Any]:
    """Rows of a tensor in its file. Pages of it that were read count as this process's memory for as long as the result lives."""
    width = math.prod(tensor.shape[1:]) * READABLE[tensor.dtype].itemsize
    shape = (rows.stop - rows.start, *tensor.shape[1:])
    try:
        return np.memmap(tensor.path, READABLE[tensor.dtype], "r", tensor.offset + rows.start * width, shape)
    except (OSError, ValueError) as error:
        raise DamagedFileError(tensor.path, f"cannot read tensor {tensor.name!r}: {error}") from error


def _as_float32(raw: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    return bfloat16_to_float32(raw) if dtype == "BF16" else raw.astype(np.float32)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; CheckpointError when it is missing or none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing; a Hugging Face checkpoint needs it: fetch it, or name another folder") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}; make it readable") from error
    if not text.strip():
        raise DamagedFileError(path, "is empty")
    try:
        value = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(path, f"is corrupt, no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(path, f"is corrupt: it holds {shown(value)}, not a JSON object")
    return value


def open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every weight of the folder. Old exports hold rotary inv_freq buffers, which the model computes: left out."""
    if (folder / SINGLE).is_file():
        tensors = read_safetensors_header(folder / SINGLE)
    elif (folder / INDEX).is_file():
        tensors = _open_shards(folder)
    else:
        held = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise CheckpointError(f"{folder}: holds neither {SINGLE} nor {INDEX}, but {held}; fetch one, or name another folder")
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _open_shards(folder: Path) -> dict[str, StoredTensor]:
    weight_map = read_json_object(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise DamagedFileError(folder / INDEX, "is corrupt: weight_map must map tensor names to file names")
    shards = sorted(set(weight_map.values()))
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise DamagedFileError(folder / INDEX, f"is corrupt: shards lie in the same folder, not {', '.join(outside)}")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: {INDEX} names shards that are missing: {', '.join(missing)}; fetch them again")
    headers = {shard: read_safetensors_header(folder / shard) for shard in shards}
    astray = [f"{name} in {shard}" for name, shard in weight_map.items() if name not in headers[shard]]
    if astray:
        raise DamagedFileError(folder / INDEX, f"names tensors that their shards lack: {', '.join(astray)}")
    # Tensors that a shard holds beside the index count too, so that they are reported as unexpected.
    return {name: tensor for shard in shards for name, tensor in headers[shard].items()}
