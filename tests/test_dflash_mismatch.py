"""Drafters whose configuration, weights and target do not belong together: each difference is told before anything runs."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from runtime.blueprint import step_sizes
from runtime.config import load_config
from runtime.errors import CheckpointError, ConfigError
from runtime.models.spec import ModelSpec, from_hf_config
from runtime.speculators.dflash_config import check_target, read_draft_config
from runtime.speculators.dflash_weights import DraftCheckpoint
from runtime.speculators.proposers import Speculator
from tests.tiny_checkpoint import TinyShape, tiny_config
from tests.tiny_drafter import DrafterShape, TinyDrafter, drafter_config, write_tiny_drafter

TARGET = TinyShape(num_layers=4)
SPEC: ModelSpec = from_hf_config(tiny_config(TARGET))
BASE = {"model": {"source": "anywhere"}, "speculator": {"method": "dflash", "draft_source": "beside"}}


def relabel(drafter: TinyDrafter, **fields: Any) -> Path:
    """The weights as they are under another configuration; a field that stands in dflash_config is changed there."""
    inner = {name: value for name, value in fields.items() if name in drafter.config["dflash_config"]}
    config = {**drafter.config, **fields, "dflash_config": {**drafter.config["dflash_config"], **inner}}
    (drafter.path / "config.json").write_text(json.dumps(config))
    return drafter.path


@pytest.mark.parametrize("version", [1, 2])
def test_dflash_and_dflash2_under_each_others_name(tmp_path: Path, version: Any) -> None:
    """Nothing runs a DFlash2 file without its convolutions and its selector. Once the name is right the drafter opens."""
    drafter = write_tiny_drafter(tmp_path, TARGET, DrafterShape(version=version))
    right, wrong = sorted(("DFlashDraftModel", "DFlash2DraftModel"), reverse=version == 1)
    with pytest.raises(CheckpointError) as error:
        DraftCheckpoint(relabel(drafter, architectures=[wrong]))
    text = str(error.value)
    assert f'{tmp_path / "config.json"}: architectures = ["{wrong}"], but the file beside it holds' in text
    evidence = {
        1: "no tensor of attention_conv, mlp_conv, candidate_selector, which every DFlash2DraftModel has",
        2: "11 tensors that no DFlashDraftModel has, candidate_selector.hidden_projection.weight the first",
    }
    assert f'{evidence[version]}: set architectures to ["{right}"], or put the weights there that belong to' in text
    assert DraftCheckpoint(relabel(drafter, architectures=[right])).spec.version == version


def test_a_dflash2_file_that_lacks_a_part_is_no_dflash(tmp_path: Path) -> None:
    """One convolution is missing: that is told, and not that the name is wrong."""
    drafter = write_tiny_drafter(tmp_path, TARGET, DrafterShape(version=2))
    tensors = dict(drafter.tensors)
    del tensors["layers.0.mlp_conv.base_kernel"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 tensors do not fit.*\n.*missing: layers\.0\.mlp_conv\.base_kernel"):
        DraftCheckpoint(tmp_path)


def test_target_and_drafter_in_each_others_place() -> None:
    with pytest.raises(CheckpointError, match=r"\['LlamaForCausalLM'\] is no drafter .*; a target belongs into model\.source"):
        read_draft_config(tiny_config(TARGET))
    with pytest.raises(CheckpointError, match=r"\['DFlashDraftModel'\] is not supported; a drafter belongs into speculator\."):
        from_hf_config(drafter_config(TARGET, DrafterShape()))


@pytest.mark.parametrize("taps", [(0, 0), (2, 0, 2), (1, 1, 0, 0)])
def test_a_block_that_is_tapped_twice(taps: tuple[int, ...]) -> None:
    repeated = sorted({layer for layer in taps if taps.count(layer) > 1})
    with pytest.raises(CheckpointError) as error:
        read_draft_config(drafter_config(TARGET, DrafterShape(taps=taps)))
    assert f"target_layer_ids = {list(taps)}: {repeated} more than once; each has columns of fc of its own" in str(error.value)


def test_an_even_spacing_that_repeats_a_block() -> None:
    """Two draft layers over four blocks tap block 1 twice where the file names no taps."""
    config = drafter_config(TARGET, DrafterShape())
    del config["dflash_config"]["target_layer_ids"]
    with pytest.raises(CheckpointError, match=r"target_layer_ids = \[1, 1\]: \[1\] more than once"):
        read_draft_config(config)


@pytest.mark.parametrize(("taps", "said"), [((2, 0), True), ((0, 2), False)])
def test_taps_out_of_order_are_used_and_told(tmp_path: Path, caplog: Any, taps: tuple[int, ...], said: bool) -> None:
    """The format's columns are in the order of the list, so such a file may be right: tests/test_dflash_engine.py runs one."""
    path = write_tiny_drafter(tmp_path, TARGET, DrafterShape(taps=taps)).path
    config = load_config(BASE, speculator__draft_source=str(path)).speculator
    with caplog.at_level(logging.WARNING, "runtime"):
        Speculator(config, SPEC, "float32")
    assert [f"target_layer_ids = {list(taps)} of {path} do not rise" in message for message in caplog.messages] == [True] * said


