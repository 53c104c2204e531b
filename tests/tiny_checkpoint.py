"""Writes tiny random Llama-, Qwen2- and Qwen3-shaped checkpoints: Hugging Face folders and GGUF files of the same model.

Written with the real packages (safetensors, tokenizers, gguf), not with our readers turned round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
VOCAB_SIZE = 300
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CLASS_NAMES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_CORPUS = (
    "the cat sat on the mat and the dog ran after the other cat, then the rain came down on them and they went home. "
    "there is nothing to see in there; this thing and that thing are one and the same thing, said the man at the gate."
)

# Ways to stretch positions, for TinyShape.rope_scaling.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class TinyShape:
    """What to write. Sizes are small but distinct, so that a transposed or swapped one does not fit by accident."""

    architecture: Literal["llama", "qwen2", "qwen3"] = "llama"
    tied: bool = False
    shards: int = 1
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    rope_scaling: dict[str, Any] | None = None
    seed: int = 0
    num_layers: int = 2
    hidden_size: int = 64
    intermediate_size: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int | None = None  # None: hidden / heads; Qwen3: twice that, as real ones differ from it too
    vocab_size: int = VOCAB_SIZE
    max_position_embeddings: int = 256
    rope_theta: float = 10000.0
    # Below 1 the next token depends on the last one mostly, and above it on fewer ids: greedy text then repeats itself.
    attention_scale: float = 1.0
    num_likely_ids: int = VOCAB_SIZE

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_heads * (2 if self.architecture == "qwen3" else 1)


@dataclass(frozen=True)
class TinyModel:
    """What was written: `tensors` are float32 by Hugging Face name, already rounded to the dtype of the files."""

    path: Path
    shape: TinyShape
    config: dict[str, Any]
    tensors: dict[str, npt.NDArray[np.float32]] = field(repr=False)


def write_tiny_checkpoint(folder: Path, shape: TinyShape | None = None) -> TinyModel:
    """A Hugging Face folder: config.json, weights in `shape.shards` files, tokenizer.json, chat template."""
    shape = shape or TinyShape()
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(shape)
    tensors = {name: _rounded(values, shape.dtype) for name, values in tiny_tensors(shape).items()}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(folder, tensors, shape)
    write_tiny_tokenizer(folder)
    return TinyModel(folder, shape, config, tensors)


def tiny_config(shape: TinyShape) -> dict[str, Any]:
    """config.json as transformers 4 writes it."""
    return {
        "architectures": [CLASS_NAMES[shape.architecture]],
        "model_type": shape.architecture,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_theta,
        "rope_scaling": shape.rope_scaling,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": shape.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def tiny_tensors(shape: TinyShape) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights by Hugging Face name. The scales keep the residual stream from being all embedding (a tied model
    would repeat its input) and spread the logits, so that argmaxes differ by position and win by a margin.
    """
    rng = np.random.default_rng(shape.seed)
    hidden, inter, head = shape.hidden_size, shape.intermediate_size, shape.head_size

    def matrix(rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def norm(size: int) -> npt.NDArray[np.float32]:
        return (1.0 + 0.2 * rng.standard_normal(size)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(shape.vocab_size, hidden, 2.0)}
    for index in range(shape.num_layers):
        layer = f"model.layers.{index}."
        tensors[layer + "input_layernorm.weight"] = norm(hidden)
        for name, heads in (("q", shape.num_heads), ("k", shape.num_kv_heads), ("v", shape.num_kv_heads)):
            tensors[layer + f"self_attn.{name}_proj.weight"] = matrix(heads * head, hidden, 1.5)
            if shape.architecture == "qwen2":
                bias = 0.5 * rng.standard_normal(heads * head)
                tensors[layer + f"self_attn.{name}_proj.bias"] = bias.astype(np.float32)
        if shape.architecture == "qwen3":
            tensors[layer + "self_attn.q_norm.weight"] = norm(head)
            tensors[layer + "self_attn.k_norm.weight"] = norm(head)
        tensors[layer + "self_attn.o_proj.weight"] = matrix(hidden, shape.num_heads * head, shape.attention_scale)
        tensors[layer + "post_attention_layernorm.weight"] = norm(hidden)
        tensors[layer + "mlp.gate_proj.weight"] = matrix(inter, hidden, 1.5)
        tensors[layer + "mlp.up_proj.weight"] = matrix(inter, hidden, 1.5)
        tensors[layer + "mlp.down_proj.weight"] = matrix(hidden, inter)
    tensors["model.norm.weight"] = norm(hidden)
    if not shape.tied:
        tensors["lm_head.weight"] = matrix(shape.vocab_size, hidden, 3.0)
        tensors["lm_head.weight"][shape.num_likely_ids :] *= 0.1
    return tensors


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE of VOCAB_SIZE tokens, pre-tokenised like SmolLM2 (single digits)."""
    tokenizer = Tokenizer(models.BPE())
    digits, bytelevel = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytelevel])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    return tokenizer


def write_tiny_tokenizer(folder: Path) -> None:
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"chat_template": CHAT_TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_weights(folder: Path, tensors: dict[str, npt.NDArray[np.float32]], shape: TinyShape) -> None:
    if shape.shards == 1:
        _write_file(folder / "model.safetensors", tensors, shape.dtype)
        return
    names = [f"model-{index + 1:05d}-of-{shape.shards:05d}.safetensors" for index in range(shape.shards)]
    shard_of = {tensor: names[index % shape.shards] for index, tensor in enumerate(tensors)}
    for name in names:
        _write_file(folder / name, {key: tensors[key] for key in tensors if shard_of[key] == name}, shape.dtype)
    index = {"metadata": {"total_size": 0}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_file(path: Path, tensors: dict[str, npt.NDArray[np.float32]], dtype: str) -> None:
    raw = save({name: _stored(values, dtype) for name, values in tensors.items()}, {"format": "pt"})
    if dtype == "bfloat16":  # NumPy has no such dtype: written as its bits, then named in the header
        end = 8 + int.from_bytes(raw[:8], "little")
        header = raw[8:end].replace(b'"U16"', b'"BF16"').rstrip()
        header += b" " * (-len(header) % 8)
        raw = len(header).to_bytes(8, "little") + header + raw[end:]
    path.write_bytes(raw)


def _rounded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    """Values that `dtype` holds exactly (bfloat16 by cutting the lower half of the bits)."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype(dtype).astype(np.float32)


def _stored(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)
