"""Validation: the target's greedy answers to prompts that are never trained on, and a drafter's acceptance on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from runtime.speculators.train.documents import Document
from runtime.speculators.train.drafter import TorchDrafter
from runtime.speculators.train.generate import Generator
from runtime.speculators.train.rows import compute_taps, pack
from runtime.speculators.train.target import Tensor, TorchTarget
from runtime.speculators.train.walk import Acceptance, accepted_everywhere, hop, pooled


class ValidationSet:
    """Args: target, best in float32; prompts, token ids by kind; stop_ids that end an answer; taps of the drafter."""

    def __init__(
        self,
        target: TorchTarget,
        prompts: Mapping[str, Sequence[Sequence[int]]],
        max_tokens: int,
        stop_ids: Sequence[int],
        taps: Sequence[int],
    ) -> None:
        self._target = target
        ids = [prompt for group in prompts.values() for prompt in group]
        longest = max(map(len, ids))
        generator = Generator(target, len(ids), longest + 16 + max_tokens)
        answers = [answer for answer, _ in generator.run(ids, [0.0] * len(ids), max_tokens, stop_ids)]
        del generator
        kinds = [kind for kind, group in prompts.items() for _ in group]
        # An answer of one token has no step: the prefill yields it.
        kept = [(kind, prompt, answer) for kind, prompt, answer in zip(kinds, ids, answers, strict=True) if len(answer) > 1]
        self.kinds = [kind for kind, _, _ in kept]
        self.num_tokens = sum(len(answer) for _, _, answer in kept)
        rows = [
            pack([Document(torch.tensor(prompt).int().numpy(), answer)], len(prompt) + len(answer), 0, target.device)
            for _, prompt, answer in kept
        ]
        self._rows = [(row, compute_taps(target, row, taps, soft=False)) for row in rows]

    def measure(self, drafter: TorchDrafter, table: Tensor | None, k: int) -> dict[str, Any]:
        """{"mean_acceptance_length", "steps", "rates", "by_kind"} of greedy speculation with k drafts."""
        tallies: list[Acceptance] = []
        for rows, taps in self._rows:
            tallies += hop(rows, accepted_everywhere(drafter, table, self._target, rows, taps, k), k)
        whole = pooled(tallies)
        by_kind = {
            kind: pooled([tally for tally, other in zip(tallies, self.kinds, strict=True) if other == kind]).length
            for kind in dict.fromkeys(self.kinds)
        }
        return {
            "mean_acceptance_length": round(whole.length, 4),
            "steps": whole.steps,
            "rates": [round(rate, 4) for rate in whole.rates],
            "by_kind": {kind: round(length, 3) for kind, length in by_kind.items()},
        }