@pytest.mark.parametrize("taps", [(-1, 0), (0, 3), (4,), (1, 2**31)])
def test_taps_outside_the_target(taps: tuple[int, ...]) -> None:
    spec = read_draft_config(drafter_config(TARGET, DrafterShape(taps=taps)))
    outside = [layer for layer in taps if layer not in (0, 1, 2)]
    with pytest.raises(CheckpointError) as error:
        check_target(spec, SPEC, 3, "drafter")
    assert f"target_layer_ids = {list(taps)}: {outside} outside 0..2; the target has 4 blocks" in str(error.value)


@pytest.mark.parametrize("change", [{"num_heads": 2}, {"num_kv_heads": 1}, {"head_dim": 32}, {"intermediate_size": 8}], ids=str)
def test_heads_and_width_are_the_drafters_own(change: dict[str, int]) -> None:
    """A drafter has attention of its own: nothing in it depends on the heads of its target."""
    check_target(read_draft_config(drafter_config(TARGET, DrafterShape())), replace(SPEC, **change), 3, "drafter")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "misshapen"),
    [
        ({"head_dim": 16}, "layers.0.self_attn.q_proj.weight is [48, 64], the model's shape says [96, 64]"),
        ({"head_dim": 16, "num_attention_heads": 3, "num_key_value_heads": 3}, "layers.0.self_attn.q_norm.weight is [8]"),
        ({"num_attention_heads": 12}, "layers.1.self_attn.o_proj.weight is [64, 48], the model's shape says [64, 96]"),
        ({"num_key_value_heads": 2}, "layers.0.self_attn.k_proj.weight is [24, 64], the model's shape says [16, 64]"),
        ({"intermediate_size": 96}, "layers.0.mlp.gate_proj.weight is [80, 64], the model's shape says [96, 64]"),
        ({"hidden_size": 128}, "norm.weight is [64], the model's shape says [128]"),
        ({"target_layer_ids": [0, 1, 2]}, "fc.weight is [64, 128], the model's shape says [64, 192]"),
        ({"target_hidden_size": 128}, "fc.weight is [64, 128], the model's shape says [64, 256]"),
        ({"num_hidden_layers": 1}, "unexpected: layers.1.input_layernorm.weight [64]"),
        ({"num_hidden_layers": 3}, "missing: layers.2.input_layernorm.weight [64]"),
        ({"attention_bias": True}, "missing: layers.0.self_attn.q_proj.bias [48]"),
        ({"vocab_size": 299}, "candidate_selector.predecessor_codebook is [300, 12], the model's shape says [299, 12]"),
        ({"selector_rank": 11}, "candidate_selector.hidden_projection.weight is [12, 64], the model's shape says [11, 64]"),
        ({"conv_group_size": 32}, "layers.0.mlp_conv.kernel_projection.weight is [16, 64], the model's shape says [8, 64]"),
        ({"conv_kernel_size": 3}, "layers.0.attention_conv.base_kernel is [2, 2, 64], the model's shape says [2, 3, 64]"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_configuration_of_other_weights(tmp_path: Path, fields: dict[str, Any], misshapen: str) -> None:
    drafter = write_tiny_drafter(tmp_path, TARGET, DrafterShape(version=2))
    with pytest.raises(CheckpointError) as error:
        DraftCheckpoint(relabel(drafter, **fields))
    assert misshapen in str(error.value)


def sizes(drafter_positions: int | None, **scheduler: Any) -> int:
    return step_sizes(load_config(BASE, scheduler=scheduler), SPEC, drafter_positions).max_model_len


def test_a_drafter_of_shorter_sequences() -> None:
    """auto is what both were made for; more than the drafter was made for is refused, and not its tokens lost silently."""
    assert [sizes(None), sizes(1000), sizes(100), sizes(100, max_model_len=100)] == [256, 256, 100, 100]
    with pytest.raises(ConfigError) as error:
        sizes(100, max_model_len=101)
    assert str(error.value) == (
        "scheduler.max_model_len = 101: above the drafter's 100 positions; lower it, set it to auto, or set speculator.method to "
        "none or ngram"
    )
    with pytest.raises(ConfigError, match="max_model_len = 257: above the model's 256 positions"):
        sizes(100, max_model_len=257)


def test_what_a_drafter_says_of_its_length(tmp_path: Path) -> None:
    yarn = {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
    for extra, longest in (({"max_position_embeddings": 128}, 128), ({"max_position_embeddings": 64} | yarn, 256)):
        path = write_tiny_drafter(tmp_path, TARGET, DrafterShape(extra=extra)).path
        config = load_config(BASE, speculator__draft_source=str(path)).speculator
        assert Speculator(config, SPEC, "float32").max_positions == longest
    assert Speculator(load_config(BASE, speculator__method="ngram").speculator, SPEC, "float32").max_positions is None
