"""Training of drafters on the CPU: what its losses, masks and paths must be, and a whole run whose drafter the engine then uses.

PyTorch comes with the extra `train`; without it these tests are skipped. `make parity` has it and runs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.sampling import SamplingParams
from tests.reference_dflash import ReferenceDrafter, replay
from tests.reference_forward import logits_of, reference_residuals
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, TinyDrafter, write_tiny_drafter
from tests.tiny_engine import open_tiny

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra train)")
pytestmark = pytest.mark.parity

from runtime.speculators.train.blocks import Blocks, blocks_of, draw_anchors, surprise  # noqa: E402
from runtime.speculators.train.documents import Document, DocumentStore, cut_loops  # noqa: E402
from runtime.speculators.train.drafter import TorchDrafter  # noqa: E402
from runtime.speculators.train.export import read_tensors  # noqa: E402
from runtime.speculators.train.generate import Generator  # noqa: E402
from runtime.speculators.train.held_out import HeldOut  # noqa: E402
from runtime.speculators.train.losses import HeadLoss, HeadTask, best_columns, selector_loss  # noqa: E402
from runtime.speculators.train.rows import Rows, Taps, bytes_of_taps, compute_taps, pack  # noqa: E402
from runtime.speculators.train.settings import TrainingSettings  # noqa: E402
from runtime.speculators.train.target import TorchTarget  # noqa: E402
from runtime.speculators.train.trainer import Trainer  # noqa: E402
from runtime.speculators.train.walk import accepted_everywhere, hop, pooled  # noqa: E402

CPU = torch.device("cpu")
# Greedy text that repeats itself in part: something of it can be learnt.
SHAPE = TinyShape(num_layers=4, attention_scale=0.5, num_likely_ids=40)
PROMPTS = [[1, 30, 40, 50, 60], [1, 99, 7, 8, 9, 10, 11, 12], [1, 200, 12, 77]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # shapes are tiny: more threads only wait for each other


def open_target(model: TinyModel) -> TorchTarget:
    checkpoint = open_checkpoint(model.path)
    return TorchTarget(checkpoint.spec, checkpoint.load_weights(), CPU, torch.float32, 256)


def load_drafter(drafter: TinyDrafter) -> TorchDrafter:
    module = TorchDrafter(drafter.config, 256)
    module.begin_from({name: torch.from_numpy(values) for name, values in drafter.tensors.items()})
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("train") / "model", SHAPE)


@pytest.fixture(scope="module")
def target(model: TinyModel) -> TorchTarget:
    return open_target(model)


@pytest.fixture(scope="module")
def documents(target: TorchTarget) -> list[Document]:
    """Greedy answers of 40 tokens."""
    answers = Generator(target, len(PROMPTS), 64).run(PROMPTS, [0.0] * len(PROMPTS), 40, [-1])
    return [Document(np.array(prompt, np.int32), answer) for prompt, (answer, _) in zip(PROMPTS, answers, strict=True)]


@pytest.fixture(scope="module", params=[1, 2])
def drafter(request: pytest.FixtureRequest, model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> TinyDrafter:
    """Random weights of which every part matters, as tests/tiny_drafter.py makes them."""
    return write_tiny_drafter(tmp_path_factory.mktemp("drafter"), model.shape, DrafterShape(version=request.param))


# ---- target and text ------------------------------------------------------------------------------------------------


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


# ---- losses ---------------------------------------------------------------------------------------------------------


def head_task(dpace: float | None, distil: float) -> tuple[Any, HeadTask]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 7, 64, generator=generator)
    valid = torch.ones(6, 7, dtype=torch.bool)
    valid[2, 4:] = False
    soft_ids = torch.stack([torch.randperm(300, generator=generator)[:5] for _ in range(42)]).view(6, 7, 5)
    task = HeadTask(
        head=torch.randn(300, 64, generator=generator) * 0.3,
        labels=torch.randint(0, 300, (6, 7), generator=generator),
        valid=valid,
        dpace=dpace,
        top_k=4,
        chunk=4,
        distil=distil,
        soft_ids=soft_ids,
        soft_shares=torch.rand(6, 7, 5, generator=generator).softmax(-1),
    )
    return hidden, task


@pytest.mark.parametrize("dpace", [None, 0.5])
@pytest.mark.parametrize("distil", [0.0, 0.6])
def test_gradient_of_the_head_is_that_of_autograd(dpace: float | None, distil: float) -> None:
    hidden, task = head_task(dpace, distil)
    hidden.requires_grad_()
    loss, weights, _, _ = HeadLoss.apply(hidden, task)
    loss.backward()
    plain = hidden.detach().clone().requires_grad_()
    logs = (plain @ task.head.T).log_softmax(-1)
    gold = logs.gather(-1, task.labels[..., None])[..., 0]
    assert task.soft_ids is not None
    assert task.soft_shares is not None
    soft = (logs.gather(-1, task.soft_ids) * task.soft_shares).sum(-1)
    torch.testing.assert_close(loss, -(gold * weights).sum(), rtol=1e-4, atol=1e-5)
    (-((1 - distil) * gold + distil * soft) * weights).sum().backward()
    torch.testing.assert_close(hidden.grad, plain.grad, rtol=1e-4, atol=1e-6)


def test_dpace_weights_are_those_of_its_formula() -> None:
    hidden, task = head_task(0.5, 0.0)
    _, weights, _, _ = HeadLoss.apply(hidden, task)
    gold = (hidden @ task.head.T).softmax(-1).gather(-1, task.labels[..., None])[..., 0].numpy()
    expected = np.zeros((6, 7))
    for block in range(6):
        alive = [slot for slot in range(7) if task.valid[block, slot]]
        for slot in alive:
            for last in range(slot, len(alive)):
                expected[block, slot] += np.prod([0.5 * gold[block, t] + 0.5 for t in range(last + 1)])
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum(), rtol=1e-4)


def test_best_columns_are_those_of_topk() -> None:
    logits = torch.randn(5, 64 * 40, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(best_columns(logits, 16), logits.topk(16, -1)[1])


def test_selector_starts_as_no_op_and_learns_from_the_true_predecessor(drafter: TinyDrafter) -> None:
    if drafter.shape.version == 1:
        pytest.skip("DFlash has no selector")
    selector = load_drafter(drafter).candidate_selector
    hidden, task = head_task(None, 0.0)
    ids = best_columns((hidden @ task.head.T).view(-1, 300), 6).view(6, 7, 6)
    weights, table, previous = torch.full((6, 7), 1 / 42), torch.randn(300, 64), torch.randint(0, 300, (6, 7))
    loss, _ = selector_loss(selector, table, task.head, hidden, previous, task.labels, ids, weights)
    loss.backward()
    touched = selector.predecessor_codebook.grad.abs().sum(1) > 0
    assert set(touched.nonzero()[:, 0].tolist()) == set(previous.flatten().tolist())


# ---- blocks: what a drafter sees --------------------------------------------------------------------------------------


def all_blocks(target: TorchTarget, drafter: TorchDrafter, rows: Rows, taps: Taps, count: int = 12) -> Blocks:
    """Of the row 0, from its first anchors on."""
    places = rows.anchor[0].nonzero()[:count, 0][None]
    live = torch.ones_like(places, dtype=torch.bool)
    return blocks_of(rows, taps, torch.tensor([0]), places, live, 8, target.embed, drafter.spec.mask_token_id)


def hidden_of(module: TorchDrafter, blocks: Blocks) -> Any:
    with torch.no_grad():
        context = module.context(blocks.features, blocks.context_positions)
        return module(blocks.x, blocks.positions, context, blocks.bias, 8).view(-1, 8, module.spec.hidden_size)


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
    reference = ReferenceDrafter(drafter.config, drafter.tensors, *_tables(model), dtype=np.float64)
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
    reference = ReferenceDrafter(drafter.config, drafter.tensors, *_tables(model), dtype=np.float64)
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


def _tables(model: TinyModel) -> tuple[Any, Any]:
    embed = model.tensors["model.embed_tokens.weight"]
    return embed, model.tensors.get("lm_head.weight", embed)


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_one_answer_is_learnt_by_heart(
    model: TinyModel, target: TorchTarget, documents: list[Document], tmp_path: Path, version: Any, optimizer: Any
) -> None:
    """Every step then yields a whole block."""
    shape = DrafterShape(version=version, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16)
    config = write_tiny_drafter(tmp_path, model.shape, shape).config
    torch.manual_seed(0)
    module = TorchDrafter(config, 256)
    rows = pack(documents[:1], 60, 0, CPU)
    settings = TrainingSettings(
        steps=120, rows=1, anchors=40, learning_rate=0.01, ema=0.9, distil=0.0, short_blocks=0.1, row_length=60, optimizer=optimizer
    )
    trainer = Trainer(settings, target, module, rows)
    trainer.run(lambda: None)
    taps = compute_taps(target, rows, module.spec.target_layer_ids, soft=False)
    found = pooled(hop(rows, accepted_everywhere(trainer.averaged, trainer.table, target, rows, taps, 7), 7))
    assert found.survival[0] == found.steps
    assert found.steps == 5  # 39 tokens behind the first, eight at a time
    assert trainer.log.notes[0]["loss"] > 10 * trainer.log.notes[-1]["loss"]


def test_training_goes_on_where_it_was(model: TinyModel, target: TorchTarget, documents: list[Document], tmp_path: Path) -> None:
    config = write_tiny_drafter(tmp_path, model.shape, DrafterShape(version=2)).config
    rows = pack(documents, 60, 0, CPU)
    settings = TrainingSettings(steps=4, rows=2, anchors=8, row_length=60, surprising_anchors=0.5)
    torch.manual_seed(0)
    first = Trainer(settings, target, TorchDrafter(config, 256), rows)
    first.run(lambda: None)
    path = tmp_path / "state.pt"
    torch.save(first.state(), path)
    second = Trainer(settings, target, TorchDrafter(config, 256), rows)
    second.take_up(torch.load(path, weights_only=True))
    assert (second.step, second.share, len(second.log.notes)) == (4, 1.0, len(first.log.notes))
    for ours, theirs in zip(second.averaged.parameters(), first.averaged.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_windows_take_their_turns_in_one_memory(
    model: TinyModel, target: TorchTarget, documents: list[Document], tmp_path: Path
) -> None:
    """Three rows, of which two fit: each window's taps are those of its own rows."""
    config = write_tiny_drafter(tmp_path, model.shape, DrafterShape(version=2)).config
    rows = pack(documents, 50, 0, CPU)
    taps = tuple(config["dflash_config"]["target_layer_ids"])
    settings = TrainingSettings(
        steps=6, rows=2, anchors=8, row_length=50, taps_gib=2.5 * bytes_of_taps(target, len(taps), True) * 50 / 2**30
    )
    trainer = Trainer(settings, target, TorchDrafter(config, 256), rows)
    whole, seen = compute_taps(target, rows, taps, soft=True), []

    def look() -> None:
        window = trainer._windows[trainer._window]
        seen.append((window.start, window.stop))
        count = window.stop - window.start
        torch.testing.assert_close(trainer._taps.features[:count], whole.features[window], rtol=0, atol=0)
        torch.testing.assert_close(trainer._taps.soft_ids[:count], whole.soft_ids[window], rtol=0, atol=0)

    trainer.run(look)
    assert seen == [(0, 1)] * 3 + [(1, 3)] * 3


