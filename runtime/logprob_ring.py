"""LogprobRing: which requests asked for log probabilities, and the way of these off the device, beside the outcomes of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphs.key import GraphKey
from graphs.launch import Launcher
from graphs.logprobs import LogprobRecorder
from kernels.logprobs import LOGPROB_FIELDS
from runtime.device import Stream
from runtime.logprobs import TokenLogprobs, read_logprobs
from runtime.mirror_table import MirrorTable
from runtime.plan import ScheduledRow
from runtime.sampling import SamplingParams
from runtime.staging import OutcomeRing
from runtime.step_buffers import StepBuffers, StepSizes


@dataclass(frozen=True)
class PendingLogprobs:
    """Log probabilities of one step, in flight."""

    ring: OutcomeRing
    number: int  # of the steps that had any
    wanted: tuple[int | None, ...]  # by row: how many of the most likely tokens; None = nothing

    def collect(self, sampled: Sequence[Sequence[int]]) -> dict[int, list[TokenLogprobs]]:
        """Block the host until they have arrived. sampled: the tokens of each row."""
        fields = self.ring.collect(self.number)
        asked = [(row, count) for row, count in enumerate(self.wanted) if count is not None]
        return {row: read_logprobs(fields[row], list(sampled[row]), count) for row, count in asked}


class LogprobRing:
    """A step whose requests asked for none launches and copies nothing.

    Args:
        recorder: records them from the target's logits.
    """

    def __init__(self, table: MirrorTable, sizes: StepSizes, recorder: LogprobRecorder) -> None:
        shape = (sizes.max_num_seqs, 1 + sizes.num_speculative_tokens, LOGPROB_FIELDS)
        self._ring = table.outcomes("logprobs", shape)
        self._recorder = recorder
        self._wanted: list[int | None] = [None] * sizes.max_num_seqs
        self._nobody_asks = True
        self._submitted = 0

    def admit(self, slot: int, params: SamplingParams) -> None:
        """A request enters a slot."""
        self._wanted[slot] = params.logprobs
        self._nobody_asks = all(count is None for count in self._wanted)

    def wanted(self, rows: Sequence[ScheduledRow]) -> tuple[int | None, ...] | None:
        """By row, how many are asked for; None when no row asks."""
        if self._nobody_asks:
            return None
        wanted = tuple(self._wanted[row.slot] for row in rows)
        return None if all(count is None for count in wanted) else wanted

    def record(self, launch: Launcher, key: GraphKey, buffers: StepBuffers) -> None:
        self._recorder.record(launch, key, buffers.state, buffers.step, self._ring.array)

    def submit(self, wanted: tuple[int | None, ...], compute: Stream, copy: Stream) -> PendingLogprobs:
        """Their graph was queued on `compute`: start them on their way. Waits for nothing."""
        pending = PendingLogprobs(self._ring, self._submitted, wanted)
        self._ring.submit(self._submitted, compute, copy)
        self._submitted += 1
        return pending
