"""Scheduler: which requests run in a step. FCFS continuous batching with chunked prefill, one step ahead of the device.

schedule() is called for step N + 1 before update() has seen the result of step N, any number of steps deep. Nothing
here waits: what a decode row will have computed is kept as an upper bound and corrected when its result returns.

Running requests come first, in order of arrival, then waiting ones as budget, slots and blocks allow. As nobody
overtakes, the oldest unfinished request can always run and is never preempted: the scheduler cannot deadlock.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from runtime.batch import SlotPool
from runtime.draft_lengths import DraftLengths, FixedLength
from runtime.errors import CapacityError
from runtime.kv_cache import BlockAllocator
from runtime.metrics import AcceptanceStats
from runtime.plan import (
    NOT_FINISHED,
    STOPPED_BY_LENGTH,
    STOPPED_BY_TOKEN,
    FinishReason,
    StepPlan,
    StepResult,
    TokenUpdate,
)
from runtime.request import Request, RequestState
from runtime.request_queue import RequestQueue
from runtime.scheduler_limits import SchedulerCounters, SchedulerLimits
from runtime.step_draft import TOKENS_AHEAD, RowReach, StepDraft

logger = logging.getLogger(__name__)

_FINISH_REASONS: dict[int, FinishReason] = {STOPPED_BY_TOKEN: "stop", STOPPED_BY_LENGTH: "length"}


class Scheduler:
    """Plans steps and applies their results. One owner calls it, from one thread.

    max_model_len is the smaller of limits.max_model_len and the KV pool; the device must clamp at this value. A
    request that outgrows the pool then ends exactly at the last position that the pool can hold, with finish_reason
    "length", the same with and without speculation, instead of somewhere before it for want of room for k drafts.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: BlockAllocator,
        clock: Callable[[], float] = time.monotonic,
        lengths: DraftLengths | None = None,
    ) -> None:
        self.limits = limits
        self.lengths: DraftLengths = FixedLength(limits.num_speculative_tokens) if lengths is None else lengths
        self.blocks = blocks
        self.slots = SlotPool(limits.max_num_seqs)
        self.max_model_len = min(limits.max_model_len, blocks.num_positions)
        self.counters = SchedulerCounters()
        self.acceptance = AcceptanceStats(limits.num_speculative_tokens, limits.synthetic_acceptance)
        self._reach = RowReach(limits, self.max_model_len)
        self._queue = RequestQueue(self.slots, blocks, replay=limits.replay)
        self._clock = clock
        self._in_flight: deque[StepPlan] = deque()
        self._steps = itertools.count()
        # How many drafts the rows of the next step verify is settled a step ahead: a step that none follow need not draft.
        self._next_num_drafts = self.lengths.choose(1)
        if self.max_model_len < limits.max_model_len:
            logger.warning(
                "max_model_len = %d is above the %d positions of the KV pool (num_blocks = %d, block_size = %d): "
                "requests end at %d tokens",
                limits.max_model_len, blocks.num_positions, blocks.num_blocks, blocks.block_size, self.max_model_len,
            )

    def add(self, request: Request) -> None:
        """Queue a request. CapacityError when it can never produce a token; RuntimeError for an id in use."""
        prompt_len = len(request.prompt_token_ids)
        if prompt_len + 1 > self.limits.max_model_len:
            raise CapacityError(
                f"prompt of request {request.request_id!r} = {prompt_len} tokens: with one output token that is above "
                f"max_model_len = {self.limits.max_model_len}; shorten the prompt or raise max_model_len"
            )
        if prompt_len + 1 > self.max_model_len:
            raise CapacityError(
                f"prompt of request {request.request_id!r} = {prompt_len} tokens: with one output token it needs "
                f"{self.blocks.blocks_for(prompt_len + 1)} KV blocks of {self.blocks.block_size} positions, but "
                f"num_blocks = {self.blocks.num_blocks}; shorten the prompt or raise num_blocks"
            )
        self._queue.add(request, self.limits.num_speculative_tokens, self.limits.synthetic_acceptance)
        request.max_total_len = self._reach.max_total_len(request)

    def cancel(self, request_id: str) -> bool:
        """End a request in any state. False when it has ended before: a cancel may cross its last token."""
        return self.finish(request_id, "cancelled")

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request from the host side (a stop string, a cancel). Its frames in flight are dropped on return."""
        request = self._queue.get(request_id)
        if request is not None:
            self._queue.retire(request, reason)
        return request is not None

    @property
    def has_unfinished(self) -> bool:
        return len(self._queue) > 0

    @property
    def num_waiting(self) -> int:
        return len(self._queue.waiting)

    @property
    def num_running(self) -> int:
        return len(self._queue.running)

    @property
    def num_steps_in_flight(self) -> int:
        """Plans that schedule() gave out and update() has not seen."""
        return len(self._in_flight)

    def schedule(self) -> StepPlan | None:
        """The next step, to be launched at once; None when nothing can run before a step in flight returns.

        With no step in flight and a request unfinished there is always a plan.
        """
        draft = StepDraft(self.limits.max_num_batched_tokens, self._next_num_drafts, self._reach)
        # A running request that lacks a block must not see it go to one that arrived later.
        if self._schedule_running(draft):
            self._admit_waiting(draft)
        if not draft.rows:
            return None
        if draft.block_writes:
            self._cover_ahead(draft)
        self._next_num_drafts = self.lengths.choose(len(draft.rows))
        plan = draft.seal(next(self._steps), proposes=self._next_num_drafts > 0)
        self._in_flight.append(plan)
        return plan

    def _schedule_running(self, draft: StepDraft) -> bool:
        """Rows of running requests by arrival. False when blocks ran out, whether a preemption helped or not."""
        enough_blocks, reach = True, self._reach.of_row(draft.num_drafts)
        for request in tuple(self._queue.running):
            if request.state is not RequestState.RUNNING:
                break  # it was preempted for an earlier one in this loop, and so were all behind it
            # Each sampling frame in flight yields a token or ends the request: this one is over when they return.
            if request.min_total_len >= request.max_total_len:
                continue
            num_tokens = draft.num_tokens(request)
            # A decode row is 1 + k tokens or none. Trimming its drafts would break the uniform step for the whole
            # batch; a request that skips a step keeps its drafts on the device.
            if num_tokens == 0:
                continue
            # Prefill rows were covered when they were admitted, and nearly all decode rows by earlier steps.
            if request.num_scheduled + reach > request.num_covered and not request.is_prefilling:
                coverage = self._reach.decode_coverage(request, draft.num_drafts)
                if not self.blocks.covers(request.request_id, coverage):
                    if not self.blocks.can_cover(request.request_id, coverage):
                        enough_blocks = False
                        if not self._make_room(request, coverage):
                            break
                    draft.block_writes += self._queue.extend(request, coverage)
            draft.add(request, num_tokens)
        return enough_blocks

    def _admit_waiting(self, draft: StepDraft) -> None:
        while self._queue.waiting and draft.budget > 0 and self.slots.num_free > 0:
            request = self._queue.waiting[0]
            # The whole prefill and the first decode row, though perhaps only a chunk runs now: a prompt is not
            # started that would run out of blocks in the middle of its prefill.
            coverage = min(request.num_tokens + self.limits.query_len, self.max_model_len)
            if not self.blocks.can_cover(request.request_id, coverage):
                return
            admission, block_writes = self._queue.admit(coverage, request.max_total_len)
            draft.admissions.append(admission)
            draft.block_writes += block_writes
            draft.add(request, draft.num_tokens(request))

    def _cover_ahead(self, draft: StepDraft) -> None:
        """Blocks for what rows will need soon, in a step that changes block tables anyway; while half of the pool stays free."""
        for request in self._queue.running:
            coverage = self._reach.decode_coverage(request, draft.num_drafts, TOKENS_AHEAD)
            if self.blocks.missing(request.request_id, coverage) <= self.blocks.num_free - self.blocks.num_blocks // 2:
                draft.block_writes += self._queue.extend(request, coverage)

    def _make_room(self, request: Request, coverage: int) -> bool:
        """Preempt later requests, the latest first, until the pool can cover this one. False when none is left.

        The latest request has nobody to take from: it keeps what it holds and waits. Older ones run on, and either
        end and free blocks or take its own. Alone it always fits, as max_model_len is bounded by the pool.
        """
        while not self.blocks.can_cover(request.request_id, coverage):
            if self._queue.running[-1] is request:
                self.counters.blocked_rows += 1
                return False
            self._queue.preempt_latest()
            self.counters.preemptions += 1
        return True

    def update(self, plan: StepPlan, result: StepResult) -> list[TokenUpdate]:
        """Apply the result of the oldest step in flight; returns what each request gained, in row order.

        Rows whose request has left its slot since (finished, cancelled, preempted) are dropped. RuntimeError when the
        plan is not the oldest in flight (or came twice), or when the result contradicts it.
        """
        if not self._in_flight or self._in_flight[0] is not plan:
            oldest = self._in_flight[0].step if self._in_flight else "none"
            raise RuntimeError(f"result of step {plan.step} cannot be applied: the oldest step in flight is {oldest}")
        result.check_rows(plan)
        self._in_flight.popleft()
        now = self._clock()
        updates = []
        for index, row in enumerate(plan.rows):
            request = self._queue.owner(row)
            if request is None:
                self.counters.stale_rows += 1
                continue
            replayed = request.replays and row.samples
            result.check(index, row, request.num_tokens - replayed, request.max_total_len)
            token_ids = result.tokens(index)
            if result.prompt_logprobs:
                request.prompt_logprobs.update(result.prompt_logprobs.get(index, {}))
            if result.nothing_left and result.nothing_left[index] and not replayed:
                updates.append(self._end_in_front_of(result.nothing_left[index] - 1, request, token_ids, result, index, now))
                continue
            request.collect(row, token_ids, now)
            if row.num_drafts and result.finished[index] == NOT_FINISHED:
                self.lengths.observe(row.num_drafts, len(token_ids) - 1)
            if row.samples and not replayed:
                updates.append(self._emit(request, token_ids, result, index))
        return updates

    def _emit(self, request: Request, token_ids: Sequence[int], result: StepResult, index: int) -> TokenUpdate:
        # Accepted drafts are the emitted tokens - 1, at a stop inside the block as well (see AcceptanceStats).
        num_drafts, finished = int(result.num_drafts[index]), int(result.finished[index])
        if num_drafts:
            for stats in (request.acceptance, self.acceptance):
                stats.add_step(num_drafts, len(token_ids) - 1)
        logprobs = result.logprobs.get(index, ()) if result.logprobs else ()
        if finished == NOT_FINISHED:
            return TokenUpdate(request.request_id, token_ids, None, num_drafts, logprobs)
        reason = _FINISH_REASONS[finished]
        wanted = min(len(request.prompt_token_ids) + request.params.max_tokens, self.limits.max_model_len)
        if reason == "length" and wanted > self.max_model_len:
            self.counters.capacity_limited += 1
        self._queue.retire(request, reason)
        return TokenUpdate(request.request_id, token_ids, reason, num_drafts, logprobs)

    def _end_in_front_of(
        self, place: int, request: Request, token_ids: Sequence[int], result: StepResult, index: int, now: float
    ) -> TokenUpdate:
        """A request that could choose nothing at token `place` of its row: what comes before is output, and it ends.

        Its owner reports it, as a stop string in what comes before may have ended it already."""
        num_drafts, kept = int(result.num_drafts[index]), token_ids[:place]
        if num_drafts:
            for stats in (request.acceptance, self.acceptance):
                stats.add_step(num_drafts, place)
        request.keep(kept, now)
        self._queue.retire(request, "error")
        logprobs = result.logprobs.get(index, ()) if result.logprobs else ()
        return TokenUpdate(request.request_id, kept, "error", num_drafts, logprobs[:place])

    def roll_back(self, update: TokenUpdate, kept: int) -> None:
        """A stop string ended a request inside a step: of the tokens of `update` only the first `kept` count in the totals."""
        self.acceptance.shorten_step(update.num_drafts, update.num_accepted, max(kept - 1, 0))

    def check_integrity(self) -> None:
        """RuntimeError unless slots, blocks, queue order and frames in flight agree with each other."""
        self._queue.check_integrity(self._in_flight)

    def __str__(self) -> str:
        return f"Scheduler({self._queue}, steps_in_flight={len(self._in_flight)}, {self.counters})"
