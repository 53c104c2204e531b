"""Hugging Face folders: every shape, dtype and sharding loads to the same numbers; every fault says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from runtime.checkpoint import storage
from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.checkpoint.storage import bfloat16_to_float32, float32_to_bfloat16
from runtime.checkpoint.weights import WeightDtype, destinations
from runtime.errors import CheckpointError
from tests.reference_forward import reference_logits
from tests.remedies import says_what_to_do
from tests.tiny_checkpoint import CHAT_TEMPLATE, TinyModel, TinyShape, write_tiny_checkpoint


@pytest.fixture
def tiny(tmp_path: Path) -> TinyModel:
    return write_tiny_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_loads_what_was_written(tmp_path: Path, architecture: Any, tied: bool, shards: int, dtype: Any) -> None:
    tiny = write_tiny_checkpoint(tmp_path, TinyShape(architecture, tied, shards, dtype))
    checkpoint = open_checkpoint(tmp_path)
    weights = checkpoint.load_weights()
    views = destinations(checkpoint.spec, weights)
    assert views.keys() == tiny.tensors.keys()
    for name, values in tiny.tensors.items():
        np.testing.assert_array_equal(views[name], values, err_msg=name)
    assert (weights.head is weights.embed) == tied
    layer = weights.layers[1]
    fused = [tiny.tensors[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    np.testing.assert_array_equal(layer.qkv, np.concatenate(fused))
    gated = [tiny.tensors[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    np.testing.assert_array_equal(layer.gate_up, np.concatenate(gated))
    arrays = [weights.embed, weights.head, weights.final_norm, *(a for a in vars(layer).values() if a is not None)]
    assert all(array.flags.c_contiguous and array.dtype == np.float32 for array in arrays)
    assert (layer.qkv_bias is not None, layer.q_norm is not None) == (architecture == "qwen2", architecture == "qwen3")


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("wanted", ["float16", "bfloat16"])
def test_other_dtypes(tmp_path: Path, stored: Any, wanted: WeightDtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHUNK_ELEMENTS", 1000)  # several uneven chunks for each matrix
    tiny = write_tiny_checkpoint(tmp_path, TinyShape(dtype=stored))
    checkpoint = open_checkpoint(tmp_path)
    for name, view in destinations(checkpoint.spec, checkpoint.load_weights(dtype=wanted)).items():
        values = tiny.tensors[name]
        want = values.astype(np.float16) if wanted == "float16" else float32_to_bfloat16(values)
        assert view.dtype == want.dtype
        np.testing.assert_array_equal(view, want, err_msg=name)


def test_tiny_files_are_what_the_safetensors_package_reads(tmp_path: Path) -> None:
    """The writer of the tests is checked by the real package, so that our reader is not checked by itself."""
    for dtype, name in (("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")):
        tiny = write_tiny_checkpoint(tmp_path / dtype, TinyShape(dtype=dtype))
        with safe_open(tmp_path / dtype / "model.safetensors", "np") as file:
            assert set(file.keys()) == set(tiny.tensors)
            assert file.get_slice("model.norm.weight").get_dtype() == name
            if dtype != "bfloat16":
                np.testing.assert_array_equal(file.get_tensor("model.norm.weight"), tiny.tensors["model.norm.weight"])


def test_bfloat16_rounds_to_nearest_even() -> None:
    #                 exact, tie to even down, tie to even up, above the tie, overflow to infinity, signed zero, inf
    bits = [0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x80000000, 0x7F800000]
    want = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x8000, 0x7F80]
    assert float32_to_bfloat16(np.array(bits, np.uint32).view(np.float32)).tolist() == want
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(np.array([0x7FFFFFFF], np.uint32).view(np.float32))))[0]


def test_overflow_of_float16_is_refused(tmp_path: Path) -> None:
    tiny = write_tiny_checkpoint(tmp_path)
    rewrite(tmp_path / "model.safetensors", {**tiny.tensors, "model.norm.weight": np.full(64, 7e4, np.float32)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*65504.*bfloat16"):
        open_checkpoint(tmp_path).load_weights(dtype="float16")
    open_checkpoint(tmp_path).load_weights(dtype="bfloat16")


def test_unknown_dtype(tiny: TinyModel) -> None:
    with pytest.raises(CheckpointError, match="dtype = 'int8': weights can be stored as float32, float16, bfloat16"):
        open_checkpoint(tiny.path).load_weights(dtype="int8")  # type: ignore[arg-type]


def test_progress_counts_every_byte(tiny: TinyModel) -> None:
    seen: list[tuple[int, int]] = []
    open_checkpoint(tiny.path).load_weights(progress=lambda done, total: seen.append((done, total)))
    total = sum(values.nbytes for values in tiny.tensors.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_tiny_logits_are_well_spread(architecture: Any, tied: bool, tmp_path: Path) -> None:
    """Greedy tests on these models mean something: argmaxes vary by position and win clearly."""
    tiny = write_tiny_checkpoint(tmp_path, TinyShape(architecture, tied))
    tokens = np.random.default_rng(3).integers(0, 300, 40)
    logits = reference_logits(tiny.config, tiny.tensors, tokens)
    second, first = np.sort(logits, axis=-1)[:, -2:].T
    assert (first - second).min() > 1e-3
    assert len(set(logits.argmax(-1))) > 20
    single = reference_logits(tiny.config, tiny.tensors, tokens, np.float32)
    np.testing.assert_allclose(single, logits, rtol=1e-4, atol=1e-4)


def test_tokenizer_source(tiny: TinyModel) -> None:
    source = open_checkpoint(tiny.path).tokenizer
    assert (source.kind, source.tokenizer_json) == ("json", tiny.path / "tokenizer.json")
    assert (source.chat_template, source.bos_token_id, source.eos_token_ids) == (CHAT_TEMPLATE, 1, (2,))
    (tiny.path / "chat_template.jinja").write_text("newer")
    (tiny.path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    checkpoint = open_checkpoint(tiny.path)
    assert checkpoint.tokenizer.chat_template == "newer"
    assert checkpoint.tokenizer.eos_token_ids == checkpoint.spec.eos_token_ids == (2, 0)


def test_named_chat_templates_use_the_default(tiny: TinyModel) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    (tiny.path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "add_bos_token": True}))
    source = open_checkpoint(tiny.path).tokenizer
    assert (source.chat_template, source.add_bos) == ("yes", True)


def test_every_ill_fitting_tensor_is_listed(tiny: TinyModel) -> None:
    tensors = dict(tiny.tensors)
    del tensors["model.norm.weight"], tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.layers.1.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:299]
    tensors["model.layers.0.self_attn.o_proj.weight"] = np.zeros((64, 32), np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    rewrite(tiny.path / "model.safetensors", tensors)
    assert refusal(tiny.path).splitlines()[1:] == [
        "  - missing: model.layers.0.mlp.up_proj.weight [96, 64]",
        "  - missing: model.norm.weight [64]",
        "  - unexpected: model.layers.1.self_attn.q_proj.bias [64]",
        "  - misshapen: model.layers.0.self_attn.o_proj.weight is [64, 32], the model's shape says [64, 64]",
        "  - misshapen: lm_head.weight is [299, 64], the model's shape says [300, 64]",
    ]


def test_tied_head_may_be_written_out(tmp_path: Path) -> None:
    tiny = write_tiny_checkpoint(tmp_path, TinyShape(tied=True))
    head = {"lm_head.weight": tiny.tensors["model.embed_tokens.weight"]}
    rewrite(tmp_path / "model.safetensors", {**tiny.tensors, **head})
    weights = open_checkpoint(tmp_path).load_weights()
    assert weights.head is weights.embed


def test_missing_head_of_an_untied_model(tmp_path: Path) -> None:
    tiny = write_tiny_checkpoint(tmp_path, TinyShape(tied=True))
    config = {**tiny.config, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "missing: lm_head.weight [300, 64]" in refusal(tmp_path)


def test_unreadable_dtype(tiny: TinyModel) -> None:
    rewrite(tiny.path / "model.safetensors", {**tiny.tensors, "model.norm.weight": np.ones(64)})
    assert "model.norm.weight (F64)" in refusal(tiny.path)


def test_truncated_file_at_every_length(tiny: TinyModel) -> None:
    path = tiny.path / "model.safetensors"
    raw = path.read_bytes()
    for length in (0, 7, 8, 100, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:length])
        assert "truncated" in refusal(tiny.path)
    path.write_bytes(raw + b"\0")
    assert "1 bytes follow" in refusal(tiny.path)


def headers(**changes: Any) -> bytes:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return json.dumps({"a": entry}).encode()


CORRUPT_HEADERS = {
    "no json": b"{{{{{{{{",
    "no utf-8": b'{"\xff\xfe": 1}',
    "no object": b"[1, 2]",
    "no entry": b'{"a": 3}',
    "negative": headers(shape=[-2]),
    "dtype": headers(dtype="F13"),
    "dtype type": headers(dtype=["F32"]),
    "offset type": headers(data_offsets=["0", "8"]),
    "three offsets": headers(data_offsets=[0, 4, 8]),
    "length": headers(shape=[3]),
    "hole": headers(data_offsets=[4, 12]),
    "huge": headers(shape=[2**62], data_offsets=[0, 2**64]),
}


@pytest.mark.parametrize("header", CORRUPT_HEADERS.values(), ids=CORRUPT_HEADERS.keys())
def test_corrupt_header(tiny: TinyModel, header: bytes) -> None:
    (tiny.path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "model.safetensors: is " in refusal(tiny.path)


def test_shards_and_index(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, TinyShape(shards=3))
    index = tmp_path / "model.safetensors.index.json"
    good = json.loads(index.read_text())["weight_map"]
    faults: dict[str, Any] = {
        "shards that are missing: gone.safetensors": {**good, "x": "gone.safetensors"},
        "lie in the same folder, not": {**good, "x": "../model.safetensors"},
        "tensors that their shards lack: x in model-00001": {**good, "x": "model-00001-of-00003.safetensors"},
        "weight_map must map": {**good, "x": 3},
        "missing: model.norm.weight": {k: v for k, v in good.items() if v != good["model.norm.weight"]},
    }
    for message, weight_map in faults.items():
        index.write_text(json.dumps({"weight_map": weight_map}))
        assert message in refusal(tmp_path)
    index.write_text("{")
    assert "is corrupt" in refusal(tmp_path)


def test_missing_and_corrupt_files(tiny: TinyModel) -> None:
    for name, content, message in [
        ("generation_config.json", '{"eos_token_id": 999}', "vocab_size = 300"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template = 3: must be a string"),
        ("config.json", "{", "config.json: is corrupt"),
        ("config.json", "[]", "holds [], not a JSON object"),
        ("config.json", b"\xff", "config.json: is corrupt"),
    ]:
        path = tiny.path / name
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert message in refusal(tiny.path)
        path.unlink() if before is None else path.write_bytes(before)
    for name, message in [
        ("tokenizer.json", "tokenizer.json: is missing"),
        ("model.safetensors", "holds neither model.safetensors nor model.safetensors.index.json"),
        ("config.json", "config.json: is missing"),
    ]:
        (tiny.path / name).unlink()
        assert message in refusal(tiny.path)


def test_paths_that_are_no_checkpoint(tiny: TinyModel) -> None:
    assert "no such file or folder" in refusal(tiny.path / "nowhere")
    assert "give the folder" in refusal(tiny.path / "model.safetensors")


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert says_what_to_do(str(caught.value)), caught.value
    return str(caught.value)


def rewrite(path: Path, tensors: dict[str, Any]) -> None:
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, path)
