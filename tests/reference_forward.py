"""A plain NumPy forward pass of Llama, Qwen2 and Qwen3, written from the papers and sharing no code with the product.

It reads a Hugging Face config (a dict in the form of config.json) and tensors by their Hugging Face names, so that it
can be compared with transformers (tests/parity) and the product compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def reference_logits(
    config: Mapping[str, Any], tensors: Mapping[str, Array], token_ids: Sequence[int], dtype: type = np.float64
) -> Array:
    """Logits of every position of one sequence: [len(token_ids), vocab_size], computed in `dtype` throughout."""
    return logits_of(config, tensors, reference_residuals(config, tensors, token_ids, dtype)[-1])


def logits_of(config: Mapping[str, Any], tensors: Mapping[str, Array], residual: Array) -> Array:
    """Final norm and head over the residual stream behind the last block."""
    head = tensors["model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"]
    normed = rms_norm(residual, tensors["model.norm.weight"].astype(residual.dtype, copy=False), config["rms_norm_eps"])
    return normed @ head.astype(residual.dtype, copy=False).T


def reference_residuals(
    config: Mapping[str, Any], tensors: Mapping[str, Array], token_ids: Sequence[int], dtype: type = np.float64
) -> list[Array]:
    """The residual stream [len(token_ids), hidden_size] behind each block, both of its additions done."""

    def weight(name: str) -> Array:
        return tensors[name].astype(dtype, copy=False)

    eps = config["rms_norm_eps"]
    angles, scale = rotation(config, len(token_ids))
    cos, sin = (np.cos(angles) * scale).astype(dtype), (np.sin(angles) * scale).astype(dtype)
    x = tensors["model.embed_tokens.weight"][np.asarray(token_ids)].astype(dtype)
    residuals = []
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        h = rms_norm(x, weight(prefix + "input_layernorm.weight"), eps)
        q, k, v = (project_heads(config, tensors, prefix, name, h) for name in "qkv")
        if prefix + "self_attn.q_norm.weight" in tensors:
            q = rms_norm(q, weight(prefix + "self_attn.q_norm.weight"), eps)
            k = rms_norm(k, weight(prefix + "self_attn.k_norm.weight"), eps)
        attended = causal_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + attended.reshape(len(token_ids), -1) @ weight(prefix + "self_attn.o_proj.weight").T
        h = rms_norm(x, weight(prefix + "post_attention_layernorm.weight"), eps)
        gate = h @ weight(prefix + "mlp.gate_proj.weight").T
        up = h @ weight(prefix + "mlp.up_proj.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(prefix + "mlp.down_proj.weight").T
        residuals.append(x)
    return residuals


def greedy(config: Mapping[str, Any], tensors: Mapping[str, Array], prompt: Sequence[int], count: int) -> list[int]:
    """The next `count` tokens by argmax in float32, the whole sequence computed anew for each (slow and obvious)."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(reference_logits(config, tensors, tokens, np.float32)[-1])))
    return tokens[len(prompt) :]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def project_heads(config: Mapping[str, Any], tensors: Mapping[str, Array], prefix: str, name: str, h: Array) -> Array:
    """[T, H] -> [T, heads, head_dim] through the q, k or v projection and its bias, if it has one."""
    y = h @ tensors[f"{prefix}self_attn.{name}_proj.weight"].astype(h.dtype, copy=False).T
    bias = tensors.get(f"{prefix}self_attn.{name}_proj.bias")
    if bias is not None:
        y = y + bias.astype(h.dtype, copy=False)
    return y.reshape(len(h), -1, head_size(config))


def head_size(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Feature j of the first half and feature j of the second are the two coordinates that turn by one angle."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def causal_attention(q: Array, k: Array, v: Array) -> Array:
    """[T, heads, head_dim] each (fewer heads in k and v: every group of query heads shares one)."""
    length, heads, size = q.shape
    out = np.empty_like(q)
    allowed = np.tril(np.ones((length, length), bool))
    for head in range(heads):
        shared = head * k.shape[1] // heads
        scores = q[:, head] @ k[:, shared].T / q.dtype.type(math.sqrt(size))
        scores = np.where(allowed, scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, shared]
    return out


def rotation(config: Mapping[str, Any], length: int) -> tuple[Array, float]:
    """Angles [length, head_dim / 2] in float64 and the factor on cos and sin, feature by feature."""
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    size, theta, kind = head_size(config), float(config["rope_theta"]), scaling["rope_type"]
    speeds = []
    for pair in range(size // 2):
        speed = theta ** (-2 * pair / size)
        slow = speed / scaling.get("factor", 1.0)
        if kind == "linear":
            speed = slow
        elif kind == "llama3":
            wavelength, trained = 2 * math.pi / speed, scaling["original_max_position_embeddings"]
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            if wavelength > trained / low:
                speed = slow
            elif wavelength >= trained / high:
                smooth = (trained / wavelength - low) / (high - low)
                speed = (1 - smooth) * slow + smooth * speed
        elif kind == "yarn":
            first, last = yarn_bounds(size, theta, scaling)
            ramp = min(max((pair - first) / (last - first), 0.0), 1.0)
            speed = ramp * slow + (1 - ramp) * speed
        speeds.append(speed)
    scale = 0.1 * math.log(scaling["factor"]) + 1 if kind == "yarn" else 1.0
    return np.arange(length)[:, None] * np.array(speeds)[None, :], scaling.get("attention_factor", scale)


def yarn_bounds(size: int, theta: float, scaling: Mapping[str, Any]) -> tuple[int, int]:
    """The features that make 32 and 1 full turns within the trained length, rounded outwards."""
    trained = scaling["original_max_position_embeddings"]
    first, last = (
        size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling.get("beta_fast", 32), scaling.get("beta_slow", 1))
    )
    return max(math.floor(first), 0), min(math.ceil(last), size - 1)
