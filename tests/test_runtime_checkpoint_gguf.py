"""GGUF files: the same model as its Hugging Face folder, in every quantisation; every damage gives a CheckpointError."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.checkpoint import storage
from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.checkpoint.gguf_header import read_header
from runtime.checkpoint.storage import float32_to_bfloat16
from runtime.checkpoint.weights import destinations
from runtime.errors import CheckpointError
from runtime.models.rope import rope_table
from tests.remedies import says_what_to_do
from tests.tiny_checkpoint import (
    CHAT_TEMPLATE,
    LINEAR,
    LLAMA3,
    SPECIAL_TOKENS,
    YARN,
    TinyModel,
    TinyShape,
    tiny_tokenizer,
    write_tiny_checkpoint,
)
from tests.tiny_gguf import gguf_name, interleaved, write_tiny_gguf

SCALINGS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "linear": LINEAR,
    "yarn": YARN,
    "llama3": LLAMA3,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def raw(tiny: TinyModel) -> bytes:
    write_tiny_gguf(tiny.path / "good.gguf", tiny)
    content = (tiny.path / "good.gguf").read_bytes()
    (tiny.path / "good.gguf").unlink()
    return content


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
def test_equals_the_hugging_face_folder(tmp_path: Path, architecture: Any, tied: bool, scaling: Any) -> None:
    tiny = write_tiny_checkpoint(tmp_path / "hf", TinyShape(architecture, tied, rope_scaling=scaling))
    write_tiny_gguf(tmp_path / "tiny.gguf", tiny)
    ours, theirs = open_checkpoint(tmp_path / "tiny.gguf"), open_checkpoint(tmp_path / "hf")
    for name in ("architecture", "num_heads", "num_kv_heads", "head_dim", "tied_embeddings", "eos_token_ids", "vocab_size"):
        assert getattr(ours.spec, name) == getattr(theirs.spec, name)
    tables = [rope_table(checkpoint.spec.rope, checkpoint.spec.head_dim, 256) for checkpoint in (ours, theirs)]
    np.testing.assert_allclose(*tables, rtol=1e-5, atol=1e-5)
    weights = [destinations(checkpoint.spec, checkpoint.load_weights()) for checkpoint in (ours, theirs)]
    assert weights[0].keys() == weights[1].keys() == tiny.tensors.keys()
    for name, values in weights[0].items():
        np.testing.assert_array_equal(values, weights[1][name], err_msg=name)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_quantised_as_the_package_dequantises(tmp_path: Path, kind: str, wanted: Any, monkeypatch: Any) -> None:
    """The oracle quantises and dequantises whole tensors, and permutes afterwards; we read chunks of permuted rows."""
    monkeypatch.setattr(storage, "CHUNK_ELEMENTS", 1000)
    tiny = write_tiny_checkpoint(tmp_path / "hf")
    write_tiny_gguf(tmp_path / "tiny.gguf", tiny, kind)
    checkpoint = open_checkpoint(tmp_path / "tiny.gguf")
    views = destinations(checkpoint.spec, checkpoint.load_weights(dtype=wanted))
    number = gguf.GGMLQuantizationType[kind]
    for name, values in tiny.tensors.items():
        want = values if values.ndim == 1 else gguf.quants.dequantize(gguf.quants.quantize(values, number), number)
        np.testing.assert_array_equal(views[name], float32_to_bfloat16(want) if wanted == "bfloat16" else want)


def test_llama_rows_really_are_permuted_in_the_file(tiny: TinyModel, raw: bytes, tmp_path: Path) -> None:
    """Guards the guard: without a permutation in the file, undoing it would go untested."""
    name = "model.layers.0.self_attn.q_proj.weight"
    tensor = read_header(written(tmp_path, raw)).tensors[gguf_name(name)]
    stored = np.frombuffer(raw, np.float32, tensor.nbytes // 4, tensor.offset).reshape(tensor.shape)
    np.testing.assert_array_equal(stored, interleaved(tiny.tensors[name], 4))
    assert not np.array_equal(stored, tiny.tensors[name])


def test_header_equals_that_of_the_package(raw: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, raw)
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == {key: field.contents() for key, field in fields.items()}
    assert {name: (t.offset, t.nbytes, t.kind) for name, t in ours.tensors.items()} == {
        t.name: (t.data_offset, t.n_bytes, t.tensor_type) for t in theirs.tensors
    }


def test_tokenizer_source(raw: bytes, tmp_path: Path) -> None:
    source = open_checkpoint(written(tmp_path, raw)).tokenizer
    tokenizer = tiny_tokenizer()
    assert source.kind == "gguf"
    assert source.vocabulary == [tokenizer.id_to_token(i) for i in range(300)]
    assert len(source.merges) == 300 - 256 - len(SPECIAL_TOKENS)
    assert source.token_types == [3] * 3 + [1] * 297
    assert (source.pre, source.chat_template, source.add_bos) == ("smollm", CHAT_TEMPLATE, False)
    assert (source.bos_token_id, source.eos_token_ids) == (1, (2,))


def test_progress_counts_every_byte(tiny: TinyModel, raw: bytes, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    open_checkpoint(written(tmp_path, raw)).load_weights(progress=lambda done, total: seen.append((done, total)))
    total = sum(values.nbytes for values in tiny.tensors.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_folder_with_one_or_more_files(raw: bytes, tmp_path: Path) -> None:
    written(tmp_path, raw)
    assert open_checkpoint(tmp_path).spec.num_layers == 2
    (tmp_path / "other.gguf").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"several GGUF files.*other\.gguf, tiny\.gguf"):
        open_checkpoint(tmp_path)


def test_every_ill_fitting_tensor_is_listed(tiny: TinyModel, tmp_path: Path) -> None:
    tensors = dict(tiny.tensors)
    del tensors["model.norm.weight"]
    tensors["model.layers.1.self_attn.o_proj.bias"] = np.zeros(64, np.float32)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((64, 64), np.float32)
    write_tiny_gguf(tmp_path / "bad.gguf", TinyModel(tiny.path, tiny.shape, tiny.config, tensors))
    assert refusal(tmp_path / "bad.gguf").splitlines()[1:] == [
        "  - missing: output_norm.weight [64]",
        "  - unexpected: blk.1.attn_output.bias [64]",
        "  - misshapen: blk.0.ffn_down.weight is [64, 64], the model's shape says [64, 96]",
    ]


def test_type_that_the_package_cannot_dequantise(tiny: TinyModel, raw: bytes, tmp_path: Path) -> None:
    """A vector declared as bytes: sound as a file, but no weights."""
    assert "cannot dequantise I8 (e.g. output_norm.weight)" in refusal(
        written(tmp_path, with_kind(raw, b"output_norm.weight", gguf.GGMLQuantizationType.I8))
    )
    assert "quantisation type 9999" in refusal(written(tmp_path, with_kind(raw, b"output_norm.weight", 9999)))


def with_kind(raw: bytes, name: bytes, kind: int) -> bytes:
    """The file with another type number in the entry of one vector: name, n_dims u32, dims u64, type u32."""
    at = raw.index(name) + len(name) + 4 + 8
    return raw[:at] + struct.pack("<I", kind) + raw[at + 4 :]


def test_truncated_anywhere(raw: bytes, tmp_path: Path) -> None:
    data_start = min(tensor.offset for tensor in read_header(written(tmp_path, raw)).tensors.values())
    lengths = [*range(0, data_start, 97), data_start - 1, data_start, (data_start + len(raw)) // 2]
    last = max(t.offset + t.nbytes for t in read_header(tmp_path / "tiny.gguf").tensors.values())
    for length in [*lengths, last - 1]:
        message = refusal(written(tmp_path, raw[:length]))
        assert "truncated" in message or "is empty" in message


def test_magic_version_and_byte_order(raw: bytes, tmp_path: Path) -> None:
    assert "is no GGUF file" in refusal(written(tmp_path, b"GGML" + raw[4:]))
    assert "GGUF version = 9: readable are (2, 3)" in refusal(written(tmp_path, raw[:4] + struct.pack("<I", 9) + raw[8:]))
    assert "big-endian" in refusal(written(tmp_path, raw[:4] + struct.pack(">I", 3) + raw[8:]))
    (tmp_path / "empty.gguf").touch()
    assert "is empty; remove it and fetch it again" in refusal(tmp_path / "empty.gguf")


def header(*entries: bytes, tensors: int = 0, count: int | None = None) -> bytes:
    return struct.pack("<IIQQ", 0x46554747, 3, tensors, len(entries) if count is None else count) + b"".join(entries)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor(name: bytes, rows: int, offset: int, kind: int = 0, columns: int = 32) -> bytes:
    return string(name) + struct.pack("<IQQIQ", 2, columns, rows, kind, offset)


ALIGNMENT = string(b"general.alignment") + struct.pack("<I", 4)
DAMAGED = {
    "count of entries": (header(count=2**60), "metadata entries cannot fit"),
    "count of tensors": (header(tensors=2**60), "tensors cannot fit"),
    "length of a string": (header(struct.pack("<Q", 2**63) + bytes(64)), "truncated"),
    "length of an array": (header(string(b"a") + struct.pack("<IIQ", 9, 4, 2**61) + bytes(64)), "values of 'a' cannot fit"),
    "nested array": (header(string(b"a") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)), "array of arrays"),
    "value type": (header(string(b"a") + struct.pack("<I", 77) + bytes(64)), "unknown value type 77"),
    "no utf-8": (header(string(b"\xff\xfe") + struct.pack("<II", 4, 1)), "no UTF-8"),
    "key twice": (header(*[string(b"a") + struct.pack("<II", 4, 1)] * 2), "'a' occurs twice"),
    "alignment": (header(ALIGNMENT + struct.pack("<I", 3)), "power of two"),
    "alignment zero": (header(ALIGNMENT + struct.pack("<I", 0)), "power of two"),
    "dimensions": (header(string(b"t") + struct.pack("<I", 9) + bytes(99), tensors=1, count=0), "9 dimensions"),
    "tensor twice": (header(tensor(b"t", 1, 0), tensor(b"t", 1, 128), tensors=2, count=0) + bytes(512), "'t' occurs twice"),
    "overlap": (header(tensor(b"t", 2, 0), tensor(b"u", 1, 128), tensors=2, count=0) + bytes(512), "'t' and 'u' overlap"),
    "misaligned": (header(tensor(b"t", 1, 8), tensors=1, count=0) + bytes(512), "not aligned to 32"),
    "outside": (header(tensor(b"t", 1, 1 << 40), tensors=1, count=0) + bytes(512), "truncated: tensor 't' ends"),
    "huge": (header(tensor(b"t", 2**62, 0), tensors=1, count=0) + bytes(512), "truncated: tensor 't' ends"),
    "blocks": (header(tensor(b"t", 1, 0, 2, 33), tensors=1, count=0) + bytes(512), "33 elements, no multiple of 32"),
    "no model": (header(tensor(b"t", 1, 0), tensors=1, count=0) + bytes(512), "general.architecture = None"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_header(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refusal(written(tmp_path, content))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0llam", "only byte-level BPE"),
        (b"tokenizer.ggml.merges", b"tokenizer.ggml.merged", "tokenizer.ggml.merges is missing"),
        (b"tokenizer.ggml.token_type", b"tokenizer.ggml.token_typo", "tokenizer.ggml.token_type is missing"),
        (b"llama.block_count", b"llama.block_cound", "llama.block_count is missing"),
    ],
)
def test_unusable_metadata(raw: bytes, tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    assert len(old) == len(new)
    assert message in refusal(written(tmp_path, raw.replace(old, new)))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_flipped_bytes_never_escape_as_another_error(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 14000))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flip") / "tiny.gguf"
    path.write_bytes(damaged)
    try:
        open_checkpoint(path).load_weights()
    except CheckpointError:
        return
    finally:
        path.unlink()


def written(folder: Path, content: bytes) -> Path:
    (folder / "tiny.gguf").write_bytes(content)
    return folder / "tiny.gguf"


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert says_what_to_do(str(caught.value)), caught.value
    return str(caught.value)
