"""What the tests of training share: target and drafter in PyTorch, and the blocks that a drafter sees. Needs PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.speculators.train.blocks import Blocks, blocks_of
from runtime.speculators.train.drafter import TorchDrafter
from runtime.speculators.train.rows import Rows, Taps
from runtime.speculators.train.target import TorchTarget
from tests.tiny_checkpoint import TinyModel
from tests.tiny_drafter import TinyDrafter

CPU = torch.device("cpu")
PROMPTS = [[1, 30, 40, 50, 60], [1, 99, 7, 8, 9, 10, 11, 12], [1, 200, 12, 77]]


def open_target(model: TinyModel) -> TorchTarget:
    checkpoint = open_checkpoint(model.path)
    return TorchTarget(checkpoint.spec, checkpoint.load_weights(), CPU, torch.float32, 256)


def load_drafter(drafter: TinyDrafter) -> TorchDrafter:
    module = TorchDrafter(drafter.config, 256)
    module.begin_from({name: torch.from_numpy(values) for name, values in drafter.tensors.items()})
    return module


def all_blocks(target: TorchTarget, drafter: TorchDrafter, rows: Rows, taps: Taps, count: int = 12) -> Blocks:
    """Of the row 0, from its first anchors on."""
    places = rows.anchor[0].nonzero()[:count, 0][None]
    live = torch.ones_like(places, dtype=torch.bool)
    return blocks_of(rows, taps, torch.tensor([0]), places, live, 8, target.embed, drafter.spec.mask_token_id)


def hidden_of(module: TorchDrafter, blocks: Blocks) -> Any:
    with torch.no_grad():
        context = module.context(blocks.features, blocks.context_positions)
        return module(blocks.x, blocks.positions, context, blocks.bias, 8).view(-1, 8, module.spec.hidden_size)


def tables(model: TinyModel) -> tuple[Any, Any]:
    embed = model.tensors["model.embed_tokens.weight"]
    return embed, model.tensors.get("lm_head.weight", embed)
