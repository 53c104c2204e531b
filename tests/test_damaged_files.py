"""Files of a checkpoint damaged in every way that damages come: one message each, with the file and what to do about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.errors import CheckpointError, DamagedFileError
from runtime.speculators.dflash_weights import DraftCheckpoint
from runtime.tokenizer import Tokenizer
from tests.remedies import says_what_to_do
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import write_tiny_drafter
from tests.tiny_gguf import write_tiny_gguf

SHAPE = TinyShape(num_layers=4, shards=2)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "one-byte": lambda raw: raw[:1],
    "cut": lambda raw: raw[: len(raw) // 2],
    "list": lambda raw: b"[]",
    "number": lambda raw: b"17",
    "no-text": lambda raw: b"\xff\xfe\x00" * 40,
    "nothing-in-it": lambda raw: b"{}",
    "deep": lambda raw: b"[" * 200_000,
    "html": lambda raw: b"<!DOCTYPE html><html><body>404</body></html>",
}
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json",
         "model-00001-of-00002.safetensors")  # fmt: skip
OPTIONAL = {("generation_config.json", "nothing-in-it"), ("tokenizer_config.json", "nothing-in-it")}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    model = write_tiny_checkpoint(folder / "model", SHAPE)
    (folder / "model" / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    write_tiny_gguf(folder / "tiny.gguf", model)
    write_tiny_drafter(folder / "drafter", SHAPE)
    return folder


def opened(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    checkpoint.load_weights()
    Tokenizer.from_source(checkpoint.tokenizer)


def drafter_opened(path: Path) -> None:
    DraftCheckpoint(path).load_weights()


def refused(open_it: Callable[[Path], None], path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_it(path)
    message = str(caught.value)
    assert says_what_to_do(message), message
    assert len(message.splitlines()[0]) < 400, message
    return message


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_folder(sound: Path, tmp_path: Path, name: str, damage: str) -> None:
    folder = shutil.copytree(sound / "model", tmp_path / "model")
    file = folder / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    if (name, damage) in OPTIONAL:
        opened(folder)
    else:
        assert str(file if name.endswith(".json") and damage != "nothing-in-it" else folder) in refused(opened, folder)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_of_a_drafter(sound: Path, tmp_path: Path, name: str, damage: str) -> None:
    folder = shutil.copytree(sound / "drafter", tmp_path / "drafter")
    (folder / name).write_bytes(DAMAGES[damage]((folder / name).read_bytes()))
    assert str(folder / name) in refused(drafter_opened, folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_gguf_file(sound: Path, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(DAMAGES[damage]((sound / "tiny.gguf").read_bytes()))
    assert str(file) in refused(opened, file)


def test_what_is_empty_is_called_so(sound: Path, tmp_path: Path) -> None:
    for name in ("tiny.gguf", "config.json"):
        (tmp_path / name).touch()
    assert refused(opened, tmp_path / "tiny.gguf") == f"{tmp_path / 'tiny.gguf'}: is empty; remove it and fetch it again"
    assert refused(opened, tmp_path) == f"{tmp_path / 'config.json'}: is empty; remove it and fetch it again"
    (tmp_path / "config.json").write_bytes((sound / "model" / "config.json").read_bytes())
    (tmp_path / "model.safetensors").touch()
    assert refused(opened, tmp_path) == f"{tmp_path / 'model.safetensors'}: is empty; remove it and fetch it again"


def test_a_header_of_safetensors(sound: Path, tmp_path: Path) -> None:
    """Each kind of nonsense in it; a value is shown short, however long it is."""
    folder = shutil.copytree(sound / "drafter", tmp_path / "drafter")
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    entry = header["norm.weight"]
    begin, end = entry["data_offsets"]
    for strange in (
        {**entry, "data_offsets": [begin, end + 4]},
        {**entry, "data_offsets": [begin + 4, end + 4]},
        {**entry, "shape": [3]},
        {**entry, "shape": list(range(10_000))},
        {**entry, "dtype": "F33"},
        {"dtype": "F32"},
        "norm",
    ):
        text = json.dumps({**header, "norm.weight": strange}).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + data)
        with pytest.raises(DamagedFileError):
            drafter_opened(folder)
        refused(drafter_opened, folder)


def test_values_of_a_configuration_are_shown_short(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound / "model", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for name in ("hidden_size", "rms_norm_eps", "architectures", "eos_token_id", "hidden_act", "tie_word_embeddings"):
        (folder / "config.json").write_text(json.dumps({**config, name: [list(range(1000))] * 9}))
        message = refused(opened, folder)
        assert name in message
        assert len(message) < 1000


def test_a_vocabulary_without_end(sound: Path, tmp_path: Path) -> None:
    """An id that no vocabulary has is no reason to make a table of so many tokens."""
    folder = shutil.copytree(sound / "model", tmp_path / "model")
    values = json.loads((folder / "tokenizer.json").read_text())
    token = next(iter(values["model"]["vocab"]))
    values["model"]["vocab"][token] = 2**31
    (folder / "tokenizer.json").write_text(json.dumps(values))
    problem = f"is corrupt: the id of token {token!r} is 2147483648; remove it and fetch it again"
    assert refused(opened, folder) == f"tokenizer = {folder / 'tokenizer.json'}: {problem}"


def test_a_name_of_thousands_of_letters(sound: Path, tmp_path: Path) -> None:
    """What a damaged length makes of a key is shown short."""
    raw = (sound / "tiny.gguf").read_bytes()
    key = raw.index(b"llama.block_count")
    long = (key - 8, 3000)
    damaged = raw[: long[0]] + long[1].to_bytes(8, "little") + b"k" * 3000 + (99).to_bytes(4, "little") + raw[key:]
    (tmp_path / "tiny.gguf").write_bytes(damaged)
    assert "has the unknown value type 99" in refused(opened, tmp_path / "tiny.gguf")
