"""PlanExecutor: a toy device that runs StepPlans with exact device semantics and checks every cache position it touches.

Target: next(prefix) = (7 * last + 3 * len(prefix)) mod 31 + 1. The drafter is scripted by position: right, wrong, or no
draft. Steps run in launch order, which is all that one compute stream promises; lateness is the caller's, by when it
collects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.kv_cache import BlockAllocator
from runtime.plan import Admission, ScheduledRow, StepPlan, StepResult, TokenUpdate
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.scheduler import Scheduler
from runtime.scheduler_limits import SchedulerLimits

POISON = -7
Script = Callable[[int], str]  # position of a draft -> "A" right, "R" wrong, "-" no draft from here on


def next_token(prefix: Sequence[int]) -> int:
    return (7 * prefix[-1] + 3 * len(prefix)) % 31 + 1


def sequential_decode(prompt: Sequence[int], params: SamplingParams, max_model_len: int) -> tuple[list[int], str]:
    """The oracle: one token at a time, no speculation, no batch."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(tokens))
        output = tokens[len(prompt) :]
        if output[-1] in params.stop_token_ids:
            return output, "stop"
        if len(output) == params.max_tokens or len(tokens) == max_model_len:
            return output, "length"


def always(letter: str) -> Script:
    return lambda position: letter


def mixed(seed: int) -> Script:
    """Right, wrong and missing drafts in a fixed but irregular order."""

    def script(position: int) -> str:
        value = (position * 2654435761 + seed * 40503) % 2**32 >> 16
        return "AAAAAARR-A"[value % 10]

    return script


@dataclass
class Slot:
    """Device state of one slot."""

    admission: Admission
    table: list[int]
    history: list[int]
    num_computed: int = 0
    drafts: list[int] = field(default_factory=list)
    finished: int = 0


