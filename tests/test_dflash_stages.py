"""Every stage of a proposal against the NumPy reference, on random drafters with the names of the public ones.

A tap or a position off by one costs a few percent of acceptance and no text: only numbers show it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.dflash_rig import UNWRITTEN, Rig, random_requests
from tests.tiny_checkpoint import VOCAB_SIZE, TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, write_tiny_drafter

TARGET = TinyShape(seed=4, num_layers=4)
SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}
SCALARS = {"input_embedding_scale": 3.0, "output_multiplier": 0.19611613513818404, "final_logit_softcapping": 2.0}
SHAPES = {
    "full": DrafterShape(),
    "full-causal": DrafterShape(is_causal=True),
    "full-by-default": DrafterShape(is_causal=None),
    "sliding-causal-by-default": DrafterShape(layer_types=(SLIDING, SLIDING), sliding_window=5, is_causal=None),
    "sliding-both-ways": DrafterShape(layer_types=(SLIDING, SLIDING), sliding_window=3, is_causal=False),
    "mixed-by-default": DrafterShape(layer_types=(SLIDING, FULL), sliding_window=5, is_causal=None),
    "mixed-causal": DrafterShape(layer_types=(FULL, SLIDING), sliding_window=7, is_causal=True),
    "mixed-both-ways": DrafterShape(layer_types=(FULL, SLIDING), sliding_window=4, is_causal=False),
    "yarn-three-taps-out-of-order": DrafterShape(taps=(2, 0, 1), rope=YARN, num_layers=3),
    "biases": DrafterShape(attention_bias=True, taps=(1,)),
    "scalars": DrafterShape(extra=SCALARS),
    "v2": DrafterShape(version=2),
    "v2-sliding-both-ways": DrafterShape(version=2, layer_types=(SLIDING,) * 2, sliding_window=6, conv_group_size=4),
    "v2-scalars-one-layer": DrafterShape(version=2, num_layers=1, extra=SCALARS, selector_top_k=3),
}
ALL = pytest.mark.parametrize("name", SHAPES)
K = 5  # shorter than the trained block of 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target"), TARGET)


@pytest.fixture(scope="module")
def rig(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rig]:
    """A rig with its context appended, made once for each drafter."""
    made: dict[str, Rig] = {}
    folder: Path = tmp_path_factory.mktemp("drafters")

    def get(name: str) -> Rig:
        if name not in made:
            drafter = write_tiny_drafter(folder / name, TARGET, SHAPES[name])
            made[name] = Rig(model, drafter, random_requests(VOCAB_SIZE), k=K)
            made[name].append_all()
        return made[name]

    return get


def check(now: np.ndarray, expected: np.ndarray, what: str) -> None:
    np.testing.assert_allclose(now, expected, rtol=1e-4, atol=1e-5, err_msg=what)


@ALL
def test_context_vectors_of_the_last_chunk(rig: Callable[[str], Rig], name: str) -> None:
    subject = rig(name)
    for row, start in ((0, 0), (1, 3), (2, 4)):  # one row each; behind the first come its two rejected ones
        request = subject.requests[row]
        expected = subject.reference.fused(subject.features[row][request.anchor_at - 1 : request.anchor_at])
        check(subject.read("context")[start : start + 1], expected, f"request {row}")


@ALL
def test_context_pages(rig: Callable[[str], Rig], name: str) -> None:
    """Keys and values of all layers, appended in three chunks, for all committed tokens before the anchor."""
    subject = rig(name)
    for row, request in enumerate(subject.requests):
        expected = subject.reference.context(subject.features[row][: request.anchor_at])
        for layer, (now, wanted) in enumerate(zip(subject.pages(row), expected, strict=True)):
            check(now[0], wanted[0], f"keys of layer {layer}, request {row}")
            check(now[1], wanted[1], f"values of layer {layer}, request {row}")


@ALL
def test_only_committed_tokens_have_pages(rig: Callable[[str], Rig], name: str) -> None:
    """Whatever else the cache holds is what it held before: no rejected row, no anchor, no mask left a trace."""
    subject = rig(name)
    subject.proposer().record(subject.stream, subject.key, subject.state, subject.step)
    written = (subject.device.download(subject.arrays.cache) != UNWRITTEN).any(axis=(0, 1, 4, 5))
    assert written.sum() == sum(request.anchor_at for request in subject.requests)


@ALL
def test_layers(rig: Callable[[str], Rig], name: str) -> None:
    subject = rig(name)
    for count in range(1, len(subject.arrays.layers) + 1):
        subject.proposer(count).record_block(subject.stream, subject.key, subject.state, subject.step)
        for row in range(len(subject.requests)):
            check(subject.block_rows("residual", row), subject.expected(row).layers[count - 1], f"layer {count - 1}, request {row}")


@ALL
def test_hidden_logits_selector_and_drafts(rig: Callable[[str], Rig], name: str) -> None:
    subject = rig(name)
    subject.proposer().record(subject.stream, subject.key, subject.state, subject.step)
    drafts = subject.read("draft_tokens")
    for row, request in enumerate(subject.requests):
        stages, picks = subject.expected(row), slice(row * K, (row + 1) * K)
        check(subject.read("pick_hidden")[row * K : (row + 1) * K], stages.hidden[1:], f"hidden states of request {row}")
        check(subject.read("logits")[picks], stages.logits[1:], f"logits of request {row}")
        assert stages.margin > 1e-4, "the reference is not sure of its drafts: choose another seed"
        selector = subject.scratch.selector
        if selector is not None:
            ids, scores = subject.device.download(selector.ids)[picks], subject.device.download(selector.scores)[picks]
            np.testing.assert_array_equal(ids, stages.candidates)
            walked = [0, *(int(np.flatnonzero(ids[i] == stages.drafts[i])[0]) for i in range(K - 1))]
            check(scores[np.arange(K), walked], np.array(stages.scores), f"scores along the walk of request {row}")
        assert drafts[request.slot].tolist() == stages.drafts
    assert subject.read("num_draft")[[request.slot for request in subject.requests]].tolist() == [K] * 3


@ALL
def test_the_reference_depends_on_every_part(rig: Callable[[str], Rig], name: str) -> None:
    """The comparison above is worth what the drafters make of their inputs: no part of them may be without effect."""
    subject = rig(name)
    request, features = subject.requests[0], subject.features[0]
    base = subject.expected(0)
    context = subject.reference.context(features[: request.anchor_at])
    changed = {
        "anchor": subject.reference.propose(context, request.tokens[-1] + 1, 1 + K),
        "nearest context": subject.reference.propose(
            subject.reference.context(features[: request.anchor_at] + 0.1 * (np.arange(request.anchor_at) > 9)[:, None]),
            request.tokens[-1],
            1 + K,
        ),
        "position": subject.reference.propose([(k[1:], v[1:]) for k, v in context], request.tokens[-1], 1 + K),
    }
    for what, stages in changed.items():
        assert np.abs(stages.hidden[1:] - base.hidden[1:]).max() > 1e-2, what


def test_an_argmax_over_a_dflash2_checkpoint_is_refused(rig: Callable[[str], Rig]) -> None:
    with pytest.raises(ValueError, match="DFlash2 checkpoint without its candidate selector"):
        rig("v2").proposer(selector=None)


FUSED = ("full", "sliding-both-ways", "mixed-by-default", "mixed-causal", "biases", "v2", "v2-sliding-both-ways")


@pytest.mark.parametrize("name", FUSED)
def test_fused_forms_yield_the_same(model: TinyModel, tmp_path: Path, name: str) -> None:
    """Context split over blocks, joins in one launch: hidden states, logits and drafts of the reference again, twice in a row."""
    subject = Rig(model, write_tiny_drafter(tmp_path, TARGET, SHAPES[name]), random_requests(VOCAB_SIZE), k=K, fused=True)
    subject.append_all()
    for _ in range(2):
        subject.proposer().record(subject.stream, subject.key, subject.state, subject.step)
        drafts = subject.read("draft_tokens")
        for row, request in enumerate(subject.requests):
            stages = subject.expected(row)
            check(subject.read("pick_hidden")[row * K : (row + 1) * K], stages.hidden[1:], f"hidden states of request {row}")
            check(subject.read("logits")[row * K : (row + 1) * K], stages.logits[1:], f"logits of request {row}")
            assert tuple(drafts[request.slot].tolist()) == tuple(stages.drafts)
    written = (subject.device.download(subject.arrays.cache) != UNWRITTEN).any(axis=(0, 1, 4, 5))
    assert written.sum() == sum(request.anchor_at for request in subject.requests)
