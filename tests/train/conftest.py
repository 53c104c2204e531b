"""A tiny target in PyTorch, its greedy answers, and random drafters. What imports PyTorch is imported where it is used: every test
module here skips without it, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, TinyDrafter, write_tiny_drafter

if TYPE_CHECKING:
    from runtime.speculators.train.documents import Document
    from runtime.speculators.train.target import TorchTarget

# Greedy text that repeats itself in part: something of it can be learnt.
SHAPE = TinyShape(num_layers=4, attention_scale=0.5, num_likely_ids=40)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)  # shapes are tiny: more threads only wait for each other


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("train") / "model", SHAPE)


@pytest.fixture(scope="module")
def target(model: TinyModel) -> TorchTarget:
    from tests.train_rig import open_target

    return open_target(model)


@pytest.fixture(scope="module")
def documents(target: TorchTarget) -> list[Document]:
    """Greedy answers of 40 tokens."""
    from runtime.speculators.train.documents import Document
    from runtime.speculators.train.generate import Generator
    from tests.train_rig import PROMPTS

    answers = Generator(target, len(PROMPTS), 64).run(PROMPTS, [0.0] * len(PROMPTS), 40, [-1])
    return [Document(np.array(prompt, np.int32), answer) for prompt, (answer, _) in zip(PROMPTS, answers, strict=True)]


@pytest.fixture(scope="module", params=[1, 2])
def drafter(request: pytest.FixtureRequest, model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> TinyDrafter:
    """Random weights of which every part matters, as tests/tiny_drafter.py makes them."""
    return write_tiny_drafter(tmp_path_factory.mktemp("drafter"), model.shape, DrafterShape(version=request.param))
