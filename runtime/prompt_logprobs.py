"""PromptLogprobs: log probabilities of the tokens of a prompt, collected chunk by chunk as it is prefilled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from graphs.key import GraphKey
from graphs.launch import Launcher
from graphs.logprobs import PromptLogprobRecorder, PromptRows
from kernels.logprobs import LOGPROB_FIELDS
from runtime.device import Stream
from runtime.logprobs import TokenLogprobs, read_logprobs
from runtime.mirror_table import MirrorTable
from runtime.plan import Admission, ScheduledRow
from runtime.staging import OutcomeRing
from runtime.step_buffers import StepSizes


@dataclass(frozen=True)
class _Asked:
    """A token of a prompt: where its logits are, and whose they are."""

    token_row: int  # of the step
    row: int  # of the plan
    position: int  # in the prompt, of the token that is looked at
    token: int
    wanted: int


@dataclass(frozen=True)
class PendingPromptLogprobs:
    """Those of one step, in flight: in `chunks` of the ring, from number `first` on."""

    ring: OutcomeRing
    first: int
    chunks: tuple[tuple[_Asked, ...], ...]

    def collect(self) -> dict[int, dict[int, TokenLogprobs]]:
        """Block the host until they have arrived: by row of the plan and position in the prompt."""
        told: dict[int, dict[int, TokenLogprobs]] = {}
        for number, chunk in enumerate(self.chunks, start=self.first):
            fields = self.ring.collect(number)
            for place, asked in enumerate(chunk):
                (token,) = read_logprobs(fields[place], [asked.token], asked.wanted)
                told.setdefault(asked.row, {})[asked.position] = token
        return told


class PromptLogprobs:
    """A step that prefills nothing for a request that asked launches and copies nothing.

    The head can take as many rows at once as a step has logits rows: a longer chunk of a prompt takes several launches.

    Args:
        recorder: records them from the target's residual stream.
    """

    def __init__(self, table: MirrorTable, sizes: StepSizes, recorder: PromptLogprobRecorder) -> None:
        self._recorder, self._rows = recorder, recorder.num_rows
        chunks = -(-sizes.max_num_batched_tokens // self._rows) * table.steps_in_flight
        self._ring = table.outcomes("prompt_logprobs", (self._rows, 1, LOGPROB_FIELDS), depth=chunks)
        self._pack = table.pack("prompt_rows", PromptRows.shapes(self._rows), depth=chunks + 1)
        self._pack["prompt_counts"].write_host(1)
        self._pack["prompt_places"].write_host(np.arange(self._rows, dtype=np.int32))
        self._pack["prompt_starts"].write_host(np.arange(self._rows + 1, dtype=np.int32))
        self._prompts: dict[int, tuple[tuple[int, ...], int]] = {}
        self._submitted = 0

    def admit(self, admission: Admission) -> None:
        """A request enters a slot."""
        self._prompts.pop(admission.slot, None)
        wanted = admission.params.prompt_logprobs
        if wanted is not None:
            self._prompts[admission.slot] = admission.prefill_tokens[: admission.prompt_len], wanted

    def record(self, launch: Launcher) -> None:
        arrays = {name: field.device_array for name, field in self._pack.fields.items()}
        self._recorder.record(launch, PromptRows.of(arrays), self._ring.array)

    @property
    def key(self) -> GraphKey:
        return GraphKey.prompt_logprobs(self._rows)

    def launch(
        self, rows: Sequence[ScheduledRow], run: Callable[[GraphKey], None], compute: Stream, copy: Stream
    ) -> PendingPromptLogprobs | None:
        """Queue them behind the step of `rows`, by `run`; None when there are none."""
        asked = self._asked(rows)
        first, chunks = self._submitted, []
        while chunk := tuple(islice(asked, self._rows)):
            self._stage(chunk, compute)
            run(self.key)
            self._ring.submit(self._submitted, compute, copy)
            self._submitted += 1
            chunks.append(chunk)
        return PendingPromptLogprobs(self._ring, first, tuple(chunks)) if chunks else None

    def _asked(self, rows: Sequence[ScheduledRow]) -> Iterator[_Asked]:
        start = 0
        for index, row in enumerate(rows):
            prompt, wanted = self._prompts.get(row.slot, ((), 0))
            if row.is_prefilling:
                # The last token of the prompt has no next one in it.
                for offset in range(min(row.num_tokens, len(prompt) - 1 - row.start_upper)):
                    position = row.start_upper + offset + 1
                    yield _Asked(start + offset, index, position, prompt[position], wanted)
            start += row.num_tokens

    def _stage(self, chunk: Sequence[_Asked], compute: Stream) -> None:
        count = slice(0, len(chunk))
        self._pack["prompt_live"].write_host(np.array([len(chunk)], np.int32))
        self._pack["prompt_token_rows"].write_host(np.array([asked.token_row for asked in chunk], np.int32), count)
        self._pack["prompt_targets"].write_host(np.array([[asked.token] for asked in chunk], np.int32), count)
        self._pack["prompt_wanted"].write_host(np.array([asked.wanted for asked in chunk], np.int32), count)
        self._pack.upload(self._submitted, compute)
