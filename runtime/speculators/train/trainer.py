"""Trainer: steps of the optimiser over packed rows, averaged weights, and a state that can be put aside and taken up again."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.speculators.train.blocks import blocks_of, draw_anchors, surprise
from runtime.speculators.train.drafter import TorchDrafter
from runtime.speculators.train.losses import HeadLoss, HeadTask, selector_loss
from runtime.speculators.train.muon import Muon
from runtime.speculators.train.rows import Rows, bytes_of_taps, empty_taps, fill_taps
from runtime.speculators.train.settings import TrainingSettings
from runtime.speculators.train.target import Tensor, TorchTarget

NOTE_EVERY = 50  # steps between two notes of the loss: each waits for the device


@dataclass
class Log:
    """What is plotted and summarised. notes: of training; acceptance: on the validation prompts."""

    notes: list[dict[str, float]] = field(default_factory=list)
    acceptance: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """Trains `drafter` in place on rows of the target's text."""

    def __init__(self, settings: TrainingSettings, target: TorchTarget, drafter: TorchDrafter, rows: Rows) -> None:
        self.settings, self.target, self.drafter, self.rows = settings, target, drafter, rows
        self.table = unit_variance(target.embed) if drafter.spec.version == 2 else None
        self.averaged = copy.deepcopy(drafter).requires_grad_(False)
        self.log = Log()
        self.step, self.seconds = 0, 0.0
        self._optimizers = _optimizers(settings, drafter)
        self._random = random.Random(settings.seed)
        self._windows = self._cut_windows()
        self._window = -1
        self._window_rows = rows
        longest = max(window.stop - window.start for window in self._windows)
        num_taps = len(drafter.spec.target_layer_ids)
        self._taps = empty_taps(target, longest, rows.tokens.shape[1], num_taps, settings.distil > 0)
        self._order: Iterator[Tensor] = iter(())

    @property
    def share(self) -> float:
        """How much of the run is done, 0 .. 1."""
        by_time = self.seconds / self.settings.seconds if self.settings.seconds else 0.0
        by_steps = self.step / self.settings.steps if self.settings.steps else 0.0
        return min(1.0, max(by_time, by_steps))

    def run(self, after_step: Callable[[], None]) -> None:
        """Steps until the run is done; `after_step` is called behind each, outside the time that counts."""
        while self.share < 1.0:
            start = time.monotonic()
            self._do_step()
            self.seconds += time.monotonic() - start
            after_step()

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on, beside the documents."""
        return {
            "drafter": self.drafter.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "notes": self.log.notes,
            "acceptance": self.log.acceptance,
        }

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on from what was put aside: weights, averages, optimisers, step and notes."""
        self.drafter.load_state_dict(state["drafter"])
        self.averaged.load_state_dict(state["averaged"])
        for optimizer, held in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        self.step, self.seconds = state["step"], state["seconds"]
        self.log = Log(state["notes"], state["acceptance"])

    # ---- one step -----------------------------------------------------------------------------------------------

    def _do_step(self) -> None:
        settings, spec, target = self.settings, self.drafter.spec, self.target
        share = self.share
        rate = settings.learning_rate * _schedule(share, settings)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        index = self._next_rows(share)
        slots = self._slots()
        weight = None
        if settings.surprising_anchors and self._taps.soft_shares is not None:
            weight = 1 - settings.surprising_anchors * (1 - surprise(self._taps, index))
        places, live = draw_anchors(self._window_rows.anchor[index], weight, settings.anchors)
        blocks = blocks_of(self._window_rows, self._taps, index, places, live, slots, target.embed, spec.mask_token_id)
        context = self.drafter.context(blocks.features, blocks.context_positions)
        hidden = self.drafter(blocks.x, blocks.positions, context, blocks.bias, slots).view(-1, slots, spec.hidden_size)[:, 1:]
        labels, valid = blocks.labels[:, 1:], blocks.valid[:, 1:]
        task = HeadTask(
            head=target.head,
            labels=labels,
            valid=valid,
            dpace=settings.dpace_alpha if share >= settings.dpace_from else None,
            top_k=spec.selector_top_k,
            chunk=settings.chunk,
            distil=settings.distil,
            soft_ids=None if blocks.soft_ids is None else blocks.soft_ids[:, 1:],
            soft_shares=None if blocks.soft_shares is None else blocks.soft_shares[:, 1:],
        )
        loss, weights, candidates, hits = HeadLoss.apply(hidden, task)
        whole, chosen = loss, None
        if self.table is not None:
            chosen, hits = selector_loss(
                self.drafter.candidate_selector, self.table, target.head, hidden, blocks.labels[:, :-1], labels, candidates, weights
            )
            whole = loss + chosen
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        whole.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), settings.clip)
        for optimizer in self._optimizers:
            optimizer.step()
        self.step += 1
        self._average()
        if self.step % NOTE_EVERY == 1:
            self._note(rate, slots, loss, chosen, norm, hits & valid, valid)

    def _average(self) -> None:
        # Early on the average would be mostly the beginning.
        decay = min(self.settings.ema, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.averaged.parameters()), [p.detach() for p in self.drafter.parameters()], 1 - decay)

    def _note(
        self, rate: float, slots: int, loss: Tensor, chosen: Tensor | None, norm: Tensor, hits: Tensor, valid: Tensor
    ) -> None:
        prefix = hits.float().cumprod(1).sum(0) / valid.float().sum(0).clamp_min(1)
        self.log.notes.append(
            {
                "step": self.step,
                "seconds": self.seconds,
                "rate": rate,
                "slots": slots,
                "loss": float(loss.detach()),
                "selector_loss": float(chosen.detach()) if chosen is not None else math.nan,
                "gradient_norm": float(norm),
                "first_slot": float(prefix[0]),
                "mean_acceptance_length": 1.0 + float(prefix.sum()),  # of random anchors, each with the true tokens before it
            }
        )

    def _slots(self) -> int:
        block = self.drafter.spec.block_size
        if block > 5 and self._random.random() < self.settings.short_blocks:
            return self._random.randint(5, block - 1)
        return block

    # ---- rows ---------------------------------------------------------------------------------------------------

    def _cut_windows(self) -> list[slice]:
        """Rows whose taps fit in memory together; the windows take their turns, each for an equal share of the run."""
        count, length = self.rows.tokens.shape
        size = bytes_of_taps(self.target, len(self.drafter.spec.target_layer_ids), self.settings.distil > 0) * length
        fitting = int(self.settings.taps_gib * 2**30) // size
        if fitting < 1:
            need = f"the taps of one row take {size / 2**30:.3f} GiB"
            raise ConfigError(f"training.taps_gib = {self.settings.taps_gib}: {need}; raise it")
        number = math.ceil(count / fitting)
        bounds = [count * part // number for part in range(number + 1)]
        return [slice(first, last) for first, last in pairwise(bounds)]

    def _next_rows(self, share: float) -> Tensor:
        window = min(len(self._windows) - 1, int(share * len(self._windows)))
        if window != self._window:
            # Into the memory of the window before: most of the device's has no room for two, nor for one in two pieces.
            self._window_rows = self.rows.part(self._windows[window])
            fill_taps(self._taps, self.target, self._window_rows, self.drafter.spec.target_layer_ids)
            self._window, self._order = window, self._shuffled(len(self._window_rows))
        return next(self._order)

    def _shuffled(self, count: int) -> Iterator[Tensor]:
        """Rows of the window for one step after the other, without end."""
        size = min(self.settings.rows, count)
        while True:
            order = torch.randperm(count, device=self.target.device)
            yield from order[: count // size * size].split(size)


def unit_variance(embed: Tensor) -> Tensor:
    return (embed.float() / embed.float().std()).to(embed.dtype)


def _schedule(share: float, settings: TrainingSettings) -> float:
    """Linear warm-up, then a cosine down to `final_rate`."""
    warm = min(1.0, (share + 1e-3) / settings.warmup) if settings.warmup else 1.0
    return warm * (settings.final_rate + (1 - settings.final_rate) * 0.5 * (1 + math.cos(math.pi * share)))


def _optimizers(settings: TrainingSettings, drafter: TorchDrafter) -> list[torch.optim.Optimizer]:
    matrices: list[Any] = []
    others: list[Any] = []
    for name, parameter in drafter.named_parameters():
        by_muon = settings.optimizer == "muon" and parameter.ndim == 2 and "candidate_selector" not in name
        (matrices if by_muon else others).append(parameter)
    fused = others[0].device.type == "cuda"
    result: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)
    ]
    if matrices:
        result.append(Muon(matrices, settings.learning_rate))
    return result
