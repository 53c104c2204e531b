"""Steps of training on the CPU: what is learnt, taken up again, shared among windows and carried over from another drafter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime.errors import CheckpointError
from tests.tiny_checkpoint import TinyModel
from tests.tiny_drafter import DrafterShape, write_tiny_drafter

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra train)")
pytestmark = pytest.mark.parity

from runtime.speculators.train.documents import Document  # noqa: E402
from runtime.speculators.train.drafter import TorchDrafter  # noqa: E402
from runtime.speculators.train.export import read_tensors  # noqa: E402
from runtime.speculators.train.rows import bytes_of_taps, compute_taps, pack  # noqa: E402
from runtime.speculators.train.settings import TrainingSettings  # noqa: E402
from runtime.speculators.train.target import TorchTarget  # noqa: E402
from runtime.speculators.train.trainer import Trainer  # noqa: E402
from runtime.speculators.train.walk import accepted_everywhere, hop, pooled  # noqa: E402
from tests.train_rig import CPU, PROMPTS, all_blocks, hidden_of, load_drafter  # noqa: E402


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


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nothing_begins_from_a_drafter_that_diverged(model: TinyModel, tmp_path: Path, value: float) -> None:
    drafter = write_tiny_drafter(tmp_path, model.shape)
    save_file({**drafter.tensors, "norm.weight": np.full(64, value, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"drafter\.start = .*: norm\.weight: NaN or infinity; begin from another drafter"):
        read_tensors(tmp_path)


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
