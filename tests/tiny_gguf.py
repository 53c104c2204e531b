"""Writes a tiny model as a GGUF file with the `gguf` package, the way llama.cpp's converter does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.tiny_checkpoint import CHAT_TEMPLATE, SPECIAL_TOKENS, TinyModel, tiny_tokenizer

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny_gguf(path: Path, model: TinyModel, quantization: str = "F32") -> None:
    """`model` as one GGUF file; matrices in `quantization` (a name of GGMLQuantizationType), vectors in F32."""
    shape = model.shape
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(model.config["rms_norm_eps"])
    writer.add_vocab_size(shape.vocab_size)
    _add_rope_scaling(writer, model)
    _add_tokenizer(writer)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, values in model.tensors.items():
        if shape.architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = interleaved(values, shape.num_heads if "q_proj" in name else shape.num_kv_heads)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weights: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """llama.cpp's `permute`: halves of each head to alternating rows."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in top:
        return f"{top[stem]}.{kind}"
    index, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{index}.{_NAMES[part]}.{kind}"


def _add_rope_scaling(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    scaling = model.shape.rope_scaling
    if scaling is None:
        return
    if scaling["rope_type"] == "llama3":  # the converter bakes the divisors into a tensor
        writer.add_tensor("rope_freqs.weight", np.array(llama3_divisors(model, scaling), np.float32))
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
    writer.add_rope_scaling_factor(scaling["factor"])
    if scaling["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def llama3_divisors(model: TinyModel, scaling: dict[str, Any]) -> list[float]:
    """As in convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors."""
    size, factors = model.shape.head_size, []
    old, low, high = (
        scaling[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    for pair in range(size // 2):
        wavelength = 2 * math.pi * model.shape.rope_theta ** (2 * pair / size)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(scaling["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return factors


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    data = json.loads(tiny_tokenizer().to_str())
    vocabulary = sorted(data["model"]["vocab"], key=data["model"]["vocab"].__getitem__)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in vocabulary])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in data["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
