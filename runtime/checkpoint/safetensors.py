"""Hugging Face checkpoints: a folder of config.json, safetensors (one file or shards with an index) and a tokenizer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.checkpoint.safetensors_header import READABLE, StoredTensor, read_safetensors_header
from runtime.checkpoint.storage import bfloat16_to_float32, check_dtype, check_tensors, row_chunks, store
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.checkpoint.weights import ModelWeights, Progress, WeightDtype, destinations, empty_weights, expected_shapes
from runtime.errors import CheckpointError
from runtime.models.fields import Fields
from runtime.models.spec import ModelSpec, from_hf_config

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SAME_STORAGE: dict[str, WeightDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class SafetensorsCheckpoint:
    """An opened Hugging Face folder: configuration and headers read and checked, weights still on disk."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for files that are missing or corrupt, an unknown model, tensors that do not fit it."""
        self.path = folder
        spec = from_hf_config(_json_object(folder / "config.json"), str(folder / "config.json"))
        self.spec: ModelSpec = dataclasses.replace(spec, eos_token_ids=_all_ends(folder, spec))
        self._tensors = _open_tensors(folder)
        if self.spec.tied_embeddings:  # some exports write the tied head out again
            self._tensors.pop("lm_head.weight", None)
        found = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_tensors(folder, expected_shapes(self.spec), found, str)
        strange = [f"{tensor.name} ({tensor.dtype})" for tensor in self._tensors.values() if tensor.dtype not in READABLE]
        if strange:
            raise CheckpointError(f"{folder}: weights can be {', '.join(READABLE)}; these are not: {', '.join(strange)}")
        self.tokenizer: TokenizerSource = _tokenizer(folder, self.spec)

    def load_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        """Copy or convert tensor by tensor straight into the fused arrays, in chunks of rows."""
        check_dtype(dtype)
        weights = empty_weights(self.spec, dtype)
        done, total = 0, sum(tensor.nbytes for tensor in self._tensors.values())
        for name, destination in destinations(self.spec, weights).items():
            tensor = self._tensors[name]
            raw = _mapped(tensor)
            for rows in row_chunks(tensor.shape):
                if _SAME_STORAGE[tensor.dtype] == dtype:
                    destination[rows] = raw[rows]
                else:
                    store(destination[rows], _as_float32(raw[rows], tensor.dtype), dtype, name)
                done += raw[rows].nbytes
                if progress is not None:
                    progress(done, total)
        return weights


def _mapped(tensor: StoredTensor) -> npt.NDArray[Any]:
    try:
        return np.memmap(tensor.path, READABLE[tensor.dtype], "r", tensor.offset, tensor.shape)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{tensor.path}: cannot read tensor {tensor.name!r}: {error}") from error


def _as_float32(raw: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    return bfloat16_to_float32(raw) if dtype == "BF16" else raw.astype(np.float32)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing; a Hugging Face checkpoint needs it") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is corrupt: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: is corrupt: it holds {type(value).__name__}, not a JSON object")
    return value


def _open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every weight of the folder. Old exports hold rotary inv_freq buffers, which the model computes: left out."""
    if (folder / SINGLE).is_file():
        tensors = read_safetensors_header(folder / SINGLE)
    elif (folder / INDEX).is_file():
        tensors = _open_shards(folder)
    else:
        held = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise CheckpointError(f"{folder}: holds neither {SINGLE} nor {INDEX}; it holds {held}")
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _open_shards(folder: Path) -> dict[str, StoredTensor]:
    weight_map = _json_object(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{folder / INDEX}: is corrupt: weight_map must map tensor names to file names")
    shards = sorted(set(weight_map.values()))
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise CheckpointError(f"{folder / INDEX}: shards must lie in the same folder, not {', '.join(outside)}")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: {INDEX} names shards that are missing: {', '.join(missing)}; fetch them again")
    headers = {shard: read_safetensors_header(folder / shard) for shard in shards}
    astray = [f"{name} in {shard}" for name, shard in weight_map.items() if name not in headers[shard]]
    if astray:
        raise CheckpointError(f"{folder}: {INDEX} names tensors that their shards lack: {', '.join(astray)}")
    # Tensors that a shard holds beside the index count too, so that they are reported as unexpected.
    return {name: tensor for shard in shards for name, tensor in headers[shard].items()}


def _all_ends(folder: Path, spec: ModelSpec) -> tuple[int, ...]:
    """End tokens of config.json and generation_config.json together: the latter often adds the chat's end of turn."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return spec.eos_token_ids
    fields = Fields(_json_object(path))
    more = fields.ids("eos_token_id", spec.vocab_size)
    if fields.problems:
        raise CheckpointError(f"{path}: {fields.problems[0]}")
    return tuple(dict.fromkeys(spec.eos_token_ids + more))


def _tokenizer(folder: Path, spec: ModelSpec) -> TokenizerSource:
    """tokenizer.json, and the chat template from chat_template.jinja or tokenizer_config.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing; only tokenizers in that format are supported")
    config_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = _json_object(config_path) if config_path.is_file() else {}
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates, e.g. "default" and "tool_use"
        named = [item for item in template if isinstance(item, dict) and item.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template_path.is_file():  # newer exports; it wins, as in transformers
        try:
            template = template_path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{template_path}: cannot be read: {error}") from error
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{config_path}: chat_template must be a string, not {type(template).__name__}")
    return TokenizerSource(
        kind="json",
        chat_template=template,
        tokenizer_json=path,
        bos_token_id=spec.bos_token_id,
        eos_token_ids=spec.eos_token_ids,
        add_bos=config.get("add_bos_token") is True,
    )
