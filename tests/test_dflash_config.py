"""Drafter folders: what config.json may say, which tensors must be there, and every mistake by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime.errors import CheckpointError
from runtime.models.spec import ModelSpec, from_hf_config
from runtime.speculators.dflash_config import DraftAttention, check_target, default_target_layers, read_draft_config
from runtime.speculators.dflash_weights import DraftCheckpoint, expected_draft_shapes
from tests.tiny_checkpoint import TinyShape, tiny_config
from tests.tiny_drafter import DrafterShape, TinyDrafter, drafter_config, write_tiny_drafter

TARGET = TinyShape(num_layers=4)
SPEC: ModelSpec = from_hf_config(tiny_config(TARGET))
SLIDING, FULL = "sliding_attention", "full_attention"

# As the public files have them (DFLASH.md 1.1 and 2.2).
QWEN3_8B_B16: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 16,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "attention_bias": False,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "num_target_layers": 36,
    "layer_types": [FULL] * 5,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
QWEN38_27B: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000},
    "max_position_embeddings": 262144,
    "vocab_size": 248320,
    "layer_types": [SLIDING] * 5,
    "sliding_window": 2048,
    "is_causal": False,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
}


def test_qwen3_8b_dflash() -> None:
    spec = read_draft_config(QWEN3_8B_B16)
    assert (spec.version, spec.block_size, spec.mask_token_id, spec.target_layer_ids) == (1, 16, 151669, (1, 9, 17, 25, 33))
    assert spec.attention == (DraftAttention(0, False),) * 5
    assert (spec.rope.theta, spec.rope.scaling, spec.q_size, spec.kv_size) == (1e6, "none", 4096, 1024)
    shapes = expected_draft_shapes(spec)
    assert len(shapes) == 5 * 11 + 3
    assert shapes["fc.weight"] == (4096, 5 * 4096)


def test_qwen38_27b_dflash2() -> None:
    """81 tensors, and the shapes that the header of the public file shows."""
    spec = read_draft_config(QWEN38_27B)
    assert (spec.version, spec.block_size, spec.mask_token_id, spec.target_layer_ids) == (2, 8, 248070, (5, 19, 33, 47, 61))
    assert spec.attention == (DraftAttention(2048, False),) * 5
    assert (spec.rope.theta, spec.selector_rank, spec.selector_top_k) == (1e7, 256, 16)
    shapes = expected_draft_shapes(spec)
    assert len(shapes) == 81
    assert shapes["layers.4.mlp_conv.base_kernel"] == (2, 2, 5120)
    assert shapes["layers.0.attention_conv.kernel_projection.weight"] == (1280, 5120)
    assert shapes["candidate_selector.predecessor_codebook"] == shapes["candidate_selector.successor_codebook"] == (248320, 256)
    assert shapes["candidate_selector.hidden_projection.weight"] == (256, 5120)


@pytest.mark.parametrize("config", [QWEN3_8B_B16, QWEN38_27B], ids=["qwen3-8b", "qwen3.8-27b"])
def test_public_configurations_load_with_random_weights(tmp_path: Path, config: dict[str, Any]) -> None:
    """The public names at a sixty-fourth of the width, one layer deep: every tensor arrives in its place."""
    small = {name: config[name] // 64 for name in ("hidden_size", "intermediate_size")}
    small |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 999}
    inner = {**config["dflash_config"], "mask_token_id": 998}
    config = {**config, **small, "layer_types": config["layer_types"][:1], "dflash_config": inner}
    shapes = expected_draft_shapes(read_draft_config(config))
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    weights = DraftCheckpoint(tmp_path).load_weights()
    prefix, layer = "layers.0.self_attn.", weights.layers[0]
    q, k, v = (tensors[f"{prefix}{name}_proj.weight"] for name in "qkv")
    np.testing.assert_array_equal(layer.qkv, np.concatenate([q, k, v]))
    np.testing.assert_array_equal(weights.context_kv, np.concatenate([k, v]))
    np.testing.assert_array_equal(weights.context_k_norms, tensors[prefix + "k_norm.weight"][None])
    np.testing.assert_array_equal(weights.fc, tensors["fc.weight"])
    if config["architectures"] == ["DFlash2DraftModel"]:
        assert weights.selector is not None
        np.testing.assert_array_equal(weights.selector.successors, tensors["candidate_selector.successor_codebook"])


@pytest.mark.parametrize(
    ("layers", "target", "expected"),
    [(1, 30, (15,)), (2, 30, (1, 27)), (3, 30, (1, 14, 27)), (5, 30, (1, 8, 14, 20, 27)), (5, 36, (1, 9, 17, 25, 33))],
)
def test_default_taps(layers: int, target: int, expected: tuple[int, ...]) -> None:
    assert default_target_layers(layers, target) == expected
    config = {**QWEN3_8B_B16, "num_hidden_layers": layers, "num_target_layers": target, "layer_types": None}
    config["dflash_config"] = {"mask_token_id": 5}
    assert read_draft_config(config).target_layer_ids == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [(0, False), (0, False)]),
        ({"is_causal": True}, [(0, True), (0, True)]),
        ({"layer_types": [SLIDING, FULL], "sliding_window": 9}, [(9, True), (0, False)]),
        ({"layer_types": [SLIDING, FULL], "sliding_window": 9, "is_causal": False}, [(9, False), (0, False)]),
        ({"layer_types": [SLIDING, FULL], "sliding_window": 9, "is_causal": True}, [(9, True), (0, True)]),
        ({"layer_types": [SLIDING, SLIDING], "sliding_window": 9, "causal": False}, [(9, False), (9, False)]),
        ({"use_swa": True, "swa_window_size": 7}, [(7, False), (7, False)]),
    ],
)
def test_who_sees_whom(fields: dict[str, Any], expected: list[tuple[int, bool]]) -> None:
    config = drafter_config(TARGET, DrafterShape(is_causal=None)) | fields
    assert read_draft_config(config).attention == tuple(DraftAttention(*item) for item in expected)


def test_the_inner_object_wins_and_null_counts_as_missing() -> None:
    config = drafter_config(TARGET, DrafterShape()) | {"block_size": 4, "mask_token_id": 9, "output_multiplier": 2.0}
    config["dflash_config"] |= {"block_size": 12, "final_logit_softcapping": 20.0, "input_embedding_scale": None}
    config["logit_scale"] = 0.5
    spec = read_draft_config(config)
    assert (spec.block_size, spec.mask_token_id) == (12, 5)
    assert (spec.output_multiplier, spec.final_logit_softcapping, spec.input_embedding_scale) == (1.0, 20.0, 1.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures = .*use one of DFlashDraftModel, DFlash2DraftModel"),
        ({"architectures": None}, "architectures = None"),
        ({"dflash_config": [1]}, "dflash_config = .*must be an object"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, "mask_token_id is missing"),
        ({"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 300}}, "mask_token_id = 300: token ids must lie in"),
        ({"dflash_config": {"target_layer_ids": [], "mask_token_id": 3}}, "target_layer_ids = \\[\\]"),
        ({"dflash_config": {"target_layer_ids": [0, "2"], "mask_token_id": 3}}, "target_layer_ids = "),
        ({"layer_types": [FULL]}, "layer_types has 1 entries for num_hidden_layers = 2"),
        ({"layer_types": [FULL, "linear_attention"]}, "must be a list of full_attention and sliding_attention"),
        ({"layer_types": [FULL, SLIDING]}, "sliding_window is missing"),
        ({"sample_from_anchor": True}, "sample_from_anchor = True: .*DSpark"),
        ({"attention_sink_bias": True}, "attention_sink_bias = True"),
        ({"draft_vocab_size": 100}, "draft_vocab_size = 100: .*reduced"),
        ({"rope_is_neox_style": False}, "interleaved rotation"),
        ({"head_dim": 7}, "head_dim = 7: must be even"),
        ({"num_key_value_heads": 4}, "6 attention heads are no multiple of 4"),
        ({"block_size": 1}, "block_size = 1"),
        ({"hidden_size": None, "vocab_size": "x"}, "(?s)hidden_size is missing.*vocab_size = 'x'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "supported are default, linear, llama3, yarn"),
    ],
)
def test_bad_configurations(change: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        read_draft_config(drafter_config(TARGET, DrafterShape()) | change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"conv_group_size": 24}, "conv_group_size = 24: must divide hidden_size = 64"),
        ({"selector_top_k": 301}, "selector_top_k = 301"),
        ({"selector_top_k": 299, "vocab_size": 298}, "selector_top_k = 299"),
    ],
)
def test_bad_configurations_of_dflash2(change: dict[str, Any], text: str) -> None:
    config = drafter_config(TARGET, DrafterShape(version=2))
    config["dflash_config"] |= change
    with pytest.raises(CheckpointError, match=text):
        read_draft_config(config)


@pytest.mark.parametrize(
    ("target", "k", "text"),
    [
        (replace(SPEC, hidden_size=128), 3, "(?s)hidden_size = 64: the target has 128; this drafter was made for another target"),
        (replace(SPEC, vocab_size=301), 3, "vocab_size = 300: the target has 301"),
        (replace(SPEC, num_layers=5), 3, "num_target_layers = 4: the target has 5"),
        (replace(SPEC, num_layers=2), 3, r"target_layer_ids = \[0, 2\]: \[2\] outside 0..0; the target has 2"),
        (replace(SPEC, num_layers=3), 3, r"target_layer_ids = \[0, 2\]: \[2\] outside 0..1"),  # the last block is no tap
        (SPEC, 8, "block_size = 8: drafts at most 7 tokens, speculator.num_speculative_tokens = 8; lower it"),
    ],
)
def test_a_drafter_for_another_target(target: ModelSpec, k: int, text: str) -> None:
    spec = read_draft_config(drafter_config(TARGET, DrafterShape()))
    check_target(spec, SPEC, 7, "drafter")
    with pytest.raises(CheckpointError, match=text):
        check_target(spec, target, k, "drafter")


@pytest.fixture
def drafter(tmp_path: Path) -> TinyDrafter:
    return write_tiny_drafter(tmp_path / "drafter", TARGET, DrafterShape(version=2))


def test_every_tensor_that_does_not_fit_is_listed(drafter: TinyDrafter) -> None:
    tensors = dict(drafter.tensors)
    tensors["fc.bias"] = tensors.pop("fc.weight")
    tensors["norm.weight"] = tensors["norm.weight"][:10]
    del tensors["layers.1.attention_conv.base_kernel"]
    save_file(tensors, drafter.path / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        DraftCheckpoint(drafter.path)
    lines = str(error.value).splitlines()
    assert "4 tensors do not fit" in lines[0]
    assert [line.split(":")[0].strip(" -") for line in lines[1:]] == ["missing", "missing", "unexpected", "misshapen"]


@pytest.mark.parametrize("name", ["lm_head.weight", "embed_tokens.weight", "d2t"])
def test_tables_of_its_own_are_refused(drafter: TinyDrafter, name: str) -> None:
    save_file({**drafter.tensors, name: np.zeros((3, 3), np.float32)}, drafter.path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name}: a drafter shares the target's tables"):
        DraftCheckpoint(drafter.path)


def test_a_mask_embedding_of_its_own_is_refused(drafter: TinyDrafter) -> None:
    (drafter.path / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"mask_embedding\.pt"):
        DraftCheckpoint(drafter.path)


@pytest.mark.parametrize("keep", [4, 100, 5000])
def test_a_truncated_file_says_so(drafter: TinyDrafter, keep: int) -> None:
    path = drafter.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="truncated"):
        DraftCheckpoint(drafter.path)


def test_missing_files(tmp_path: Path, drafter: TinyDrafter) -> None:
    with pytest.raises(CheckpointError, match="must be a folder"):
        DraftCheckpoint(drafter.path / "config.json")
    (drafter.path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors"):
        DraftCheckpoint(drafter.path)
    with pytest.raises(CheckpointError, match=r"config\.json: is missing"):
        DraftCheckpoint(tmp_path)
