"""`model.source: random:NAME`: the shape of a real model with random weights, to time it without its checkpoint.

What such a model says means nothing; how long it takes does. Weights are scaled so that activations stay of order one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runtime.checkpoint.random_tensor import RandomTensor
from runtime.checkpoint.storage import check_dtype
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.checkpoint.weights import STORAGE, ModelWeights, Progress, WeightDtype, build_weights
from runtime.errors import SourceError
from runtime.models.rope import RopeSpec
from runtime.models.spec import MAX_LAYERS, ModelSpec
from runtime.token_bytes import byte_of_character

SCHEME = "random:"
LARGEST_SEED = 2**31 - 1


def _spec(**sizes: Any) -> ModelSpec:
    theta = sizes.pop("theta")
    return ModelSpec(rope=RopeSpec(theta, sizes["head_dim"]), attention_bias=False, **sizes)


SHAPES = {
    "qwen3-8b": _spec(
        architecture="qwen3",
        num_layers=36,
        hidden_size=4096,
        intermediate_size=12288,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151936,
        rms_norm_eps=1e-6,
        theta=1e6,
        max_position_embeddings=40960,
        tied_embeddings=False,
        qk_norm=True,
    ),
    "smollm2-135m": _spec(
        architecture="llama",
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        rms_norm_eps=1e-5,
        theta=1e5,
        max_position_embeddings=8192,
        tied_embeddings=True,
        qk_norm=False,
    ),
    "tiny": _spec(
        architecture="qwen3",
        num_layers=4,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=512,
        rms_norm_eps=1e-6,
        theta=1e4,
        max_position_embeddings=512,
        tied_embeddings=False,
        qk_norm=True,
    ),
}


class RandomCheckpoint:
    """A checkpoint that holds no file: `random:NAME[?layers=N&seed=S]`."""

    def __init__(self, source: str) -> None:
        """Raises SourceError for a name or an option that is unknown."""
        self.path = Path(source)  # of reports; nothing is there
        match = re.fullmatch(r"random:([\w.-]+)(?:\?(.*))?", source)
        if match is None or match[1] not in SHAPES:
            names = ", ".join(SHAPES)
            raise SourceError(f"model.source = {source}: must be random:NAME or random:NAME?layers=N&seed=S; names are {names}")
        options = numbers_of(f"model.source = {source}", match[2], {"layers": (1, MAX_LAYERS), "seed": (0, LARGEST_SEED)})
        shape = SHAPES[match[1]]
        self.seed = options.get("seed", 0)
        self.spec: ModelSpec = replace(shape, num_layers=options.get("layers", shape.num_layers))
        self.tokenizer: TokenizerSource = byte_tokenizer(self.spec.vocab_size)

    def load_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        """Tensors that are made on the device (RandomTensor); norms, which are ones, are arrays. Takes no time and no memory."""
        check_dtype(dtype)
        if progress is not None:
            progress(1, 1)
        return _random_weights(self.spec, dtype, self.seed)

    def stored_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        """The same: there is nothing to read."""
        return self.load_weights(progress, dtype)


def byte_tokenizer(vocab_size: int) -> TokenizerSource:
    """Text as its UTF-8 bytes, ids 0..255; the other ids are spelt as their number. Nothing ends a generation."""
    by_byte = {byte: character for character, byte in byte_of_character().items()}
    vocabulary = [by_byte[byte] for byte in range(256)] + [f"<{token}>" for token in range(256, vocab_size)]
    return TokenizerSource("gguf", vocabulary=vocabulary, pre="default")


def numbers_of(what: str, text: str | None, limits: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """`name=N&name=N` as numbers. Raises SourceError for a name without limits or a number outside them; `what` begins its text."""
    numbers: dict[str, int] = {}
    for part in text.split("&") if text is not None else ():
        name, _, value = part.partition("=")
        if name not in limits or not value.isdecimal():
            raise SourceError(f"{what}: {part!r} must be one of {', '.join(f'{known}=N' for known in limits)}")
        low, high = limits[name]
        if not low <= int(value) <= high:
            raise SourceError(f"{what}: {name} = {value}: must be {low}..{high}")
        if name in numbers:
            raise SourceError(f"{what}: {name} is given twice; leave one of them out")
        numbers[name] = int(value)
    return numbers


def _random_weights(spec: ModelSpec, dtype: WeightDtype, seed: int) -> ModelWeights:
    """Projections keep the size of what they read; those that write the residual stream are smaller by its number of writers."""
    writers = float(2 * spec.num_layers) ** -0.5

    def make(name: str, shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        deviation = shape[1] ** -0.5
        if name == "embed":
            deviation = 1.0
        elif name.endswith((".out", ".down")):
            deviation *= writers
        return RandomTensor.named(name, shape, STORAGE[dtype], deviation, seed)

    return build_weights(spec, dtype, make)
