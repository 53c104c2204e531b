"""Drafters on disk: config.json and model.safetensors with z-lab's fields and names, written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from runtime.errors import CheckpointError, ConfigError
from runtime.models.spec import ModelSpec
from runtime.speculators.dflash_config import default_target_layers
from runtime.speculators.train.settings import DrafterSettings
from runtime.speculators.train.target import Tensor
from runtime.tokenizer import Tokenizer

NUM_TAPS = 5


def build_config(settings: DrafterSettings, target: ModelSpec, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json of a new drafter. What `start` decided (taps, mask) is kept where the settings leave it open."""
    begun: Mapping[str, Any] = read_config(settings.start).get("dflash_config", {}) if settings.start else {}
    taps = list(settings.taps) or list(begun.get("target_layer_ids", ())) or _even_taps(target.num_layers)
    outside = [tap for tap in taps if not 0 <= tap < target.num_layers - 1]
    if outside:
        raise ConfigError(f"drafter.taps = {taps}: {outside} outside 0..{target.num_layers - 2}; the last block is no tap")
    if len(set(taps)) < len(taps):
        raise ConfigError(f"drafter.taps = {taps}: each block has columns of fc of its own; name distinct blocks")
    mask = settings.mask_token_id
    if mask == "auto":
        mask = begun.get("mask_token_id", _mask_token_id(tokenizer, target.vocab_size))
    assert isinstance(mask, int)
    inner: dict[str, Any] = {
        "block_size": settings.block_size,
        "mask_token_id": mask,
        "target_layer_ids": taps,
        "num_target_layers": target.num_layers,
    }
    if settings.version == 2:
        inner |= {
            "conv_kernel_size": settings.conv_kernel_size,
            "conv_group_size": settings.conv_group_size,
            "selector_rank": settings.selector_rank,
            "selector_top_k": settings.selector_top_k,
        }
    return {
        "architectures": ["DFlashDraftModel" if settings.version == 1 else "DFlash2DraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": float(f"{target.rms_norm_eps:.7g}"),  # a GGUF holds it in float32
        "rope_theta": target.rope.theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": target.max_position_embeddings,
        "layer_types": ["full_attention"] * settings.layers,
        "sliding_window": None,
        "is_causal": False,
        "tie_word_embeddings": False,
        "block_size": settings.block_size,
        "num_target_layers": target.num_layers,
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_ids[0] if target.eos_token_ids else None,
        "dflash_config": inner,
    }


def _even_taps(num_target_layers: int) -> list[int]:
    """Five, evenly spaced, as the public checkpoints have them; fewer where the target is too shallow for five."""
    count = min(NUM_TAPS, num_target_layers - 1)
    if count < NUM_TAPS:
        return list(range(count))
    return list(default_target_layers(NUM_TAPS, num_target_layers)) if num_target_layers > 7 else list(range(NUM_TAPS))


def _mask_token_id(tokenizer: Tokenizer, vocab_size: int) -> int:
    """The last control token that neither begins nor ends a text: it never occurs in one."""
    used = {tokenizer.bos_token_id, *tokenizer.eos_token_ids}
    free = [token for token in tokenizer.special_ids if token not in used]
    if not free and vocab_size <= tokenizer.vocab_size:
        raise ConfigError("drafter.mask_token_id = auto: the vocabulary has no unused control token; give an id that no text has")
    return max(free) if free else tokenizer.vocab_size


def save_drafter(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write both files; a reader finds the old ones or the new ones, never half of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, text = folder / "model.safetensors", folder / "config.json"
    text.write_text(json.dumps(dict(config), indent=1) + "\n", "utf-8")
    beside = weights.with_suffix(".new")
    save_file(dict(tensors), beside, metadata={"format": "pt"})
    beside.chmod(text.stat().st_mode)  # safetensors makes it the owner's alone
    beside.replace(weights)


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a drafter to begin from. Raises CheckpointError."""
    path = Path(folder) / "config.json"
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        problem = f"config.json cannot be read: {error}"
        raise CheckpointError(f"drafter.start = {folder}: {problem}; begin from another drafter") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"drafter.start = {folder}: config.json must hold an object; begin from another drafter")
    return values


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """Every tensor of a drafter. Raises CheckpointError for a file that cannot be read, and for values that are not finite."""
    try:
        tensors = dict(load_file(Path(folder) / "model.safetensors"))
    except (OSError, SafetensorError) as error:
        problem = f"model.safetensors cannot be read: {error}"
        raise CheckpointError(f"drafter.start = {folder}: {problem}; begin from another drafter") from error
    diverged = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if diverged:
        raise CheckpointError(f"drafter.start = {folder}: {', '.join(diverged)}: NaN or infinity; begin from another drafter")
    return tensors
