"""What an engine drafted, step by step and by id, beside what the NumPy reference drafts from the same tokens.

A defect of a drafter costs acceptance and never text, so that only the drafts themselves can show it. The device notes them on a
tape (graphs/tape.py) that is read once, at the end: nothing about the run changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import runtime.assembly
from runtime.engine import Engine
from runtime.gates.tapes import allocate_tapes, read_tape
from runtime.plan import StepPlan
from runtime.runner import Runner
from tests.reference_dflash import ReferenceDrafter
from tests.reference_forward import reference_residuals
from tests.tiny_checkpoint import TinyModel
from tests.tiny_drafter import TinyDrafter
from tests.tiny_engine import open_tiny

SURE = 1e-3
"""Least lead of a draft over the next best one below which rounding may decide."""


@dataclass
class DraftLog:
    """plans: those of the steps, in order. tapes: their memory, to be read with `rows` before the engine is closed."""

    plans: list[StepPlan] = field(default_factory=list)
    runner: Any = None
    tapes: Any = None

    def rows(self) -> Iterator[tuple[str, bool, int, tuple[int, ...]]]:
        """(request, whether it samples, its tokens behind the step, its drafts) of every row of every step."""
        records = read_tape(self.runner.device, self.tapes.drafted)
        assert len(records) == len(self.plans)
        for plan, record in zip(self.plans, records, strict=True):
            for row, noted in zip(plan.rows, record, strict=True):
                assert row.slot == noted.slot
                yield row.request_id, row.samples, noted.position, noted.ids


@contextmanager
def taped_engine(model: TinyModel, drafter: TinyDrafter, *, k: int, **settings: Any) -> Iterator[tuple[Engine, DraftLog]]:
    """An engine that speculates with `drafter`, and the log of what it drafts."""
    log = DraftLog()

    class TapedRunner(Runner):
        def __init__(self, device: Any, target: Any, proposer: Any, sizes: Any, policy: Any, options: Any, **rest: Any) -> None:
            log.tapes = allocate_tapes(device, steps=2000, num_slots=sizes.max_num_seqs, num_ids=1 + k)
            log.runner = self
            super().__init__(device, target, proposer, sizes, policy, options, log.tapes, **rest)

        def launch(self, plan: StepPlan) -> Any:
            log.plans.append(plan)
            return super().launch(plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.assembly, "Runner", TapedRunner)
        settings = {"speculator__method": "dflash", "speculator__draft_source": str(drafter.path), **settings}
        engine = open_tiny(model.path, k=k, **settings)
    with engine:
        yield engine, log


class DraftOracle:
    """Drafts by the reference for any prefix of texts that are known to the end."""

    def __init__(self, model: TinyModel, drafter: TinyDrafter) -> None:
        tensors = model.tensors
        embed = tensors["model.embed_tokens.weight"]
        self._model = model
        self._reference = ReferenceDrafter(drafter.config, drafter.tensors, embed, tensors.get("lm_head.weight", embed))
        self._contexts: dict[tuple[int, ...], list[tuple[Any, Any]]] = {}

    def drafts(self, text: tuple[int, ...], num_tokens: int, k: int, max_model_len: int) -> tuple[tuple[int, ...], float]:
        """(k drafts behind the first `num_tokens` tokens, -1 where none fits; how sure they are)."""
        if text not in self._contexts:
            residuals = reference_residuals(self._model.config, self._model.tensors, text)
            self._contexts[text] = self._reference.context(self._reference.features(residuals))
        anchor_at = num_tokens - 1
        context = [(keys[:anchor_at], values[:anchor_at]) for keys, values in self._contexts[text]]
        stages = self._reference.propose(context, text[anchor_at], min(1 + k, max_model_len - anchor_at))
        return (*stages.drafts, *[-1] * (k - len(stages.drafts))), stages.margin


def check_drafts(oracle: DraftOracle, log: DraftLog, texts: Mapping[str, tuple[int, ...]], *, k: int, max_model_len: int) -> int:
    """Every row of every step drafted what the reference drafts, or nothing where it may not, or where no step verifies it; returns
    how many rows drafted."""
    drafted = unsure = 0
    verified = (plan.proposes for plan in log.plans for _ in plan.rows)
    for number, (proposes, (request_id, samples, num_tokens, ids)) in enumerate(zip(verified, log.rows(), strict=True)):
        text = texts[request_id]
        if not proposes or not samples or num_tokens == len(text):
            assert ids == (-1,) * k, f"row {number} of {request_id} must not draft"
            continue
        expected, margin = oracle.drafts(text, num_tokens, k, max_model_len)
        drafted += 1
        if margin < SURE:
            unsure += 1
        else:
            assert ids == expected, f"row {number}: {request_id} at {num_tokens} tokens"
    assert unsure <= max(2, drafted // 10), f"{unsure} of {drafted} rows are too close to call: choose another drafter"
    return drafted


def texts_of(outputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Prompt and answer by request id."""
    return {output.request_id: (*output.prompt_token_ids, *output.token_ids) for output in outputs}
