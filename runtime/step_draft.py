"""StepDraft: a step while the scheduler fills it, and how far its rows may reach."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.batch import QueryRow, order_rows, uniform_query_length
from runtime.plan import Admission, BlockWrite, ScheduledRow, StepPlan
from runtime.request import Request
from runtime.scheduler_limits import SchedulerLimits

TOKENS_AHEAD = 64
"""Tokens of each row that a step covers beyond what it has to, where it changes block tables at all. That costs host and device a
copy, whichever row it is for, and rows of different lengths would need a block in five steps of six."""


class RowReach:
    """Upper bounds of positions, for requests whose rows in flight the host knows no result of.

    Args:
        max_model_len: no position at or beyond it is ever written.
    """

    def __init__(self, limits: SchedulerLimits, max_model_len: int) -> None:
        self._limits, self._max_model_len = limits, max_model_len

    def max_total_len(self, request: Request) -> int:
        """Tokens that end the request at the latest."""
        return min(len(request.prompt_token_ids) + request.params.max_tokens, self._max_model_len)

    def start_upper(self, request: Request, ahead: int = 0) -> int:
        """Upper bound of the position at which the next row begins, or one that begins `ahead` tokens later; exact in a prefill.

        A decode row begins at its total length - 1 and the total never passes max_total_len, whatever is in flight.
        """
        return min(request.num_scheduled + ahead, request.max_total_len - 1)

    def decode_coverage(self, request: Request, num_drafts: int, ahead: int = 0) -> int:
        """Positions that the block table must reach before a decode row with `num_drafts` = k drafts may be launched, now or where
        it begins `ahead` tokens later.

        Let s be the upper bound of the row's first position; it counts 1 + k for each frame in flight, of which the
        host has seen nothing. The verify row writes s .. s + k. The proposer that runs behind it in the same step
        begins at most at s + k + 1 (all accepted) and writes an anchor and the most drafts that a step verifies from
        there, through the same table when it keeps K/V of its own. That makes s + 2 (1 + k) where k never changes, or
        s + 1 without drafts. The device writes nothing at or past max_model_len.
        """
        return min(self.start_upper(request, ahead) + self.of_row(num_drafts), self._max_model_len)

    def of_row(self, num_drafts: int) -> int:
        """Positions from where a decode row begins to the last that it and the proposer behind it may write."""
        return 1 + num_drafts + self._limits.query_len if self._limits.num_speculative_tokens else 1


@dataclass
class StepDraft:
    """Rows, and what has to be done before they run.

    Attributes:
        budget: tokens that rows may still take.
        num_drafts: k of the decode rows.
        reach: where rows begin.
        states: of the rows, which dispatch decides by.
    """

    budget: int
    num_drafts: int
    reach: RowReach
    rows: list[ScheduledRow] = field(default_factory=list)
    states: list[QueryRow] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    block_writes: list[BlockWrite] = field(default_factory=list)

    def num_tokens(self, request: Request) -> int:
        """Of the row that `request` would get: what is left of its prefill, or one and k drafts; 0 when the budget does not do."""
        if request.is_prefilling:
            return min(request.prefill_len - request.num_scheduled, self.budget)
        return 1 + self.num_drafts if 1 + self.num_drafts <= self.budget else 0

    def add(self, request: Request, num_tokens: int) -> None:
        """A row of that many tokens, which from now on counts as launched."""
        slot, is_prefilling, start = request.slot, request.is_prefilling, self.reach.start_upper(request)
        assert slot is not None
        num_drafts = 0 if is_prefilling else self.num_drafts
        samples = not is_prefilling or request.num_scheduled + num_tokens == request.prefill_len
        row = ScheduledRow(request.request_id, request.epoch, slot, num_tokens, num_drafts, is_prefilling, samples, start)
        request.launch(row)
        self.budget -= num_tokens
        self.rows.append(row)
        self.states.append(QueryRow(start, request.prefill_len, num_tokens))

    def seal(self, step: int, *, proposes: bool) -> StepPlan:
        """The plan of step number `step`. proposes: the next step verifies drafts."""
        decode_len = 1 + self.num_drafts
        query_len = uniform_query_length(self.states, decode_len)
        # Rows that are all alike stand in order.
        rows = self.rows if query_len is not None else order_rows(self.rows, decode_len, lambda row: row)
        return StepPlan(
            step=step,
            rows=tuple(rows),
            admissions=tuple(self.admissions),
            block_writes=tuple(self.block_writes),
            num_tokens=sum([row.num_tokens for row in rows]),
            query_len=query_len,
            proposes=proposes,
        )
