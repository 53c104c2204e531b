"""model.source = random:NAME: a shape without a checkpoint, the same weights on every device and in every process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import oracle_forward as oracle
from kernels.fill_random import fill_random
from runtime.checkpoint.random import SHAPES, RandomCheckpoint
from runtime.checkpoint.random_tensor import ConstantMemory, RandomTensor
from runtime.checkpoint.weights import STORAGE, WeightDtype, destinations, empty_weights, expected_shapes
from runtime.device import open_device
from runtime.engine import Engine
from runtime.errors import CheckpointError, DeviceError, SourceError
from runtime.models.spec import ModelSpec
from runtime.models.upload import upload_model
from runtime.sampling import SamplingParams
from runtime.speculators.random_drafter import RandomDrafter
from runtime.tokenizer import Tokenizer
from runtime.virtual_device import VirtualDevice
from tests.kernel_cases import Launch, launches
from tests.storage_cases import dtype_of, stored
from tests.tiny_engine import EXECUTOR, open_tiny


@launches((1, 1), (3, 4))
@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
def test_fill_random(launch: Launch, storage: str) -> None:
    out = np.zeros(37, dtype_of(storage))
    values = oracle.fill_random(out, 0.25, 12345)
    launch.check(fill_random, {"out": out, "bound": 0.25, "seed": 12345}, {"out": stored(values, storage)}, rtol=0, atol=0)


def test_random_values_are_uniform_and_unrelated_from_seed_to_seed() -> None:
    first, second = (oracle.fill_random(np.empty(200_000, np.float32), 1.0, seed) for seed in (0, 1))
    counts, _ = np.histogram(first, bins=20, range=(-1, 1))
    assert counts.sum() == len(first)
    assert abs(counts / 10_000 - 1).max() < 0.05
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.01
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.01


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_have_the_shapes_of_a_checkpoint(name: str, dtype: WeightDtype) -> None:
    checkpoint = RandomCheckpoint(f"random:{name}?layers=2")
    weights = checkpoint.load_weights(dtype=dtype)
    like = empty_weights(checkpoint.spec, "float32") if name == "tiny" else None
    assert len(weights.layers) == checkpoint.spec.num_layers == 2
    assert (weights.head is weights.embed) == checkpoint.spec.tied_embeddings
    if like is not None:
        assert weights.nbytes == sum(
            int(np.prod(shape)) * (4 if len(shape) == 1 else STORAGE[dtype].itemsize)
            for shape in expected_shapes(checkpoint.spec).values()
        )
        for ours, theirs in zip(weights.layers, like.layers, strict=True):
            assert {n: v.shape for n, v in vars(ours).items() if v is not None} == {
                n: v.shape for n, v in vars(theirs).items() if v is not None
            }
        assert sum(view.nbytes for view in destinations(checkpoint.spec, like).values()) == like.nbytes


def test_random_tensors_are_made_on_the_device_and_sealed() -> None:
    with VirtualDevice(EXECUTOR) as device:
        tensor = RandomTensor.named("w", (3, 5), np.dtype(np.float32), 0.5, 7)
        put = ConstantMemory(device, "draft.")
        array, plain = put("w", tensor), put("v", np.ones(3, np.float32))
        expected = oracle.fill_random(np.empty(15, np.float32), 0.5 * 3**0.5, tensor.seed).reshape(3, 5)
        np.testing.assert_allclose(device.download(array), expected, rtol=1e-6)
        assert (array.name, plain.name) == ("draft.w", "draft.v")
        assert device.allocated_bytes()["constant"] == 60 + 12
        stream = device.stream("s")
        with pytest.raises(DeviceError, match=r"`draft\.w` is a constant"):
            stream.launch(fill_random, 1, 1, array.reshape((15,)), 1.0, 0)
        with pytest.raises(DeviceError, match=r"seal: `draft\.v` is constant memory"):
            device.seal(plain)


def test_a_random_engine_runs_and_repeats_itself() -> None:
    prompts = [[5, 6, 7, 300], list(range(100, 130))]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    runs = []
    for source in ("random:tiny", "random:tiny", "random:tiny?seed=1"):
        with open_tiny(Path(source)) as engine:
            runs.append([output.token_ids for output in engine.generate(prompts, params)])
            texts = engine.generate("any text", params)
    assert runs[0] == runs[1] != runs[2]
    assert all(len(set(tokens)) > 1 for tokens in runs[0]), "activations that are NaN give one token for ever"
    assert len(texts[0].prompt_token_ids) == len("any text")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("random:gpt-5", "names are qwen3-8b, smollm2-135m, tiny"),
        ("random:", "must be random:NAME"),
        ("random:tiny?depth=3", "'depth=3' must be one of layers=N, seed=N"),
        ("random:tiny?layers=0", r"layers = 0: must be 1\.\."),
        ("random:tiny?layers=two", "'layers=two' must be"),
        ("random:tiny?", "'' must be"),
        ("random:tiny?seed=99999999999", "seed = 99999999999: must be 0"),
    ],
)
def test_wrong_sources_are_refused(source: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        Engine.from_config({}, model__source=source, device="cpu")


def test_the_tokenizer_is_bytes() -> None:
    tokenizer = Tokenizer.from_source(RandomCheckpoint("random:tiny").tokenizer)
    text = "naïve 🙂\n"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([300]) == "<300>"
    assert tokenizer.vocab_size == 512


@pytest.mark.gpu
@pytest.mark.parametrize("source", ["random:tiny", "random:smollm2-135m", "random:qwen3-8b"])
def test_weights_are_made_on_the_gpu_in_seconds(source: str, record_property: Any) -> None:
    """Bits as the oracle says; 8 billion of them without the host's memory."""
    checkpoint = RandomCheckpoint(source)
    spec: ModelSpec = checkpoint.spec
    with open_device("cuda") as device:  # type: ignore[attr-defined]
        began = time.perf_counter()
        weights = checkpoint.load_weights(dtype="bfloat16")
        model = upload_model(device, spec, weights, max_model_len=64, num_blocks=4, block_size=16)
        record_property(f"{source}: s to make {weights.nbytes / 1e9:.2f} GB of weights", f"{time.perf_counter() - began:.2f}")
        tensor: Any = weights.layers[-1].down
        values = oracle.fill_random(np.empty(tensor.nbytes // 2, np.float32), tensor.deviation * 3**0.5, tensor.seed)
        np.testing.assert_array_equal(device.download(model.layers[-1].down).reshape(-1), stored(values, "bfloat16"))


@pytest.mark.parametrize("source", ["random:dflash", "random:dflash2", "random:dflash?layers=1&block=8&seed=3"])
def test_a_random_drafter_drafts_for_any_target(source: str) -> None:
    """Text is that of plain decoding; no draft is right, but by chance."""
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = [[5, 6, 7, 300], list(range(100, 130))]
    with open_tiny(Path("random:tiny"), k=0) as engine:
        plain = [output.token_ids for output in engine.generate(prompts, params)]
    with open_tiny(Path("random:tiny"), k=5, speculator__method="dflash", speculator__draft_source=source) as engine:
        outputs = engine.generate(prompts, params)
    assert [output.token_ids for output in outputs] == plain
    assert all(output.acceptance is not None and output.acceptance.num_draft_tokens > 50 for output in outputs)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("random:eagle", r"speculator\.draft_source = random:eagle: must be random:dflash"),
        ("random:dflash?block=1", r"block = 1: must be 2\.\.64"),
        ("random:dflash?layers=0", "layers = 0"),
    ],
)
def test_wrong_random_drafters_are_refused(source: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_tiny(Path("random:tiny"), k=3, speculator__method="dflash", speculator__draft_source=source)


def test_a_random_drafter_taps_what_a_short_target_has() -> None:
    """Never the last block."""
    targets = {layers: RandomCheckpoint(f"random:tiny?layers={layers}").spec for layers in (1, 2, 3, 4)}
    for layers, drafted, taps in ((2, 1, (0,)), (2, 3, (0, 0, 0)), (3, 2, (1, 0)), (4, 5, (1,) * 5)):
        assert RandomDrafter(f"random:dflash2?layers={drafted}", targets[layers]).spec.target_layer_ids == taps
    with pytest.raises(SourceError, match="the target has 1 block, and the last one is never tapped: needs 2"):
        RandomDrafter("random:dflash", targets[1])


def test_a_random_block_that_is_too_short_is_refused() -> None:
    source = "random:dflash?block=4"
    with pytest.raises(CheckpointError, match=r"drafts at most 3 tokens"):
        open_tiny(Path("random:tiny"), k=4, speculator__method="dflash", speculator__draft_source=source)
