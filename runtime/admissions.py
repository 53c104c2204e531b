"""Admissions: a request enters a slot, and every field of that slot becomes its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from graphs.sampled_step import Sampler
from graphs.sampling_state import RequestLists
from kernels.penalties import begin_counts
from kernels.request_lists import admit_lists
from kernels.sampling_slots import admit_sampling
from kernels.slots import RECORD_FIELDS, admit
from runtime.device import Stream
from runtime.logprob_ring import LogprobRing
from runtime.mirror_table import MirrorTable
from runtime.path_counters import PathCounters
from runtime.plan import Admission
from runtime.prompt_logprobs import PromptLogprobs
from runtime.request_lists import has_lists, staged_lists, staged_shapes
from runtime.sampling_record import sampled_reason, sampling_record
from runtime.step_buffers import StepBuffers

ADMIT_THREADS = 128
COUNT_THREADS = 1024


class Admissions:
    """Queues what an admission writes, on the compute stream.

    Args:
        sampler: of the target's logits; None for a target that has none.
        logprobs, prompt_logprobs: hear what each request asks for; None for a target without logits.
        eos_token_ids: end a request unless its parameters say otherwise.

    Attributes:
        sampled_reasons: by slot, why its request needs the sampled graph; None where the argmax of the raw logits will do.
    """

    def __init__(
        self,
        table: MirrorTable,
        buffers: StepBuffers,
        compute: Stream,
        paths: PathCounters,
        sampler: Sampler | None,
        logprobs: LogprobRing | None,
        prompt_logprobs: PromptLogprobs | None,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._table, self._buffers, self._compute, self._paths = table, buffers, compute, paths
        self._sampler, self._logprobs, self._prompt_logprobs = sampler, logprobs, prompt_logprobs
        self._eos_token_ids = tuple(eos_token_ids)
        self._state = buffers.state
        self._read = frozenset(["admission"])
        self._written = frozenset((*buffers.ADMITTED_DEVICE, *buffers.ADMITTED_HOST, *buffers.ADMITTED_SAMPLING))
        self.sampled_reasons: list[str | None] = [None] * buffers.sizes.max_num_seqs
        self._count = self._list_count = 0
        self._spread: tuple[Callable[[], None], ...] | None = None
        if sampler is not None:
            depth = buffers.sizes.max_num_seqs * (table.steps_in_flight + 1)
            table.pack("request_lists", staged_shapes(sampler.lists.counts.shape[1]), depth=depth)

    def admit(self, admission: Admission) -> None:
        """Write every per-slot field of the slot, whatever it held: prompt, limits, empty drafts."""
        table, slot = self._table, admission.slot
        stop_ids = self._stop_ids(admission)
        min_total_len = admission.prompt_len + admission.params.min_tokens
        prefill_len = len(admission.prefill_tokens)
        host_fields = {
            "prefill_len": np.array(prefill_len, np.int32),
            "max_total_len": np.array(admission.max_total_len, np.int32),
            "min_total_len": np.array(min_total_len, np.int32),
            "stop_ids": stop_ids,
        }
        for name, value in host_fields.items():
            buffer = table[name]
            buffer.write_host(value, slot)
            buffer.carry()
        record = np.full(RECORD_FIELDS, -1, np.int32)
        lengths = prefill_len, 0, admission.max_total_len, min_total_len, admission.prompt_len
        record[:7] = slot, *lengths, admission.next_token
        pack = self._buffers.admission
        pack["record"].write_host(np.concatenate((record, stop_ids)))
        pack["sampling_record"].write_host(sampling_record(admission.params))
        # A target without logits has nothing to process: its tokens are its own, and min_tokens then ignores stops.
        self.sampled_reasons[slot] = None if self._sampler is None else sampled_reason(admission.params)
        if self._logprobs is not None:
            self._logprobs.admit(slot, admission.params)
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.admit(admission)
        pack["tokens"].write_host(np.array(admission.prefill_tokens, np.int32), slice(0, prefill_len))
        pack.upload(self._count, self._compute, prefill_len)
        self._count += 1
        self._paths.admissions += 1
        self._launch(admission)

    def _launch(self, admission: Admission) -> None:
        """The kernels that spread the record over the slot."""
        if self._spread is None:
            self._spread = self._prepare_spread()
        with self._table.eager(f"admit {admission.request_id}", reads=self._read, writes=self._written):
            for launch in self._spread:
                launch()
        if self._sampler is not None:
            self._admit_lists(admission, self._sampler.lists)

    def _prepare_spread(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The two launches of every admission: they read its record, which does not move."""
        state, pack, fields = self._state, self._buffers.admission, self._buffers.ADMITTED_SAMPLING
        record, tokens = pack["record"].device_array, pack["tokens"].device_array
        slots = self._compute.prepare_launch(
            admit,
            1,
            ADMIT_THREADS,
            state.num_computed,
            state.total_len,
            state.last_sampled,
            state.draft_tokens,
            state.num_draft,
            state.finished,
            state.prefill_len,
            state.max_total_len,
            state.min_total_len,
            state.stop_ids,
            state.history,
            record,
            tokens,
        )
        arrays = (getattr(state.sampling, name) for name in admit_sampling.params if name in fields)
        asked = pack["sampling_record"].device_array
        return slots, self._compute.prepare_launch(admit_sampling, 1, ADMIT_THREADS, *arrays, record, asked)

    def _admit_lists(self, admission: Admission, lists: RequestLists) -> None:
        """Write what the slot's request asks of single ids, and the counts that its penalties begin with."""
        params, pack = admission.params, self._buffers.admission
        record, tokens = pack["record"].device_array, pack["tokens"].device_array
        if has_lists(params):
            staged = self._table.packs["request_lists"]
            for name, values in staged_lists(params, lists.counts.shape[1]).items():
                staged[name].write_host(values)
            staged.upload(self._list_count, self._compute)
            self._list_count += 1
            with self._table.eager(f"admit {admission.request_id}", reads=("admission", "request_lists")):
                rows = lists.bias_ids, lists.bias_values, lists.bad_starts, lists.bad_tokens, lists.allowed
                fields = (staged[name].device_array for name in admit_lists.params if name in staged.fields)
                self._compute.launch(admit_lists, 1, ADMIT_THREADS, *rows, record, *fields)
        if params.has_penalties:
            with self._table.eager(f"admit {admission.request_id}", reads=("admission",)):
                self._compute.launch(begin_counts, 1, COUNT_THREADS, lists.counts, record, tokens)

    def _stop_ids(self, admission: Admission) -> npt.NDArray[np.int32]:
        """int32 [S]: the request's own stop ids, then the model's end-of-text ids unless they are ignored; -1 behind them."""
        params = admission.params
        ids = dict.fromkeys((*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)))
        stop_ids = np.full(self._buffers.sizes.num_stop_ids, -1, np.int32)
        stop_ids[: len(ids)] = list(ids)
        return stop_ids
