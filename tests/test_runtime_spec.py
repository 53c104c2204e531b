"""ModelSpec from both kinds of metadata, and the rotary table against the reference's feature-by-feature angles."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from runtime.errors import CheckpointError
from runtime.models.rope import RopeSpec, rope_table, yarn_attention_factor
from runtime.models.spec import ModelSpec, from_gguf, from_hf_config
from tests.reference_forward import rotation
from tests.tiny_checkpoint import LINEAR, LLAMA3, YARN, TinyShape, tiny_config

SMOLLM2: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 100000.0,
    "llama.rope.dimension_count": 64,
    "llama.vocab_size": 49152,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def config(architecture: Any = "llama", **changes: Any) -> dict[str, Any]:
    """A tiny config.json with fields replaced, or removed where the new value is `...`."""
    merged = {**tiny_config(TinyShape(architecture)), **changes}
    return {key: value for key, value in merged.items() if value is not ...}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_hf_config_of_each_architecture(architecture: str) -> None:
    spec = from_hf_config(config(architecture))
    assert spec == ModelSpec(
        architecture=architecture,
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32 if architecture == "qwen3" else 16,
        vocab_size=300,
        rms_norm_eps=1e-5,
        rope=RopeSpec(theta=10000.0, rotary_dim=32 if architecture == "qwen3" else 16),
        max_position_embeddings=256,
        tied_embeddings=False,
        qk_norm=architecture == "qwen3",
        attention_bias=architecture == "qwen2",
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    assert (spec.q_size, spec.kv_size, spec.qkv_size) == (4 * spec.head_dim, 2 * spec.head_dim, 8 * spec.head_dim)


def test_hf_defaults_are_those_of_transformers() -> None:
    silent = ["head_dim", "num_key_value_heads", "rope_theta", "rope_scaling", "tie_word_embeddings", "eos_token_id"]
    spec = from_hf_config(config(**dict.fromkeys(silent, ...), bos_token_id=None))
    assert (spec.head_dim, spec.num_kv_heads, spec.rope.theta, spec.tied_embeddings) == (16, 4, 10000.0, False)
    assert (spec.bos_token_id, spec.eos_token_ids) == (None, ())
    assert from_hf_config(config("qwen3", head_dim=...)).head_dim == 128
    assert from_hf_config(config(eos_token_id=[2, 0])).eos_token_ids == (2, 0)


def test_transformers_5_rope_parameters_mean_the_same() -> None:
    old = from_hf_config(config(rope_theta=5e5, rope_scaling=LLAMA3))
    new = from_hf_config(config(rope_theta=..., rope_scaling=..., rope_parameters={**LLAMA3, "rope_theta": 5e5}))
    assert old == new
    older = {"type" if key == "rope_type" else key: value for key, value in LLAMA3.items()}
    assert from_hf_config(config(rope_theta=5e5, rope_scaling=older)) == old


def test_yarn_length_and_attention_factor() -> None:
    spec = from_hf_config(config(rope_scaling=YARN, max_position_embeddings=64))
    assert spec.max_position_embeddings == 256
    assert spec.rope.attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    deepseek = from_hf_config(config(rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}))
    assert deepseek.rope.attention_factor == pytest.approx(yarn_attention_factor(4.0) / (0.05 * np.log(4) + 1))
    assert from_hf_config(config(rope_scaling={**YARN, "attention_factor": 1.5})).rope.attention_factor == 1.5
    assert yarn_attention_factor(0.5) == 1.0


REFUSED = {
    "architecture": ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
    "no architecture": ({"architectures": ...}, "architectures = None"),
    "two architectures": ({"architectures": ["LlamaForCausalLM"] * 2}, "not supported; use a model of LlamaForCausalLM"),
    "missing field": ({"hidden_size": ...}, "hidden_size is missing"),
    "null field": ({"vocab_size": None}, "vocab_size is missing"),
    "string": ({"num_hidden_layers": "2"}, "num_hidden_layers = '2': must be an integer from 1 to 1000"),
    "absurd": ({"num_hidden_layers": 2**40}, "must be an integer from 1 to 1000"),
    "beyond int32": ({"hidden_size": 2**31}, "hidden_size = 2147483648: must be an integer from 1 to 2147483647"),
    "zero": ({"num_attention_heads": 0}, "num_attention_heads = 0"),
    "negative": ({"intermediate_size": -4}, "intermediate_size = -4"),
    "bool": ({"num_hidden_layers": True}, "num_hidden_layers = True"),
    "eps": ({"rms_norm_eps": 0}, "rms_norm_eps = 0: must be a number > 0"),
    "nan": ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
    "theta": ({"rope_theta": -1.0}, "rope_theta = -1.0"),
    "groups": ({"num_key_value_heads": 3}, "4 attention heads are no multiple of 3"),
    "odd head": ({"head_dim": 15}, "head size = 15: must be even"),
    "no head size": ({"head_dim": ..., "hidden_size": 66}, "head_dim is missing"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "mlp bias": ({"mlp_bias": True}, "mlp_bias"),
    "attention bias": ({"attention_bias": True}, "attention_bias"),
    "window": ({"use_sliding_window": True}, "sliding-window"),
    "layer types": ({"layer_types": ["full_attention", "sliding_attention"]}, "full_attention"),
    "partial": ({"partial_rotary_factor": 0.5}, "partial rotation"),
    "partial in rope": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotation"),
    "packed": ({"quantization_config": {"quant_method": "awq"}}, "packed quantised"),
    "end token": ({"eos_token_id": 300}, "vocab_size = 300"),
    "rope kind": ({"rope_scaling": {"rope_type": "longrope"}}, "supported are default, linear, llama3, yarn"),
    "rope no object": ({"rope_scaling": "yarn"}, "must be an object"),
    "rope factor": ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
    "llama3 bounds": ({"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, "rope_scaling.high_freq_factor = 0.5"),
    "tied": ({"tie_word_embeddings": "yes"}, "must be true or false"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_hf_config_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_hf_config(config(**changes))
    assert message in str(caught.value)


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(CheckpointError) as caught:
        from_hf_config(config(hidden_size=..., vocab_size=-1, hidden_act="relu", mlp_bias=True))
    text = str(caught.value)
    assert all(word in text for word in ("hidden_size", "vocab_size", "hidden_act", "mlp_bias", "supported are"))


def test_unused_sliding_window_is_accepted() -> None:
    assert from_hf_config(config("qwen2", use_sliding_window=False, sliding_window=32768)).attention_bias


def test_gguf_metadata_of_smollm2() -> None:
    spec = from_gguf(SMOLLM2, tied_embeddings=True)
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size) == (30, 576, 1536)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (9, 3, 64, 49152)
    assert spec.rope == RopeSpec(theta=100000.0, rotary_dim=64)
    assert spec.tied_embeddings
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))


def test_gguf_end_tokens_include_end_of_turn() -> None:
    ends = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    assert from_gguf({**SMOLLM2, **ends}, tied_embeddings=True).eos_token_ids == (2, 5)


def test_gguf_yarn() -> None:
    scaling = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 8192}
    spec = from_gguf({**SMOLLM2, **{f"llama.rope.{k}": v for k, v in scaling.items()}}, tied_embeddings=True)
    assert (spec.rope.scaling, spec.rope.factor, spec.max_position_embeddings) == ("yarn", 4.0, 32768)
    assert spec.rope.attention_factor == pytest.approx(yarn_attention_factor(4.0))


GGUF_REFUSED = {
    "architecture": ({"general.architecture": "mamba"}, "use a model of llama, qwen2, qwen3"),
    "missing": ({"llama.block_count": None}, "llama.block_count is missing"),
    "list": ({"llama.attention.head_count": [9, 9]}, "llama.attention.head_count = [9, 9]"),
    "partial": ({"llama.rope.dimension_count": 32}, "partial rotation"),
    "value size": ({"llama.attention.value_length": 32}, "must equal the key length 64"),
    "experts": ({"llama.expert_count": 8}, "mixtures of experts"),
    "window": ({"llama.attention.sliding_window": 4096}, "sliding-window"),
    "split": ({"split.count": 2}, "split GGUF"),
    "rope kind": ({"llama.rope.scaling.type": "longrope"}, "supported are none, linear, yarn"),
    "bos": ({"tokenizer.ggml.bos_token_id": 99999}, "vocab_size = 49152"),
}


@pytest.mark.parametrize(("changes", "message"), GGUF_REFUSED.values(), ids=GGUF_REFUSED.keys())
def test_gguf_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_gguf({**SMOLLM2, **changes}, tied_embeddings=True)
    assert message in str(caught.value)


def test_gguf_frequency_factors_must_fit() -> None:
    assert from_gguf(SMOLLM2, True, (1.0,) * 32).rope.scaling == "factors"
    for wrong in ((1.0,) * 31, (0.0,) * 32):
        with pytest.raises(CheckpointError, match="must hold 32 positive divisors"):
            from_gguf(SMOLLM2, True, wrong)


@pytest.mark.parametrize("scaling", [None, LINEAR, LLAMA3, YARN, {**YARN, "beta_fast": 8, "attention_factor": 1.3}])
def test_rope_table_equals_the_reference(scaling: dict[str, Any] | None) -> None:
    given = tiny_config(TinyShape(rope_scaling=scaling))
    table = rope_table(from_hf_config(given).rope, 16, 200)
    angles, scale = rotation(given, 200)
    assert table.shape == (200, 16)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table[:, :8], np.cos(angles) * scale, atol=1e-7)
    np.testing.assert_allclose(table[:, 8:], np.sin(angles) * scale, atol=1e-7)


def test_yarn_without_truncation_differs() -> None:
    rope = from_hf_config(config(rope_scaling=YARN)).rope
    exact = dataclasses.replace(rope, truncate=False)
    assert not np.array_equal(rope_table(rope, 16, 200), rope_table(exact, 16, 200))


def test_partial_rotation_has_no_table() -> None:
    with pytest.raises(ValueError, match="partial rotation"):
        rope_table(RopeSpec(theta=1e4, rotary_dim=8), 16, 4)
