"""`speculator.draft_source: random:dflash`: a drafter's shape that fits the target, with random weights, to time drafting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from runtime.checkpoint.random import LARGEST_SEED, numbers_of
from runtime.checkpoint.random_tensor import RandomTensor
from runtime.checkpoint.storage import check_dtype
from runtime.checkpoint.weights import STORAGE, Progress, WeightDtype
from runtime.errors import SourceError
from runtime.models.spec import MAX_LAYERS, ModelSpec
from runtime.speculators.dflash_config import DraftAttention, DraftSpec, default_target_layers
from runtime.speculators.dflash_weights import DraftWeights, draft_weights

USUAL_LAYERS, USUAL_BLOCK = 5, 16
"""Of the public DFlash drafters of 8B targets."""


def is_random_drafter(source: str) -> bool:
    return source.startswith("random:")


class RandomDrafter:
    """A drafter that holds no file: `random:dflash[2][?layers=N&block=N&seed=N]`.

    Its blocks are those of the target, its taps evenly spaced. By default five layers and blocks of 16 (one layer where the target
    has fewer than eight), no window, both ways inside the block.
    """

    def __init__(self, source: str, target: ModelSpec) -> None:
        """Raises SourceError for a name or an option that is unknown, and for a target of one block."""
        what = f"speculator.draft_source = {source}"
        match = re.fullmatch(r"random:(dflash2?)(?:\?(.*))?", source)
        if match is None:
            raise SourceError(f"{what}: must be random:dflash or random:dflash2, and options as ?layers=N&block=N&seed=N")
        options = numbers_of(what, match[2], {"layers": (1, MAX_LAYERS), "block": (2, 64), "seed": (0, LARGEST_SEED)})
        if target.num_layers < 2:
            raise SourceError(f"{what}: the target has {target.num_layers} block, and the last one is never tapped: needs 2")
        layers = options.get("layers", USUAL_LAYERS if target.num_layers >= 8 else 1)
        self.path = Path(source)  # of reports; nothing is there
        self.seed = options.get("seed", 1)
        self.spec = _spec(target, layers, options.get("block", USUAL_BLOCK), second=match[1] == "dflash2")

    def load_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> DraftWeights:
        """Matrices that are made on the device (RandomTensor); norms, which are ones, are arrays. Takes no time and no memory."""
        check_dtype(dtype)
        if progress is not None:
            progress(1, 1)
        made = 0

        def matrix(*shape: int) -> Any:
            nonlocal made
            made += 1
            return RandomTensor.named(f"draft.{made}", shape, STORAGE[dtype], shape[-1] ** -0.5, self.seed)

        def ones(*shape: int) -> Any:
            return np.ones(shape, np.float32)

        return draft_weights(self.spec, dtype, matrix, ones)


def _spec(target: ModelSpec, layers: int, block_size: int, *, second: bool) -> DraftSpec:
    return DraftSpec(
        version=2 if second else 1,
        attention=(DraftAttention(window=0, causal=False),) * layers,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope=target.rope,
        attention_bias=False,
        max_position_embeddings=target.max_position_embeddings,
        block_size=block_size,
        mask_token_id=target.vocab_size - 1,
        # A short target has no third block from its end; its last one is never tapped.
        target_layer_ids=tuple(
            min(max(layer, 0), target.num_layers - 2) for layer in default_target_layers(layers, target.num_layers)
        ),
        num_target_layers=target.num_layers,
        target_hidden_size=target.hidden_size,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        final_logit_softcapping=0.0,
        conv_kernel_size=2 if second else 0,
        conv_group_size=16 if second else 0,
        selector_rank=64 if second else 0,
        selector_top_k=16 if second else 0,
    )