class PlanExecutor:
    """Executes plans one after the other. AssertionError on any touch outside the row's own blocks."""

    def __init__(self, scheduler: Scheduler, script: Script) -> None:
        self.limits = scheduler.limits
        self.max_model_len = scheduler.max_model_len
        self.block_size = scheduler.blocks.block_size
        num_positions = scheduler.blocks.num_positions
        self.k = scheduler.limits.num_speculative_tokens
        self.script = script
        self.slots: dict[int, Slot] = {}
        self.block_owner: dict[int, int] = {}  # block -> epoch of the admission that it was given to last
        self.target_kv = [POISON] * num_positions
        self.draft_kv = [POISON] * num_positions
        self.num_steps = 0

    def run(self, plan: StepPlan) -> StepResult:
        self._check_plan(plan)
        for admission in plan.admissions:
            columns = -(-self.limits.max_model_len // self.block_size)
            self.slots[admission.slot] = Slot(
                admission, [-1] * columns, list(admission.prefill_tokens), drafts=[-1] * self.k
            )
        for write in plan.block_writes:
            slot = self.slots[write.slot]
            assert slot.table[write.column] == -1, "a table only grows"
            slot.table[write.column] = write.block
            self.block_owner[write.block] = slot.admission.epoch
        results = [self._run_row(row) for row in plan.rows]
        self.num_steps += 1
        sampled, num_drafts, finished = (list(column) for column in zip(*results, strict=True))
        return StepResult(sampled, [len(tokens) for tokens in sampled], num_drafts, finished)

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.step == self.num_steps
        assert 0 < plan.num_tokens == sum(row.num_tokens for row in plan.rows) <= self.limits.max_num_batched_tokens
        assert len({row.slot for row in plan.rows}) == len(plan.rows) <= self.limits.max_num_seqs
        assert len({write.block for write in plan.block_writes}) == len(plan.block_writes)
        assert len({(write.slot, write.column) for write in plan.block_writes}) == len(plan.block_writes)
        prefills = [row.is_prefilling for row in plan.rows]
        assert prefills == sorted(prefills), "decode rows stand first"
        assert plan.query_len == (None if any(prefills) else 1 + self.k)

    def _run_row(self, row: ScheduledRow) -> tuple[list[int], int, int]:
        """-> sampled ids, valid drafts, finished."""
        slot = self.slots[row.slot]
        assert slot.admission.epoch == row.epoch
        assert slot.admission.request_id == row.request_id
        prefill_len, start = len(slot.admission.prefill_tokens), slot.num_computed
        if row.is_prefilling:
            assert start == row.start_upper
            assert start + row.num_tokens <= prefill_len
            assert row.num_drafts == 0
            assert row.samples == (start + row.num_tokens == prefill_len)
            fed = slot.history[start : start + row.num_tokens]
        else:
            assert start <= row.start_upper
            assert start == len(slot.history) - 1
            assert row.samples
            assert row.num_drafts == self.k
            assert row.num_tokens == 1 + self.k
            fed = [slot.history[-1], *slot.drafts]
        fed = fed[: self.max_model_len - start]
        self._store(self.target_kv, slot, start, fed)
        if slot.finished:
            return [], 0, slot.finished
        if not row.samples:
            slot.num_computed += row.num_tokens
            return [], 0, 0
        sampled, num_drafts = self._accept(slot, start, fed, 0 if row.is_prefilling else 1)
        slot.history += sampled
        slot.num_computed = len(slot.history) - 1
        if not slot.finished:
            self._propose(slot)
        return sampled, num_drafts, slot.finished

    def _accept(self, slot: Slot, start: int, fed: list[int], first_draft: int) -> tuple[list[int], int]:
        """Greedy walk over what the cache holds, so that a damaged cache shows in the tokens."""
        drafts = fed[first_draft:] if first_draft else []
        end = start + len(fed) - len(drafts)
        prefix = [self.target_kv[self._address(slot, position)] for position in range(end)]
        assert prefix == slot.history[:end], "the cache of a request was overwritten or never written"
        admission = slot.admission
        sampled: list[int] = []
        for draft in [*drafts, None]:
            sampled.append(next_token(prefix))
            total = len(slot.history) + len(sampled)
            slot.finished = 1 if sampled[-1] in admission.params.stop_token_ids else 2 * (total == admission.max_total_len)
            if slot.finished or draft != sampled[-1]:
                break
            prefix.append(draft)
        return sampled, sum(draft >= 0 for draft in drafts)

    def _propose(self, slot: Slot) -> None:
        """k drafts behind the anchor; the drafter's own cache is written through the same table."""
        position, tokens = slot.num_computed, list(slot.history)
        slot.drafts = []
        for place in range(position + 1, position + 1 + self.k):
            letter = self.script(place) if place < self.max_model_len and -1 not in slot.drafts else "-"
            token = next_token(tokens)
            tokens.append(token)
            slot.drafts.append({"A": token, "R": token % 31 + 1, "-": -1}[letter])
        if self.k:
            written = [slot.history[-1], *slot.drafts][: self.max_model_len - position]
            self._store(self.draft_kv, slot, position, written)

    def _store(self, cache: list[int], slot: Slot, start: int, tokens: list[int]) -> None:
        for position, token in enumerate(tokens, start):
            cache[self._address(slot, position)] = token

    def _address(self, slot: Slot, position: int) -> int:
        block = slot.table[position // self.block_size]
        assert block >= 0, f"position {position} lies beyond the block table of {slot.admission.request_id}"
        assert self.block_owner[block] == slot.admission.epoch, f"block {block} belongs to another request by now"
        return block * self.block_size + position % self.block_size


class Loop:
    """Scheduler and executor with up to `depth` steps in flight when the next one is scheduled."""

    def __init__(
        self,
        *,
        k: int = 0,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 4,
        max_model_len: int = 64,
        max_num_batched_tokens: int = 64,
        script: Script | None = None,
    ) -> None:
        limits = SchedulerLimits(max_num_seqs, max_model_len, max_num_batched_tokens, k)
        self.time = 0.0
        self.scheduler = Scheduler(limits, BlockAllocator(num_blocks, block_size), clock=lambda: self.time)
        self.device = PlanExecutor(self.scheduler, script or mixed(1))
        self.requests: dict[str, Request] = {}
        self.plans: list[StepPlan] = []
        self.streamed: dict[str, list[int]] = {}
        self._results: deque[tuple[StepPlan, StepResult]] = deque()

    def add(self, request_id: str, prompt: Sequence[int], max_tokens: int, stop: Sequence[int] = ()) -> Request:
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=tuple(stop))
        request = Request(request_id, prompt, params, arrival_time=self.time)
        self.scheduler.add(request)
        self.requests[request_id] = request
        self.streamed[request_id] = []
        return request

    def launch(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is None:
            assert self._results or not self.scheduler.has_unfinished, "no progress with nothing in flight"
            return None
        self._results.append((plan, self.device.run(plan)))
        self.plans.append(plan)
        self.scheduler.check_integrity()
        return plan

    def collect(self) -> list[TokenUpdate]:
        self.time += 1.0
        updates = self.scheduler.update(*self._results.popleft())
        for update in updates:
            self.streamed[update.request_id] += update.token_ids
        self.scheduler.check_integrity()
        return updates

    @property
    def in_flight(self) -> int:
        return len(self._results)

    def run(self, depth: int = 1) -> None:
        """Until everything has ended: depth 0 waits for each step, depth 1 schedules N + 1 before N is collected."""
        while self.scheduler.has_unfinished or self._results:
            launched = self.launch() is not None
            while len(self._results) > (depth if launched else 0):
                self.collect()
        self.check_end()

    def check_end(self) -> None:
        """Every token as the oracle says, and nothing is held any more."""
        for request in self.requests.values():
            expected, reason = sequential_decode(
                request.prompt_token_ids, request.params, self.scheduler.max_model_len
            )
            assert self.streamed[request.request_id] == request.output_token_ids
            if request.finish_reason == "cancelled":
                assert request.output_token_ids == expected[: len(request.output_token_ids)]
            else:
                assert (request.output_token_ids, request.finish_reason) == (expected, reason)
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_blocks
        assert self.scheduler.slots.num_free == self.scheduler.limits.max_num_seqs
