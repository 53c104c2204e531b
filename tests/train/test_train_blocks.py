"""Blocks of training on the CPU: what a drafter sees of rows and taps, and what it says is what the engine's would say."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference_dflash import ReferenceDrafter, replay
from tests.reference_forward import reference_residuals
from tests.tiny_checkpoint import TinyModel
from tests.tiny_drafter import TinyDrafter

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra train)")
pytestmark = pytest.mark.parity

from runtime.speculators.train.blocks import blocks_of, draw_anchors, surprise  # noqa: E402
from runtime.speculators.train.documents import Document  # noqa: E402
from runtime.speculators.train.rows import Taps, compute_taps, pack  # noqa: E402
from runtime.speculators.train.target import TorchTarget  # noqa: E402
from runtime.speculators.train.walk import accepted_everywhere, hop  # noqa: E402
from tests.train_rig import CPU, all_blocks, hidden_of, load_drafter, tables  # noqa: E402


def test_training_forward_is_that_of_inference(
    model: TinyModel, target: TorchTarget, documents: list[Document], drafter: TinyDrafter
) -> None:
    """Blocks of two documents in one row, against the NumPy drafter with each document's own context before the anchor."""
    rows = pack(documents[:2], 100, 0, CPU)
    taps = compute_taps(target, rows, drafter.shape.taps, soft=False)
    module = load_drafter(drafter)
    places = rows.anchor[0].nonzero()[:, 0][None]
    live = torch.ones_like(places, dtype=torch.bool)
    blocks = blocks_of(rows, taps, torch.tensor([0]), places, live, 8, target.embed, module.spec.mask_token_id)
    hidden = hidden_of(module, blocks).numpy()
    reference = ReferenceDrafter(drafter.config, drafter.tensors, *tables(model), dtype=np.float64)
    for document in documents[:2]:
        text = np.concatenate([document.prompt, document.answer])
        starts = [start for start in set(rows.start[0].tolist()) - {-1} if rows.tokens[0, start + 1] == text[1]]
        context = reference.context(reference.features(reference_residuals(model.config, model.tensors, text, np.float64)))
        for at in range(len(document.prompt), len(text) - 1, 7):
            index = places[0].tolist().index(starts[0] + at)
            stages = reference.propose([(k[:at], v[:at]) for k, v in context], int(text[at]), 8)
            np.testing.assert_allclose(hidden[index], stages.hidden, rtol=2e-3, atol=2e-4)
            ahead = text[at : at + 8]
            assert blocks.labels[index, : len(ahead)].tolist() == ahead.tolist()
            assert blocks.valid[index].tolist() == [slot < len(ahead) for slot in range(8)]


def test_features_from_the_anchor_on_change_nothing(target: TorchTarget, documents: list[Document], drafter: TinyDrafter) -> None:
    rows = pack(documents[:1], 60, 0, CPU)
    taps = compute_taps(target, rows, drafter.shape.taps, soft=False)
    module = load_drafter(drafter)
    before = hidden_of(module, all_blocks(target, module, rows, taps))
    index = 5
    anchor = int(rows.anchor[0].nonzero()[index, 0])
    noisy = taps.features.clone()
    noisy[:, anchor:] += 5.0
    after = hidden_of(module, all_blocks(target, module, rows, Taps(noisy, None, None)))
    torch.testing.assert_close(after[: index + 1], before[: index + 1], rtol=0, atol=0)
    assert (after[index + 1] - before[index + 1]).abs().max() > 1e-3
    earlier = taps.features.clone()
    earlier[:, anchor - 1] += 5.0
    after = hidden_of(module, all_blocks(target, module, rows, Taps(earlier, None, None)))
    assert (after[index] - before[index]).abs().max() > 1e-3


def test_surprising_anchors_are_drawn_more_often(target: TorchTarget, documents: list[Document]) -> None:
    rows = pack(documents, 60, 0, CPU)
    taps = compute_taps(target, rows, (0,), soft=True)
    index = torch.arange(len(rows))
    weight = surprise(taps, index)
    assert taps.soft_shares is not None
    torch.testing.assert_close(weight[:, 1:], 1 - taps.soft_shares[:, :-1, 0])
    anchor = torch.ones(2000, 10, dtype=torch.bool)
    anchor[:, 7:] = False
    uneven = torch.ones(2000, 10)
    uneven[:, :2] = 10.0
    places, live = draw_anchors(anchor, uneven, 2)
    assert live.all()
    assert places.max() < 7
    counts = torch.bincount(places.flatten(), minlength=7)
    assert counts[:2].min() > 4 * counts[2:].max()
    places, live = draw_anchors(anchor, None, 9)
    assert live.sum(1).tolist() == [7] * 2000
    torch.testing.assert_close(places[live].view(2000, 7), torch.arange(7).expand(2000, 7))


def test_soft_labels_are_the_targets_before_each_token(
    target: TorchTarget, documents: list[Document], drafter: TinyDrafter
) -> None:
    """On greedy text the best token of the distribution is the label itself."""
    rows = pack(documents[:1], 60, 0, CPU)
    module = load_drafter(drafter)
    blocks = all_blocks(target, module, rows, compute_taps(target, rows, drafter.shape.taps, soft=True))
    assert blocks.soft_ids is not None
    torch.testing.assert_close(blocks.soft_ids[:, 1:, 0][blocks.valid[:, 1:]], blocks.labels[:, 1:][blocks.valid[:, 1:]])


def test_simulated_acceptance_is_that_of_the_loop(
    model: TinyModel, target: TorchTarget, documents: list[Document], drafter: TinyDrafter
) -> None:
    module = load_drafter(drafter)
    reference = ReferenceDrafter(drafter.config, drafter.tensors, *tables(model), dtype=np.float64)
    for document in documents:
        rows = pack([document], 60, 0, CPU)
        taps = compute_taps(target, rows, drafter.shape.taps, soft=False)
        (tally,) = hop(rows, accepted_everywhere(module, None, target, rows, taps, 7), 7)
        text = [*document.prompt.tolist(), *document.answer.tolist()]
        residuals = reference_residuals(model.config, model.tensors, text, np.float64)
        steps = replay(reference, residuals, text, len(document.prompt), 7)
        assert tally.steps == len(steps)
        assert tally.accepted == sum(
            sum(1 for draft, token in zip(step.drafts, step.emitted, strict=False) if draft == token) for step in steps
        )
