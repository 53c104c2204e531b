"""StepPlan and StepResult: all that passes between the scheduler and the runner for one step.

A plan is made before the results of the steps in flight are known. What it says about decode rows is therefore a
HostUpperBound: it may size a launch or a block table, and never becomes an index or a length on the device, which
knows the exact value. What it says about prefill rows is HostExact, because a prefill never rejects a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from runtime.logprobs import TokenLogprobs

FinishReason = Literal["stop", "length", "cancelled", "error"]
"""error: nothing could be chosen, because the logits were all NaN or masked; what stands before it is output."""

# Codes in StepResult.finished, written by the device.
NOT_FINISHED = 0
STOPPED_BY_TOKEN = 1
STOPPED_BY_LENGTH = 2


class ScheduledRow(NamedTuple):
    """One request in one step. Rows of a step stand in the order of runtime.batch.order_rows."""

    request_id: str
    epoch: int  # the admission that this row belongs to; a result with another epoch is stale and dropped
    slot: int
    num_tokens: int  # token rows of this step: a chunk of the prefill, or 1 + k for a decode row
    num_drafts: int  # k for a decode row (valid or not is known to the device only), 0 for a prefill row
    is_prefilling: bool  # the row begins inside its prefill, exact
    samples: bool  # the row yields tokens: a decode row, or the chunk that reaches the end of its prefill
    start_upper: int  # position of the first token: exact for a prefill row, an upper bound for a decode row


@dataclass(frozen=True)
class Admission:
    """A request that enters a slot. The runner writes every per-slot field from this, whatever the slot held before."""

    request_id: str
    slot: int
    epoch: int
    prefill_tokens: tuple[int, ...]  # prompt, and after a preemption the tokens already returned
    prompt_len: int
    max_total_len: int  # the request ends when prompt + output reach this many tokens
    params: SamplingParams
    next_token: int = -1  # the last token already returned, where it is not among prefill_tokens: it is to be emitted once more


class BlockWrite(NamedTuple):
    """block_table[slot, column] = block. Columns that no write of the present owner named hold old values."""

    slot: int
    column: int
    block: int


@dataclass(frozen=True)
class StepPlan:
    """One step. Apply admissions, then block_writes, then run the rows."""

    step: int  # 0, 1, 2, ... in launch order; results are collected in the same order
    rows: tuple[ScheduledRow, ...]
    admissions: tuple[Admission, ...]
    block_writes: tuple[BlockWrite, ...]  # each block and each (slot, column) at most once: any order, at most num_blocks
    num_tokens: int  # sum of the rows' num_tokens, at most max_num_batched_tokens
    query_len: int | None  # 1 + k when every row is a decode row, None for a step that prefills
    proposes: bool = True  # the next step verifies drafts; False: a drafter only keeps up with the text


@dataclass(frozen=True)
class StepResult:
    """What the device did in one step, row by row of its plan (R rows)."""

    sampled: Sequence[Sequence[int]]  # [R][>= num_sampled[r]] token ids, truncated at a stop by num_sampled
    num_sampled: Sequence[int]  # [R] 0 for a chunk inside the prefill, else 1 .. 1 + num_drafts[r]
    num_drafts: Sequence[int]  # [R] valid drafts that were verified; placeholders do not count
    finished: Sequence[int]  # [R] NOT_FINISHED, STOPPED_BY_TOKEN or STOPPED_BY_LENGTH
    nothing_left: Sequence[int] = ()  # [R] 1 + the place of the first token that stands for nothing, 0 = none; () = none anywhere
    logprobs: Mapping[int, list[TokenLogprobs]] = field(default_factory=dict)  # by row: of its tokens, where they were asked for
    prompt_logprobs: Mapping[int, Mapping[int, TokenLogprobs]] = field(default_factory=dict)  # by row and position in its prompt

    def tokens(self, index: int) -> list[int]:
        """Tokens that row `index` yielded."""
        return list(map(int, self.sampled[index][: self.num_sampled[index]]))

    def check_rows(self, plan: StepPlan) -> None:
        """RuntimeError unless every column has a value for each row of the plan."""
        sizes = [len(column) for column in (self.sampled, self.num_sampled, self.num_drafts, self.finished)]
        if any(size != len(plan.rows) for size in sizes):
            raise RuntimeError(f"result of step {plan.step} has columns of {sizes} rows, its plan {len(plan.rows)}")

    def check(self, index: int, row: ScheduledRow, total_len: int, max_total_len: int) -> None:
        """RuntimeError when what the device did with a row contradicts what the host knows of it.

        A missing count is not a zero, and a length that the two sides see differently shows here, not in the text.
        total_len: tokens of the request before this row.
        """
        num_sampled, num_drafts, finished = self.num_sampled[index], self.num_drafts[index], self.finished[index]
        total_len += num_sampled
        least, most = (1, 1 + num_drafts) if row.samples else (0, 0)
        counts_fit = least <= num_sampled <= most and 0 <= num_drafts <= row.num_drafts
        if total_len < max_total_len:
            end_fits = finished == NOT_FINISHED or (row.samples and finished == STOPPED_BY_TOKEN)
        else:
            end_fits = total_len == max_total_len and finished in (STOPPED_BY_TOKEN, STOPPED_BY_LENGTH)
        if not counts_fit or not end_fits or len(self.sampled[index]) < num_sampled:
            raise RuntimeError(
                f"device result contradicts the plan: num_sampled = {num_sampled} of {len(self.sampled[index])} ids, "
                f"num_drafts = {num_drafts}, finished = {finished}, total_len = {total_len}, "
                f"max_total_len = {max_total_len}, {row}"
            )


class TokenUpdate(NamedTuple):
    """Tokens that one request gained from one step, and why it ended, if it did."""

    request_id: str
    token_ids: Sequence[int] = ()
    finish_reason: FinishReason | None = None
    num_drafts: int = 0  # valid drafts that the step verified for it
    logprobs: Sequence[TokenLogprobs] = ()  # of each token, where the request asked for them

    @property
    def num_accepted(self) -> int:
        """Drafts that count as accepted: all tokens but the one behind the drafts, which a request that ends in front of nothing
        lacks."""
        return len(self.token_ids) if self.finish_reason == "error" else max(len(self.token_ids) - 1, 0)
