"""RequestQueue: who waits, who runs, and which slot and blocks each running request holds."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable

from runtime.batch import SlotPool
from runtime.kv_cache import BlockAllocator
from runtime.plan import Admission, BlockWrite, FinishReason, ScheduledRow, StepPlan
from runtime.request import Request, RequestState

logger = logging.getLogger(__name__)


class RequestQueue:
    """Unfinished requests in order of arrival: `running` first, `waiting` behind, no overtaking.

    Every running request arrived before every waiting one: admission takes the head of `waiting`, preemption puts the
    tail of `running` back there. A request holds a slot and blocks exactly while it runs.

    replay: sampled requests that come back replay their last token (Request.replays).
    """

    def __init__(self, slots: SlotPool, blocks: BlockAllocator, *, replay: bool = False) -> None:
        self.slots = slots
        self.blocks = blocks
        self._replay = replay
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._arrivals = itertools.count()
        # One counter for all requests: an id may be used again after its request ended, its epochs never are.
        self._epochs = itertools.count(1)

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of this id."""
        return self._requests.get(request_id)

    def owner(self, row: ScheduledRow) -> Request | None:
        """The request that a returned row belongs to; None when it has left the slot since: the row is stale."""
        request = self._requests.get(row.request_id)
        return request if request is not None and request.epoch == row.epoch else None

    def add(self, request: Request, num_speculative_tokens: int, synthetic_acceptance: float | None = None) -> None:
        """RuntimeError for an id in use or a request that was added before."""
        if request.request_id in self._requests:
            raise RuntimeError(f"request id {request.request_id!r} is in use: wait for it to end or choose another")
        request.enqueue(next(self._arrivals), num_speculative_tokens, synthetic_acceptance)
        self._requests[request.request_id] = request
        self.waiting.append(request)

    def admit(self, coverage: int, max_total_len: int) -> tuple[Admission, list[BlockWrite]]:
        """Move the oldest waiting request into a slot, with blocks for `coverage` positions."""
        request = self.waiting.popleft()
        slot = self.slots.acquire()
        new_blocks = self.blocks.allocate(request.request_id, coverage)
        request.num_covered = self.blocks.covered(request.request_id)
        request.admit(slot, next(self._epochs), replay=self._replay)
        self.running.append(request)
        admission = Admission(
            request_id=request.request_id,
            slot=slot,
            epoch=request.epoch,
            prefill_tokens=(*request.prompt_token_ids, *request.output_token_ids)[: request.prefill_len],
            prompt_len=len(request.prompt_token_ids),
            max_total_len=max_total_len,
            params=request.params,
            next_token=request.output_token_ids[-1] if request.replays else -1,
        )
        return admission, [BlockWrite(slot, column, block) for column, block in new_blocks]

    def extend(self, request: Request, coverage: int) -> list[BlockWrite]:
        """Blocks for `coverage` positions of a running request."""
        assert request.slot is not None
        new_blocks = self.blocks.extend(request.request_id, coverage)
        request.num_covered = self.blocks.covered(request.request_id)
        return [BlockWrite(request.slot, column, block) for column, block in new_blocks]

    def preempt_latest(self) -> None:
        """Recompute later: blocks and slot are free at once, also for rows of the step that is being planned.

        Frames of the victim that are queued may still write its old blocks and slot; the new owner's writes are
        queued behind them on the same stream. Tokens in those frames are dropped on return, by epoch, and made again.
        """
        victim = self.running[-1]
        self._release(victim)
        victim.preempt(next(self._epochs))
        self.waiting.appendleft(victim)
        logger.debug("preempted %s", victim)

    def retire(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state and give back what it holds."""
        if request.state is RequestState.RUNNING:
            self._release(request)
        else:
            self.waiting.remove(request)
        request.finish(reason, next(self._epochs))
        del self._requests[request.request_id]

    def _release(self, request: Request) -> None:
        assert request.slot is not None
        self.slots.release(request.slot)
        self.blocks.free(request.request_id)
        self.running.remove(request)

    def check_integrity(self, in_flight: Iterable[StepPlan]) -> None:
        """RuntimeError unless slots, blocks, queue order and frames in flight agree with each other."""
        self.blocks.check_integrity()
        self.slots.check_integrity()
        arrivals = [request.arrival_order for request in (*self.running, *self.waiting)]
        frames = {request.request_id: 0 for request in self.running}
        for plan in in_flight:
            for row in plan.rows:
                if self.owner(row) is not None:
                    frames[row.request_id] += 1
        agrees = {
            "slots": {request.slot for request in self.running} == self.slots.held,
            "blocks": sorted(self.blocks.owners()) == sorted(frames),
            "arrival order": arrivals == sorted(arrivals),
            "frames in flight": all(request.frames_in_flight == frames[request.request_id] for request in self.running),
            "requests": len(self) == len(self.running) + len(self.waiting),
        }
        if not all(agrees.values()):
            broken = ", ".join(name for name, holds in agrees.items() if not holds)
            raise RuntimeError(f"request accounting is broken: {broken}; {self}")

    def __str__(self) -> str:
        return (
            f"RequestQueue(running={[str(request) for request in self.running]}, "
            f"waiting={[str(request) for request in self.waiting]}, "
            f"free_slots={self.slots.num_free}, free_blocks={self.blocks.num_free})"
        )
