"""Hugging Face checkpoints: a folder of config.json, safetensors (one file or shards with an index) and a tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from runtime.checkpoint.safetensors_folder import check_readable, copy_tensors, open_tensors, read_json_object
from runtime.checkpoint.storage import check_dtype, check_tensors
from runtime.checkpoint.stored_weight import stored_weights
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.checkpoint.weights import (
    ModelWeights,
    Progress,
    WeightArray,
    WeightDtype,
    destinations,
    empty_weights,
    expected_shapes,
)
from runtime.errors import CheckpointError, DamagedFileError
from runtime.models.fields import Fields
from runtime.models.spec import ModelSpec, from_hf_config
from runtime.shown_value import shown


class SafetensorsCheckpoint:
    """An opened Hugging Face folder: configuration and headers read and checked, weights still on disk."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for files that are missing or corrupt, an unknown model, tensors that do not fit it."""
        self.path = folder
        spec = from_hf_config(read_json_object(folder / "config.json"), str(folder / "config.json"))
        self.spec: ModelSpec = dataclasses.replace(spec, eos_token_ids=_all_ends(folder, spec))
        self._tensors = open_tensors(folder)
        if self.spec.tied_embeddings:  # some exports write the tied head out again
            self._tensors.pop("lm_head.weight", None)
        found = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_tensors(folder, expected_shapes(self.spec), found, str)
        check_readable(folder, self._tensors)
        self.tokenizer: TokenizerSource = _tokenizer(folder, self.spec)

    def load_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        """Copy or convert tensor by tensor straight into the fused arrays, in chunks of rows."""
        check_dtype(dtype)
        weights = empty_weights(self.spec, dtype)
        copy_tensors(self._tensors, destinations(self.spec, weights), dtype, progress)
        return weights

    def stored_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        check_dtype(dtype)

        def read_into(views: Mapping[str, WeightArray], advance: Progress) -> None:
            copy_tensors(self._tensors, views, dtype, advance)

        total = sum(tensor.nbytes for tensor in self._tensors.values())
        return stored_weights(self.spec, dtype, read_into, total, progress)


def _all_ends(folder: Path, spec: ModelSpec) -> tuple[int, ...]:
    """End tokens of config.json and generation_config.json together: the latter often adds the chat's end of turn."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return spec.eos_token_ids
    fields = Fields(read_json_object(path))
    more = fields.ids("eos_token_id", spec.vocab_size)
    if fields.problems:
        raise DamagedFileError(path, f"is corrupt: {fields.problems[0]}")
    return tuple(dict.fromkeys(spec.eos_token_ids + more))


def _tokenizer(folder: Path, spec: ModelSpec) -> TokenizerSource:
    """tokenizer.json, and the chat template from chat_template.jinja or tokenizer_config.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing, the one format of tokenizers that is read; fetch it, or use another checkpoint")
    config_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = read_json_object(config_path) if config_path.is_file() else {}
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates, e.g. "default" and "tool_use"
        named = [item for item in template if isinstance(item, dict) and item.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template_path.is_file():  # newer exports; it wins, as in transformers
        try:
            template = template_path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise DamagedFileError(template_path, f"cannot be read: {error}") from error
    if template is not None and not isinstance(template, str):
        raise DamagedFileError(config_path, f"is corrupt: chat_template = {shown(template)}: must be a string")
    return TokenizerSource(
        kind="json",
        chat_template=template,
        tokenizer_json=path,
        bos_token_id=spec.bos_token_id,
        eos_token_ids=spec.eos_token_ids,
        add_bos=config.get("add_bos_token") is True,
    )
