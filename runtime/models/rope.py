"""Rotary position embedding: its parameters and the table of cosines and sines that the kernels read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from runtime.models.fields import Fields
from runtime.shown_value import shown

MAX_POSITIONS = 2**31 - 1
"""Kernels count positions in int32."""

RopeScaling = Literal["none", "linear", "llama3", "yarn", "factors"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of a model. Fields below `rotary_dim` count only for the scaling kinds named beside them."""

    theta: float
    rotary_dim: int  # rotated features of a head; equal to head_dim in every supported model
    scaling: RopeScaling = "none"
    factor: float = 1.0  # linear, llama3, yarn
    original_max_position_embeddings: int = 0  # llama3, yarn: positions of the pre-training
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the bounds of the ramp outwards to whole features
    attention_factor: float = 1.0  # yarn: multiplies cos and sin; resolved by the reader of the checkpoint
    frequency_factors: tuple[float, ...] = ()  # factors: [rotary_dim / 2] divisors (GGUF tensor rope_freqs.weight)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's `mscale`: 0.1 * mscale * ln(factor) + 1 (Peng et al. 2023, equation 22); 1 where nothing is stretched."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def stretched_positions(rope: RopeSpec, positions: int) -> int:
    """Longest sequence of a model whose configuration says `positions`: with YaRN that may be the unstretched length (Qwen3) or the
    stretched one, and the longer counts.
    """
    if rope.scaling != "yarn":
        return positions
    return max(positions, int(min(rope.original_max_position_embeddings * rope.factor, MAX_POSITIONS)))


