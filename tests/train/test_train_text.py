"""Text of training on the CPU: the target in PyTorch, what it writes, how it is kept, and rows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import ConfigError
from tests.reference_forward import logits_of, reference_residuals
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra train)")
pytestmark = pytest.mark.parity

from runtime.speculators.train.documents import Document, DocumentStore, cut_loops  # noqa: E402
from runtime.speculators.train.generate import Generator  # noqa: E402
from runtime.speculators.train.held_out import HeldOut  # noqa: E402
from runtime.speculators.train.rows import compute_taps, pack  # noqa: E402
from runtime.speculators.train.target import TorchTarget  # noqa: E402
from tests.train_rig import CPU, PROMPTS, open_target  # noqa: E402


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_target_is_that_of_the_reference(tmp_path: Path, architecture: Any) -> None:
    model = write_tiny_checkpoint(tmp_path, TinyShape(architecture, num_layers=3))
    target = open_target(model)
    tokens = np.random.default_rng(1).integers(0, 300, 30)
    residuals = reference_residuals(model.config, model.tensors, tokens, np.float64)
    rows = pack([Document(tokens[:3].astype(np.int32), tokens[3:].astype(np.int32))], 32, 0, CPU)
    taps = compute_taps(target, rows, (0, 1), soft=True)
    expected = np.concatenate([residuals[0], residuals[1]], axis=1)
    np.testing.assert_allclose(taps.features[0, :30].numpy(), expected, rtol=1e-4, atol=1e-4)
    logits = logits_of(model.config, model.tensors, residuals[-1])
    assert taps.soft_ids is not None
    np.testing.assert_array_equal(taps.soft_ids[0, :30, 0].numpy(), logits.argmax(-1))


def test_greedy_text_does_not_depend_on_its_padding(model: TinyModel, documents: list[Document]) -> None:
    for document in documents:
        text = np.concatenate([document.prompt, document.answer])
        residuals = reference_residuals(model.config, model.tensors, text, np.float32)
        predicted = logits_of(model.config, model.tensors, residuals[-1]).argmax(-1)
        np.testing.assert_array_equal(predicted[len(document.prompt) - 1 : -1], document.answer)


def test_generation_ends_at_its_stop(target: TorchTarget, documents: list[Document]) -> None:
    stop = int(documents[0].answer[5])
    first = int(np.flatnonzero(documents[0].answer == stop)[0])
    (answer, ended), *_ = Generator(target, 4, 64).run(PROMPTS, [0.0] * 3, 40, [stop])
    assert ended
    np.testing.assert_array_equal(answer, documents[0].answer[: first + 1])


def test_loops_are_cut(documents: list[Document]) -> None:
    loop = np.tile(np.arange(5, dtype=np.int32), 30)
    kept, cut = cut_loops([Document(documents[0].prompt, loop), documents[1]], CPU)
    assert cut == 1 + (len(kept[1].answer) < len(documents[1].answer))
    assert len(kept[0].answer) == 12 + 3 * 5  # the run of twelve that stands there for the fourth time


def test_documents_survive_their_process(tmp_path: Path, documents: list[Document]) -> None:
    store = DocumentStore(tmp_path)
    store.add("magpie", documents[:2], 1.0, 3)
    store.add("file", documents[2:], 1.0, 0)
    again = DocumentStore(tmp_path)
    assert (again.batches, again.seconds, again.refused, again.num_answer_tokens) == (2, 2.0, 3, store.num_answer_tokens)
    assert again.kinds == {"magpie": 2, "file": 1}
    for ours, theirs in zip(again.documents, documents, strict=True):
        np.testing.assert_array_equal(ours.prompt, theirs.prompt)
        np.testing.assert_array_equal(ours.answer, theirs.answer)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("progress.json", b"{"),
        ("progress.json", b"[]"),
        ("progress.json", b'{"batches": 1}'),
        ("progress.json", b'{"batches": 2, "seconds": 1, "refused": 0, "kinds": {}}'),
        ("batch-00000.npz", b"no archive"),
        ("batch-00000.npz", b"PK\x03\x04"),
        ("batch-00000.npz", b""),
    ],
)
def test_text_that_is_corrupt_is_told(tmp_path: Path, documents: list[Document], file: str, content: bytes) -> None:
    DocumentStore(tmp_path).add("file", documents, 1.0, 0)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=r"what was written is corrupt: .*; remove the folder to write it anew"):
        DocumentStore(tmp_path)


def test_rows_hold_every_document_once(documents: list[Document]) -> None:
    rows = pack(documents * 3, 100, 0, CPU)
    found = sorted(
        tuple(rows.tokens[row, rows.start[row] == start].tolist())
        for row in range(len(rows))
        for start in set(rows.start[row].tolist()) - {-1}
    )
    assert found == sorted((*document.prompt.tolist(), *document.answer.tolist()) for document in documents * 3)
    assert int(rows.anchor.sum()) == 3 * sum(len(document.answer) - 1 for document in documents)


@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        ("How do cats purr?", False),
        ("Tell me: how do CATS purr, please", False),
        ("How do cats sleep?", True),
        ("write a long story about a fox who lost his hat and found it", False),
        ("write a long story about a fox", True),
    ],
)
def test_held_out_prompts_are_refused(text: str, admitted: bool) -> None:
    held_out = HeldOut(["How do cats purr?", "Write a long story about a fox who lost his hat!"])
    assert held_out.admits(text) is admitted
