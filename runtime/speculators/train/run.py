"""One training run from settings to an exported drafter: text, rows, training, measurement; every stage resumes where it was."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from runtime.chat import ChatTemplate
from runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint
from runtime.checkpoint.source import resolve_source
from runtime.console import ProgressBars, silent_bar
from runtime.errors import ConfigError, DeviceError
from runtime.request_file import read_prompt_file
from runtime.speculators.dflash_config import read_draft_config
from runtime.speculators.train.documents import Document, DocumentStore, cut_loops
from runtime.speculators.train.drafter import TorchDrafter
from runtime.speculators.train.export import build_config, read_tensors, save_drafter
from runtime.speculators.train.held_out import HeldOut, read_kinds
from runtime.speculators.train.plot import plot_log
from runtime.speculators.train.prompts import ChatFrame
from runtime.speculators.train.rows import pack
from runtime.speculators.train.settings import TrainSettings
from runtime.speculators.train.target import TorchTarget
from runtime.speculators.train.trainer import Trainer
from runtime.speculators.train.validation import ValidationSet
from runtime.speculators.train.writing import write_documents
from runtime.tokenizer import Tokenizer
from runtime.user_path import user_path

logger = logging.getLogger(__name__)

MAY_DIFFER = {("data", "seconds"), ("data", "max_tokens"), ("data", "also"), ("training", "seconds"), ("training", "steps")}
"""Settings that may change when a run goes on: when it ends, and what is added to its text."""


class TrainingRun:
    """A run and its folder: settings.json, documents/, checkpoint.pt, drafter/, progress.png, summary.json."""

    def __init__(self, settings: TrainSettings, bars: ProgressBars = silent_bar) -> None:
        """Opens the target. Raises DraftgraphError for what a user can mend."""
        self.settings, self._bars = settings, bars
        self.device = _device(settings.device)
        try:
            self.folder = user_path(settings.output.folder)
        except ValueError as error:
            raise ConfigError(f"output.folder = {settings.output.folder}: {error}; name a folder") from error
        self._check_folder()
        checkpoint = open_checkpoint(resolve_source(settings.target.source, "target.source", bars))
        self.tokenizer = Tokenizer.from_source(checkpoint.tokenizer)
        self.frame = ChatFrame(self.tokenizer, _template(checkpoint, self.tokenizer))
        self.config = build_config(settings.drafter, checkpoint.spec, self.tokenizer)
        read_draft_config(self.config, "drafter")  # what no drafter can be is told now, and not once its text is written
        self._refuse_too_long(checkpoint.spec.max_position_embeddings)
        self.held_out = read_kinds(settings.validation.prompts) if settings.validation.prompts else {}
        self._own_prompts = _own_prompts(settings.data.prompts)
        with bars("loading the target", "bytes") as advance:
            weights = checkpoint.load_weights(advance)
        self._max_len = max(settings.training.row_length, settings.data.max_prompt_tokens + max(settings.data.answer_tokens)) + 64
        low = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.target = TorchTarget(checkpoint.spec, weights, self.device, low, self._max_len)
        self.validation = self._validation_set(checkpoint, weights)
        self._write_settings(json.dumps(_comparable(settings), indent=1))

    def write_text(self) -> dict[str, Any]:
        """The first stage alone. Returns what it wrote; several processes can write, each into a folder of its own."""
        return self._documents()[1]

    def run(self) -> dict[str, Any]:
        """Everything that is not done yet. Returns the summary, which is also in summary.json."""
        start = time.monotonic()
        documents, data = self._documents()
        documents, data["answers_cut"] = cut_loops(documents, self.device)
        training = self.settings.training
        rows = pack(documents, training.row_length, training.seed, self.device)
        data |= {
            "documents": len(documents),
            "answer_tokens": sum(len(document.answer) for document in documents),
            "rows": len(rows),
            "anchors": int(rows.anchor.sum()),
        }
        if not data["anchors"]:
            raise ConfigError("data: no answer is longer than one token; give it more seconds or tokens, or other prompts")
        logger.info("data: %s", json.dumps(data))
        torch.manual_seed(training.seed)
        drafter = TorchDrafter(self.config, self._max_len)
        if self.settings.drafter.start:
            drafter.begin_from(read_tensors(self.settings.drafter.start))
        trainer = Trainer(training, self.target, drafter.to(self.device), rows)
        if (state := self._checkpoint_path).exists():
            try:
                trainer.take_up(torch.load(state, map_location=self.device, weights_only=True))
            except Exception as error:  # PyTorch has no kind of its own for a file that is broken
                raise ConfigError(f"{state}: cannot be read: {error}; remove it to train anew on the text that is there") from error
            logger.info("continuing at step %d", trainer.step)
        self._train(trainer)
        summary = {
            "settings": self.settings.model_dump(mode="json"),
            "device": _device_name(self.device),
            "torch": torch.__version__,
            "data": data,
            "parameters": sum(tensor.numel() for tensor in trainer.averaged.exported(trainer.table).values()),
            "steps": trainer.step,
            "training_seconds": round(trainer.seconds, 1),
            "blocks": trainer.step * training.rows * training.anchors,
            "wall_seconds": round(time.monotonic() - start, 1),
            "acceptance": self._measured(trainer),
            "last_note": trainer.log.notes[-1] if trainer.log.notes else None,
        }
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
        plot_log(trainer.log, self.folder / "progress.png", self.settings.target.source)
        return summary

    # ---- stages -------------------------------------------------------------------------------------------------

    def _documents(self) -> tuple[list[Document], dict[str, Any]]:
        """What was written before, what is still missing of it, and what other runs wrote; with figures about all of it."""
        settings = self.settings.data
        store = DocumentStore(self.folder / "documents")
        held_out = HeldOut(text for texts in self.held_out.values() for text in texts)
        write_documents(settings, self.target, self.frame, self.tokenizer, held_out, self._own_prompts, store, self._bars)
        stores = [store, *(_other_store(folder) for folder in settings.also)]
        documents = [document for each in stores for document in each.documents]
        return documents, {
            "runs": len(stores),
            "generation_seconds": round(sum(each.seconds for each in stores), 1),
            "prompts_refused": sum(each.refused for each in stores),
            "documents_by_kind": dict(sum((each.kinds for each in stores), Counter[str]())),
        }

    def _train(self, trainer: Trainer) -> None:
        settings, training = self.settings, self.settings.training
        last = {"export": time.monotonic(), "measure": time.monotonic()}
        with self._bars("training", "seconds" if training.seconds else "steps") as advance:

            def after_step() -> None:
                now = time.monotonic()
                if training.seconds:
                    advance(int(trainer.seconds), int(training.seconds))
                else:
                    advance(trainer.step, training.steps or 0)
                if self.validation is not None and now - last["measure"] >= settings.validation.every_seconds:
                    found = self.validation.measure(trainer.averaged, trainer.table, trainer.drafter.spec.block_size - 1)
                    trainer.log.acceptance.append(
                        {"step": trainer.step, "mean_acceptance_length": found["mean_acceptance_length"]}
                    )
                    note = trainer.log.notes[-1]
                    logger.info(
                        "step %d, %.0f s: loss %.3f + %.3f, random anchors %.3f, validation %.3f tokens a step", trainer.step,
                        trainer.seconds, note["loss"], note["selector_loss"], note["mean_acceptance_length"],
                        found["mean_acceptance_length"],
                    )
                    last["measure"] = time.monotonic()
                if now - last["export"] >= settings.output.every_seconds:
                    self._save(trainer)
                    last["export"] = time.monotonic()

            trainer.run(after_step)
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        """Raises ConfigError, and leaves what was saved before, where the weights are no numbers any more."""
        exported = trainer.averaged.exported(trainer.table)
        diverged = [name for name, tensor in exported.items() if not tensor.isfinite().all()]
        if diverged:
            rate = self.settings.training.learning_rate
            raise ConfigError(
                f"training.learning_rate = {rate}: the drafter diverged by step {trainer.step}, NaN or infinity in {len(diverged)} "
                "of its tensors; lower it, or training.clip; what was saved before is still there"
            )
        save_drafter(self.folder / "drafter", self.config, exported)
        beside = self._checkpoint_path.with_suffix(".new")
        torch.save(trainer.state(), beside)
        beside.replace(self._checkpoint_path)

    def _measured(self, trainer: Trainer) -> dict[str, Any]:
        """Of the exported weights, i.e. rounded to bfloat16, with a whole block and with half of it."""
        if self.validation is None:
            return {}
        drafter = TorchDrafter(self.config, self._max_len)
        drafter.begin_from(read_tensors(self.folder / "drafter"))
        drafter = drafter.to(self.device).requires_grad_(False)
        most = drafter.spec.block_size - 1
        return {f"k={k}": self.validation.measure(drafter, None, k) for k in sorted({most, (most + 1) // 2})}

    def _refuse_too_long(self, positions: int) -> None:
        """Would prompt and answer go beyond what the target was made for? Positions of a row count from each document on."""
        data = self.settings.data
        if data.max_prompt_tokens + max(data.answer_tokens) > positions:
            raise ConfigError(
                f"data.max_prompt_tokens = {data.max_prompt_tokens}, data.answer_tokens = {list(data.answer_tokens)}: the longest "
                f"prompt and answer are above the target's {positions} positions; lower one of them"
            )

    # ---- parts --------------------------------------------------------------------------------------------------

    @property
    def _checkpoint_path(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def _settings_path(self) -> Path:
        return self.folder / "settings.json"

    def _check_folder(self) -> None:
        """Settings of an interrupted run may differ in when it ends and in how often it reports, and in nothing else."""
        ours = _comparable(self.settings)
        if self._settings_path.exists():
            try:
                theirs = json.loads(self._settings_path.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"output.folder = {self.folder}: settings.json is corrupt: {error}; give another folder"
                ) from error
            if theirs != ours:
                keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
                raise ConfigError(
                    f"output.folder = {self.folder}: holds a run of other settings ({', '.join(keys)} differ); give another folder"
                )
            return
        self._write_settings("")
        self._settings_path.unlink()  # it is this run's once nothing else can be wrong

    def _write_settings(self, text: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._settings_path.write_text(text, "utf-8")
        except OSError as error:
            raise ConfigError(f"output.folder = {self.folder}: cannot be written: {error.strerror}") from error

    def _validation_set(self, checkpoint: Checkpoint, weights: Any) -> ValidationSet | None:
        """In float32, so that its answers are those of an engine in float32 and not of one precision of one device."""
        if not self.held_out:
            return None
        target = self.target
        if target.dtype != torch.float32:
            target = TorchTarget(checkpoint.spec, weights, self.device, torch.float32, self._max_len)
        prompts = {kind: [self.frame.prompt(text) for text in texts] for kind, texts in self.held_out.items()}
        longest = max(len(prompt) for group in prompts.values() for prompt in group)
        if longest + self.settings.validation.max_tokens + 16 > self._max_len:
            raise ConfigError(
                f"validation.prompts: one has {longest} tokens; with validation.max_tokens = {self.settings.validation.max_tokens} "
                f"that is more than the {self._max_len} positions of this run; shorten it or raise training.row_length"
            )
        taps = self.config["dflash_config"]["target_layer_ids"]
        return ValidationSet(target, prompts, self.settings.validation.max_tokens, self.tokenizer.eos_token_ids, taps)


def _comparable(settings: TrainSettings) -> dict[str, Any]:
    values = settings.model_dump(mode="json")
    return {
        f"{section}.{key}": value
        for section in ("target", "drafter", "data", "training")
        for key, value in values[section].items()
        if (section, key) not in MAY_DIFFER
    }


def _own_prompts(path: str | None) -> list[str]:
    texts = []
    for prompt in read_prompt_file(path) if path is not None else []:
        if not isinstance(prompt, str):
            raise ConfigError(f"data.prompts = {path}: {prompt!r}: training takes prompts that are texts")
        texts.append(prompt)
    return texts


def _other_store(folder: str) -> DocumentStore:
    if not (Path(folder) / "progress.json").exists():
        raise ConfigError(f"data.also = {folder}: no progress.json there; give the documents folder of a run with --text-only")
    return DocumentStore(Path(folder))


def _template(checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = checkpoint.tokenizer
    if source.chat_template is None:
        return None
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else None
    return ChatTemplate(source.chat_template, bos_token=tokenizer.token_text(bos), eos_token=tokenizer.token_text(eos))


def _device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device = cuda: PyTorch finds no CUDA device; use device = auto or cpu")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