def test_the_mean_of_drafters(model: TinyModel, tmp_path: Path) -> None:
    """Of one shape; others have none."""
    for name, seed, layers in (("a", 1, 2), ("b", 2, 2), ("c", 3, 1)):
        write_tiny_drafter(tmp_path / name, model.shape, DrafterShape(version=2, num_layers=layers, seed=seed))
    command = [sys.executable, "-m", "runtime.speculators.train.average", "--output", str(tmp_path / "mean"), str(tmp_path / "a")]
    done = subprocess.run([*command, str(tmp_path / "b")], capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path / 'mean'}: the mean of 2 drafters\n"
    a, b, mean = (read_tensors(tmp_path / name) for name in ("a", "b", "mean"))
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, ((a[name].float() + b[name].float()) / 2).bfloat16())
    refused = subprocess.run([*command, str(tmp_path / "c")], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "only drafters of one shape have a mean" in refused.stderr


def test_more_layers_and_a_lower_rank_begin_from_a_drafter(model: TinyModel, target: TorchTarget, tmp_path: Path) -> None:
    """A new layer begins as the identity: with a selector cut to its components nothing else changes."""
    old = write_tiny_drafter(tmp_path / "old", model.shape, DrafterShape(version=2))
    config = write_tiny_drafter(tmp_path / "new", model.shape, DrafterShape(version=2, num_layers=3, selector_rank=8)).config
    module = TorchDrafter(config, 256)
    module.begin_from({name: torch.from_numpy(values) for name, values in old.tensors.items()})
    rows = pack([Document(np.array(PROMPTS[0], np.int32), np.arange(20, 40, dtype=np.int32))], 60, 0, CPU)
    taps = compute_taps(target, rows, old.shape.taps, soft=False)
    ours = hidden_of(module, all_blocks(target, module, rows, taps))
    torch.testing.assert_close(ours, hidden_of(load_drafter(old), all_blocks(target, module, rows, taps)), rtol=1e-4, atol=1e-5)
    assert module.candidate_selector.predecessor_codebook.shape == (300, 8)


# ---- a whole run ----------------------------------------------------------------------------------------------------


def write_config(folder: Path, model: TinyModel) -> Path:
    (folder / "held_out.yaml").write_text("talk: [what is this thing, how are you]\nstory: [the cat sat]\n")
    (folder / "own.txt").write_text("what did the man say at the gate\nwhere is the dog\n")
    path = folder / "train.yaml"
    path.write_text(f"""
target: {{source: {model.path}}}
drafter: {{taps: [0, 1, 2], selector_rank: 8, selector_top_k: 8}}
data: {{seconds: 30, max_tokens: 1500, batch: 16, answer_tokens: [32], max_prompt_tokens: 100}}
training: {{steps: 25, row_length: 128, rows: 4, anchors: 8, learning_rate: 0.003}}
validation: {{prompts: {folder / "held_out.yaml"}, max_tokens: 30, every_seconds: 1}}
output: {{folder: {folder / "out"}}}
""")
    return path


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runtime.speculators.train", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).resolve().parents[1],
    )


