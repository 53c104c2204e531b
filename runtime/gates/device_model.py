"""What the device must do with each row of each plan: a model in plain Python, one slot after the other, without a device.

It takes from a plan who runs, how many tokens of a prompt and how many drafts, and computes all else from the oracle: what is
drafted, how much of it is accepted, what the row emits and whether that ends the request. An engine whose text is right and whose
acceptance is not (the silent class of defects) differs from it in the first count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runtime.gates.toy import continuation, ends_of
from runtime.plan import NOT_FINISHED, STOPPED_BY_LENGTH, STOPPED_BY_TOKEN, Admission, ScheduledRow, StepPlan

Drafter = Callable[[Sequence[int], int], list[int]]
"""(tokens so far, slot) -> k drafts, -1 where there is none."""


@dataclass(frozen=True)
class ExpectedRow:
    """What one row must yield, and what it must have been fed: the id at its first logits row, and the drafts behind that."""

    request_id: str
    tokens: tuple[int, ...]
    num_drafts: int
    finished: int
    position: int
    fed: tuple[int, ...]


@dataclass
class _Slot:
    admission: Admission
    stream: list[int]  # what the request's text will be, far enough
    total_len: int
    num_computed: int = 0
    finished: int = NOT_FINISHED
    drafts: list[int] = field(default_factory=list)


class DeviceModel:
    """Applies plans in launch order.

    Args:
        k: drafts a row.
        max_model_len: positions of a slot.
        memory: of the toy target.
        drafter: Python meaning of the speculator.
        eos_token_ids: the model's ends of text.
        pauses: whether it drafts nothing where the next step verifies nothing; prompt lookup drafts all the same.
    """

    def __init__(
        self,
        k: int,
        max_model_len: int,
        memory: bool,
        drafter: Drafter,
        eos_token_ids: tuple[int, ...] = (),
        *,
        pauses: bool = False,
    ) -> None:
        self.k, self.max_model_len, self.memory, self.eos_token_ids = k, max_model_len, memory, eos_token_ids
        self._drafter, self._pauses = drafter, pauses
        self._slots: dict[int, _Slot] = {}

    def run(self, plan: StepPlan) -> list[ExpectedRow]:
        """Rows of the plan, in its order. Moves the model."""
        for admission in plan.admissions:
            reach = self.max_model_len + self.k + 1
            stream = continuation(admission.prefill_tokens, reach, self.memory)
            self._slots[admission.slot] = _Slot(admission, stream, len(admission.prefill_tokens), drafts=[-1] * self.k)
        return [self._run_row(row, plan.proposes or not self._pauses) for row in plan.rows]

    def prefilling(self, plan: StepPlan) -> bool:
        """Before `run`: is some row of the plan still inside its prefill? What decides the family of the step's graph."""
        computed = {slot: (state.num_computed, len(state.admission.prefill_tokens)) for slot, state in self._slots.items()}
        computed.update({admission.slot: (0, len(admission.prefill_tokens)) for admission in plan.admissions})
        return any(computed[row.slot][0] < computed[row.slot][1] for row in plan.rows)

    def running(self) -> Mapping[str, bool]:
        """Request id -> has it decoded, for those in a slot that have not ended."""
        return {
            state.admission.request_id: state.num_computed >= len(state.admission.prefill_tokens)
            for state in self._slots.values()
            if state.finished == NOT_FINISHED
        }

    def _run_row(self, row: ScheduledRow, proposes: bool) -> ExpectedRow:
        slot = self._slots[row.slot]
        prefill_len = len(slot.admission.prefill_tokens)
        prefills = slot.num_computed < prefill_len
        drafts = [] if prefills else slot.drafts[: row.num_drafts]
        position = slot.num_computed + row.num_tokens - 1 if prefills else slot.total_len - 1
        fed = (slot.stream[position], *drafts)
        num_drafts = sum(draft >= 0 for draft in drafts)
        tokens: list[int] = []
        if slot.finished == NOT_FINISHED:
            if not prefills or slot.num_computed + row.num_tokens == prefill_len:
                tokens = self._emit(slot, drafts)
            slot.num_computed = slot.total_len - 1 if not prefills or tokens else slot.num_computed + row.num_tokens
        silent = not tokens or slot.finished != NOT_FINISHED or not proposes
        slot.drafts = [-1] * self.k if silent else self._drafter(slot.stream[: slot.total_len], row.slot)
        return ExpectedRow(row.request_id, tuple(tokens), num_drafts, slot.finished, position, fed)

    def _emit(self, slot: _Slot, drafts: Sequence[int]) -> list[int]:
        """The accepted drafts and one more, cut at a stop token or at the limit."""
        admission = slot.admission
        ends = ends_of(admission.params, self.eos_token_ids)
        tokens: list[int] = []
        for draft in [*drafts, -1]:
            token = slot.stream[slot.total_len]
            tokens.append(token)
            slot.total_len += 1
            armed = slot.total_len >= admission.prompt_len + admission.params.min_tokens
            if armed and token in ends:
                slot.finished = STOPPED_BY_TOKEN
            elif slot.total_len >= admission.max_total_len:
                slot.finished = STOPPED_BY_LENGTH
            if slot.finished != NOT_FINISHED or draft != token:
                break
        return tokens
