"""Request: one prompt on its way through the scheduler, with its state machine and what the host knows of it.

    WAITING ---admit---> RUNNING ---preempt---> PREEMPTED ---admit---> RUNNING
       any state but FINISHED ---finish(stop | length | cancelled | error)---> FINISHED

A PREEMPTED request stands in the waiting queue like a WAITING one; it has given back its slot and its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

from runtime.errors import PromptError
from runtime.metrics import AcceptanceStats, RequestTimes
from runtime.plan import FinishReason, ScheduledRow, TokenUpdate
from runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from runtime.logprobs import TokenLogprobs


class RequestState(Enum):
    """Where a request stands; its ways are at the head of this file."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """One request. Only the scheduler changes it; the engine reads output_token_ids, finish_reason, times, acceptance.

    prompt_token_ids   token ids, at least one (PromptError otherwise)
    output_token_ids   tokens that were collected; what is in flight is not here
    prefill_len        tokens known at the last admission: prompt + output_token_ids of that time; HostExact
    replays            of those the last was left out: the row that ends the prefill emits it once more, and drafts follow it as
                       they did before the preemption
    max_total_len      it ends at this length at the latest; set by the scheduler that it is added to
    num_scheduled      HostUpperBound of the device's num_computed: its exact value + what is in flight at its largest.
                       Below prefill_len it is exact. Nothing in flight: exact.
    num_covered        positions that its blocks are enough for, while it has a slot
    epoch              names the admission; the scheduler gives a new one at each admission and preemption
    frames_in_flight   rows of the present admission that were launched and not collected
    sampling_in_flight of those, the ones that yield tokens: at least one each, unless the request ends before

    The state machine raises RuntimeError on an illegal transition.
    """

    def __init__(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams, *, arrival_time: float = 0.0
    ) -> None:
        if len(prompt_token_ids) == 0:
            raise PromptError(f"prompt of request {request_id!r} has 0 tokens: at least 1 is needed")
        self.request_id = request_id
        self.prompt_token_ids = tuple(int(token) for token in prompt_token_ids)
        self.params = params
        self.output_token_ids: list[int] = []
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.slot: int | None = None
        self.epoch = 0
        self.prefill_len = 0
        self.replays = False
        self.max_total_len = 0
        self.num_scheduled = 0
        self.num_covered = 0
        self.frames_in_flight = 0
        self.sampling_in_flight = 0
        self.num_preemptions = 0
        self.arrival_order = -1
        self.acceptance = AcceptanceStats(0)
        # By position in the prompt, where they were asked for; nothing precedes the first token.
        self.prompt_logprobs: dict[int, TokenLogprobs] = {}
        self.arrival_time = arrival_time
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and collected output, in tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def min_total_len(self) -> int:
        """Least total length once everything in flight has returned, if no stop token ends the request before."""
        known_already = self.replays and self.sampling_in_flight > 0
        return self.num_tokens + self.sampling_in_flight - known_already

    @property
    def is_prefilling(self) -> bool:
        """The next row begins inside the prefill. Exact: a prefill never rejects."""
        return self.num_scheduled < self.prefill_len

    @property
    def is_finished(self) -> bool:
        return self.state is RequestState.FINISHED

    @property
    def times(self) -> RequestTimes:
        return RequestTimes(
            self.arrival_time, self.first_token_time, self.last_token_time, len(self.output_token_ids)
        )

    def enqueue(self, arrival_order: int, num_speculative_tokens: int, synthetic_acceptance: float | None = None) -> None:
        """Enter a scheduler's queue for the first time."""
        if self.arrival_order >= 0:
            raise RuntimeError(f"request {self.request_id!r} was added before: make a new Request for each run")
        self._require("enqueue", RequestState.WAITING)
        self.arrival_order = arrival_order
        self.acceptance = AcceptanceStats(num_speculative_tokens, synthetic_acceptance)

    def admit(self, slot: int, epoch: int, *, replay: bool = False) -> None:
        """Enter a slot. replay: a sampled request that has output replays the last token of it."""
        self._require("admit", RequestState.WAITING, RequestState.PREEMPTED)
        self.state = RequestState.RUNNING
        self.slot = slot
        self.epoch = epoch
        self.replays = replay and self.params.temperature > 0 and len(self.output_token_ids) > 0
        self.prefill_len = self.num_tokens - self.replays
        self.num_scheduled = 0

    def preempt(self, epoch: int) -> None:
        """Give up the slot. Tokens in flight are forgotten here and made again after the next admission."""
        self._require("preempt", RequestState.RUNNING)
        self.state = RequestState.PREEMPTED
        self.num_preemptions += 1
        self._leave_slot(epoch)

    def finish(self, reason: FinishReason, epoch: int) -> None:
        self._require("finish", RequestState.WAITING, RequestState.RUNNING, RequestState.PREEMPTED)
        self.state = RequestState.FINISHED
        self.finish_reason = reason
        self._leave_slot(epoch)

    def launch(self, row: ScheduledRow) -> None:
        """Account for a row that goes in flight: the upper bound moves by all of its tokens."""
        if self.state is not RequestState.RUNNING:
            self._refuse("launch", RequestState.RUNNING)
        self.num_scheduled += row.num_tokens
        self.frames_in_flight += 1
        self.sampling_in_flight += row.samples

    def collect(self, row: ScheduledRow, token_ids: Sequence[int], now: float) -> None:
        """Account for a row that returned with these tokens: a decode row gives back what the device rejected."""
        if self.state is not RequestState.RUNNING:
            self._refuse("collect", RequestState.RUNNING)
        self.frames_in_flight -= 1
        self.sampling_in_flight -= row.samples
        if not row.is_prefilling:
            self.num_scheduled -= row.num_tokens - len(token_ids)
        if self.replays and row.samples:
            if list(token_ids) != self.output_token_ids[-1:]:
                raise RuntimeError(
                    f"request {self.request_id!r}: emitted {list(token_ids)} where {self.output_token_ids[-1]} was to be replayed"
                )
            self.replays = False
        else:
            self.keep(token_ids, now)
        # With nothing in flight the bound is exact, and a request past its prefill has computed all but its last token.
        if self.frames_in_flight == 0 and not self.is_prefilling and self.num_scheduled != self.num_tokens - 1:
            raise RuntimeError(
                f"request {self.request_id!r}: num_scheduled = {self.num_scheduled} with nothing in flight, "
                f"but it holds {self.num_tokens} tokens, so {self.num_tokens - 1} are computed"
            )

    def keep(self, token_ids: Sequence[int], now: float) -> None:
        """Tokens become output."""
        if token_ids:
            self.output_token_ids.extend(token_ids)
            if self.first_token_time is None:
                self.first_token_time = now
            self.last_token_time = now

    def roll_back(self, update: TokenUpdate, kept: int) -> None:
        """Of the tokens of the last step, which came as `update`, only the first `kept` are output: a stop string ended there,
        all of them where it ended with the last. The device has gone on; whoever calls this ends the request."""
        dropped = len(update.token_ids) - kept
        del self.output_token_ids[len(self.output_token_ids) - dropped :]
        self.acceptance.shorten_step(update.num_drafts, update.num_accepted, max(kept - 1, 0))

    def _leave_slot(self, epoch: int) -> None:
        self.slot = None
        self.replays = False
        self.epoch = epoch
        self.num_scheduled = 0
        self.frames_in_flight = 0
        self.sampling_in_flight = 0

    def _require(self, action: str, *states: RequestState) -> None:
        if self.state not in states:
            self._refuse(action, *states)

    def _refuse(self, action: str, *states: RequestState) -> NoReturn:
        wanted = " or ".join(state.name for state in states)
        raise RuntimeError(f"request {self.request_id!r}: cannot {action} in state {self.state.name}, only in {wanted}")

    def __str__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.state.name}, slot={self.slot}, epoch={self.epoch}, "
            f"prompt={len(self.prompt_token_ids)}, output={len(self.output_token_ids)}, prefill_len={self.prefill_len}, "
            f"num_scheduled={self.num_scheduled}, in_flight={self.frames_in_flight}, "
            f"preemptions={self.num_preemptions}, finish_reason={self.finish_reason})"
        )