def test_a_whole_run_ends_in_a_drafter_that_the_engine_uses(model: TinyModel, tmp_path: Path) -> None:
    config = write_config(tmp_path, model)
    own = ["--prompts", str(tmp_path / "own.txt")]
    written = train(str(config), *own, "--output", str(tmp_path / "text"), "--text-only", "--quiet")
    assert written.returncode == 0, written.stderr
    also = ["--set", f"data.also=[{tmp_path / 'text' / 'documents'}]"]
    done = train(str(config), *own, *also, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["steps"] == 25
    assert summary["data"]["answer_tokens"] > json.loads(written.stdout)["documents_by_kind"]["file"]
    assert summary["data"]["runs"] == 2
    assert "file" in summary["data"]["documents_by_kind"]
    assert set(summary["acceptance"]) == {"k=4", "k=7"}
    assert set(summary["acceptance"]["k=7"]["by_kind"]) == {"talk", "story"}
    out = tmp_path / "out"
    assert json.loads((out / "summary.json").read_text()) == summary
    drafter = {"speculator__method": "dflash", "speculator__draft_source": str(out / "drafter")}
    prompts: list[Any] = PROMPTS
    with open_tiny(model.path, k=7, **drafter) as engine:
        drafted = engine.generate(prompts, SamplingParams(max_tokens=16))
    with open_tiny(model.path, k=0) as engine:
        plain = engine.generate(prompts, SamplingParams(max_tokens=16))
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    again = train(str(config), *own, *also, "--json", "--quiet")
    assert again.returncode == 0, again.stderr
    # Nothing was left to do: neither text nor steps were added.
    assert json.loads(again.stdout)["steps"] == 25
    assert json.loads(again.stdout)["data"] == summary["data"]
    other = train(str(config), *own, "--set", "training.learning_rate=0.1", "--quiet")
    assert other.returncode == 2
    assert "holds a run of other settings (training.learning_rate differ)" in other.stderr


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (["--set", "training.rate=3"], "training.rate = 3: unknown key"),
        (["--set", "training.steps=null"], "training: give seconds or steps"),
        (["--set", "drafter.taps=[0, 3]"], "drafter.taps = [0, 3]: [3] outside 0..2"),
        (["--set", "target.source=/nowhere"], "target.source = /nowhere: no such file or folder"),
        (["--set", "drafter.start=/nowhere"], "drafter.start = /nowhere: config.json cannot be read"),
        (["--set", "validation.prompts=/nowhere.yaml"], "/nowhere.yaml: no such file"),
        (["--set", "device=cuda"], "device = cuda: PyTorch finds no CUDA device"),
        (["--prompts", "/nowhere.txt"], "prompt file /nowhere.txt: no such file"),
    ],
)
def test_mistakes_are_named(model: TinyModel, tmp_path: Path, changes: list[str], text: str) -> None:
    done = train(str(write_config(tmp_path, model)), "--quiet", *changes)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
