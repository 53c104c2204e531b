"""Assembly: what a configuration resolves to, and what is refused before or while a model is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphs.cpu_executor import CpuExecutor
from runtime.blueprint import step_sizes
from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.config import load_config
from runtime.engine import Engine
from runtime.errors import CheckpointError, ConfigError, DeviceError
from runtime.sampling import MAX_STOP_TOKEN_IDS, SamplingParams
from runtime.virtual_device import VirtualDevice
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_engine import Reference, open_tiny
from tests.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), TinyShape())


def test_sizes_of_the_largest_step(model: TinyModel) -> None:
    spec = open_checkpoint(model.path).spec
    base: dict[str, Any] = {"model": {"source": str(model.path)}, "scheduler": {"max_num_seqs": 3, "block_size": 16}}
    sizes = step_sizes(load_config(base), spec)
    assert (sizes.max_model_len, sizes.num_speculative_tokens, sizes.num_logits) == (256, 0, 3)
    sizes = step_sizes(load_config(base, speculator__method="ngram", scheduler__max_model_len=100), spec)
    assert (sizes.max_model_len, sizes.num_speculative_tokens, sizes.num_logits, sizes.blocks_per_slot) == (100, 4, 15, 7)
    assert sizes.num_stop_ids == MAX_STOP_TOKEN_IDS + len(spec.eos_token_ids)
    with pytest.raises(ConfigError, match=r"scheduler.max_model_len = 257: above the model's 256 positions"):
        step_sizes(load_config(base, scheduler__max_model_len=257), spec)


def test_info_says_what_it_resolved_to(model: TinyModel) -> None:
    with open_tiny(model.path, scheduler__num_blocks=20) as engine:
        info = engine.info()
    assert info["model"]["architecture"] == "llama"
    assert (info["model"]["layers"], info["model"]["heads"], info["model"]["kv_heads"]) == (2, 4, 2)
    assert info["scheduler"]["num_blocks"] == 20
    # K and V, 2 layers, 20 blocks of 4 positions, 2 heads of 16 floats
    assert info["scheduler"]["kv_cache_bytes"] == 2 * 2 * 20 * 4 * 2 * 16 * 4
    assert info["speculator"] == {"method": "ngram", "num_speculative_tokens": 3, "streamed_bytes": 0}
    assert info["device"].startswith("cpu")


def test_more_blocks_than_there_is_memory_are_refused(model: TinyModel) -> None:
    with pytest.raises(DeviceError, match=r"num_blocks = 99999999999: [\d,]+ bytes, and [\d,]+ are left .*lower it to \d+ or"):
        open_tiny(model.path, scheduler__num_blocks=99_999_999_999)


def test_blocks_for_every_slot_unless_told_otherwise(model: TinyModel) -> None:
    with open_tiny(model.path) as engine:
        assert engine.scheduler.blocks.num_blocks == 4 * 16


def test_a_gguf_and_a_folder_of_one_model_say_the_same(model: TinyModel, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "model.gguf", model)
    params = SamplingParams(max_tokens=12)
    prompts = [[5, 200, 31], [7] * 9]
    outputs = []
    for source in (model.path, tmp_path / "model.gguf"):
        with open_tiny(source) as engine:
            outputs.append([(output.token_ids, output.finish_reason) for output in engine.generate(prompts, params)])
    reference = Reference(model)
    assert outputs[0] == outputs[1] == [reference.generate(prompt, params, 64) for prompt in prompts]


def test_text_goes_through_tokenizer_and_template(model: TinyModel) -> None:
    with open_tiny(model.path) as engine:
        plain = engine.generate("the cat", SamplingParams(max_tokens=4))[0]
    with open_tiny(model.path, run__chat=True) as engine:
        chat = engine.generate("the cat", SamplingParams(max_tokens=4))[0]
        turns = engine.generate([[{"role": "user", "content": "the cat"}]], SamplingParams(max_tokens=4))[0]
    assert engine.tokenizer.decode(list(plain.prompt_token_ids)) == "the cat"
    assert chat.prompt_token_ids == turns.prompt_token_ids
    shown = engine.tokenizer.decode(list(chat.prompt_token_ids), skip_special_tokens=False)
    assert shown == "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"numerics": "batch_invariant", "graphs__ops": "plain"}, "graphs.ops = plain: numerics = batch_invariant"),
        ({"model__dtype": "float16"}, "model.dtype = float16"),
        ({"model__revision": "main"}, "model.revision = main: only hf: sources"),
        ({"model__source": "hf:org/name@v1", "model__revision": "main"}, "names a revision already"),
    ],
)
def test_what_this_version_cannot_honour_is_refused(model: TinyModel, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_tiny(model.path, **settings)


def test_a_device_without_mapped_memory_refuses_the_integrated_policy_and_is_closed(model: TinyModel) -> None:
    device = VirtualDevice(CpuExecutor(), can_map=False)
    with pytest.raises(DeviceError, match=r"mirror.policy = integrated"):
        Engine.from_config({}, on_device=device, model__source=str(model.path), device="cpu", mirror__policy="integrated")
    with pytest.raises(DeviceError, match="closed"):
        device.stream("compute")


def test_a_checkpoint_that_breaks_while_it_loads_leaves_no_device_open(tmp_path: Path, model: TinyModel) -> None:
    broken = write_tiny_checkpoint(tmp_path, TinyShape())
    weights = broken.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_tiny(broken.path)