def rope_table(rope: RopeSpec, head_dim: int, max_len: int) -> npt.NDArray[np.float32]:
    """Cosines and sines of every position, for the rotate-half (NeoX) layout.

    Returns float32 [max_len, head_dim]: row p = [cos(p * f_0) .. cos(p * f_{hd/2-1}) | sin(p * f_0) .. ], computed in
    float64. Methods: RoFormer (Su et al. 2021), linear interpolation (Chen et al. 2023), llama3 and YaRN as in
    Hugging Face transformers, modeling_rope_utils.py; YaRN's attention factor multiplies both halves.
    """
    if rope.rotary_dim != head_dim:
        raise ValueError(f"rotary_dim = {rope.rotary_dim}; partial rotation is not supported: it must be {head_dim}")
    angles = np.outer(np.arange(max_len, dtype=np.float64), _frequencies(rope))
    table = np.empty((max_len, head_dim), np.float32)
    scale = rope.attention_factor if rope.scaling == "yarn" else 1.0
    table[:, : head_dim // 2] = np.cos(angles) * scale
    table[:, head_dim // 2 :] = np.sin(angles) * scale
    return table


def _frequencies(rope: RopeSpec) -> npt.NDArray[np.float64]:
    """Radians per position of each feature pair, float64 [rotary_dim / 2]."""
    base = rope.theta ** (-np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim)
    if rope.scaling == "linear":
        return base / rope.factor
    if rope.scaling == "llama3":
        return _llama3(rope, base)
    if rope.scaling == "yarn":
        return _yarn(rope, base)
    if rope.scaling == "factors":
        return base / np.asarray(rope.frequency_factors, np.float64)
    return base


def _llama3(rope: RopeSpec, base: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Long wavelengths are stretched by `factor`, short ones kept, those between are blended."""
    turns = rope.original_max_position_embeddings * base / (2 * math.pi)  # full turns within the trained length
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return kept * base + (1.0 - kept) * base / rope.factor


def _yarn(rope: RopeSpec, base: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Features that turn more than `beta_fast` times are kept, fewer than `beta_slow` stretched, a ramp between."""

    def feature_of(turns: float) -> float:
        wavelength = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return rope.rotary_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = feature_of(rope.beta_fast), feature_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    width = high - low if high != low else 0.001
    stretched = np.clip((np.arange(rope.rotary_dim // 2) - low) / width, 0.0, 1.0)
    return stretched * base / rope.factor + (1.0 - stretched) * base


def rope_from_hf(fields: Fields, head_dim: int, positions: int) -> RopeSpec:
    """Rotary part of a config.json: rope_parameters (transformers 5), or rope_theta beside rope_scaling (4 and before).

    Problems go to `fields.problems`. Defaults are those of transformers.
    """
    key = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    given = fields.values.get(key) or {}
    if not isinstance(given, Mapping):
        fields.problems.append(f"{key} = {shown(given)}: must be an object")
        given = {}
    theta_at_top = fields.number("rope_theta", 10000.0)
    fields.refuse("partial_rotary_factor", (1, 1.0), "partial rotation is not supported")
    rope = Fields({f"{key}.{name}": value for name, value in given.items()}, fields.problems)
    rope.refuse(f"{key}.partial_rotary_factor", (1, 1.0), "partial rotation is not supported")
    theta = rope.number(f"{key}.rope_theta", theta_at_top)
    kind = rope.text(f"{key}.rope_type", rope.text(f"{key}.type", "default"))
    if kind in ("default", "none"):
        return RopeSpec(theta, head_dim)
    if kind not in ("linear", "llama3", "yarn"):
        rope.problems.append(f"{key}.rope_type = {shown(kind)}: supported are default, linear, llama3, yarn")
        return RopeSpec(theta, head_dim)
    factor = rope.number(f"{key}.factor")
    if kind == "linear":
        return RopeSpec(theta, head_dim, "linear", factor)
    if kind == "llama3":
        low = rope.number(f"{key}.low_freq_factor")
        return RopeSpec(
            theta, head_dim, "llama3", factor, rope.integer(f"{key}.original_max_position_embeddings"), low,
            rope.number(f"{key}.high_freq_factor", minimum=low),
        )
    attention = yarn_attention_factor(factor)
    if rope.has(f"{key}.mscale") and rope.has(f"{key}.mscale_all_dim"):
        mscale, all_dim = rope.number(f"{key}.mscale"), rope.number(f"{key}.mscale_all_dim")
        attention = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, all_dim)
    return RopeSpec(
        theta, head_dim, "yarn", factor, rope.integer(f"{key}.original_max_position_embeddings", positions),
        beta_fast=rope.number(f"{key}.beta_fast", 32.0),
        beta_slow=rope.number(f"{key}.beta_slow", 1.0),
        truncate=rope.boolean(f"{key}.truncate", True),
        attention_factor=rope.number(f"{key}.attention_factor", attention),
    )


def rope_from_gguf(
    fields: Fields, arch: str, head_dim: int, positions: int, frequency_factors: tuple[float, ...]
) -> RopeSpec:
    """Rotary part of GGUF metadata. llama.cpp applies YaRN's 0.1 ln(factor) + 1 itself; the file may scale it further."""
    prefix = f"{arch}.rope."
    theta = fields.number(prefix + "freq_base", 10000.0)
    kind = fields.text(prefix + "scaling.type", "none")
    if frequency_factors:
        if len(frequency_factors) != head_dim // 2 or not all(0 < f < math.inf for f in frequency_factors):
            fields.problems.append(f"rope_freqs.weight: must hold {head_dim // 2} positive divisors")
        if kind != "none":
            fields.problems.append(f"{prefix}scaling.type = {shown(kind)} beside rope_freqs.weight is not supported")
        return RopeSpec(theta, head_dim, "factors", frequency_factors=frequency_factors)
    if kind == "none":
        return RopeSpec(theta, head_dim)
    if kind not in ("linear", "yarn"):
        fields.problems.append(f"{prefix}scaling.type = {shown(kind)}: supported are none, linear, yarn")
        return RopeSpec(theta, head_dim)
    factor = fields.number(prefix + "scaling.factor")
    if kind == "linear":
        return RopeSpec(theta, head_dim, "linear", factor)
    fields.refuse(prefix + "scaling.yarn_ext_factor", (1.0, -1.0), "only the full YaRN ramp (1) is supported")
    own = fields.number(prefix + "scaling.yarn_attn_factor", fields.number(prefix + "scaling.attn_factor", 1.0))
    return RopeSpec(
        theta, head_dim, "yarn", factor, fields.integer(prefix + "scaling.original_context_length", positions),
        beta_fast=fields.number(prefix + "scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number(prefix + "scaling.yarn_beta_slow", 1.0),
        attention_factor=yarn_attention_factor(factor) * own,
    )
