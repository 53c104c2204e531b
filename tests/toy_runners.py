"""Runners that are wrong on purpose, and those that compare what the host knows: what gates and docs/draft-sampled.md speak of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from kernels.accept import accept_greedy
from kernels.lang import cuda, i32, kernel
from runtime.plan import StepPlan
from runtime.runner import Runner
from runtime.step_outcome import StepOutcome
from runtime.truth import Truth

Ints = npt.NDArray[np.int32]


@kernel(writes=("draft_tokens",))
def shift_drafts(draft_tokens):
    """Replace each draft by another valid id."""
    for slot in range(cuda.grid(1), draft_tokens.shape[0], cuda.gridsize(1)):
        for i in range(draft_tokens.shape[1]):
            if draft_tokens[slot, i] > i32(0):
                draft_tokens[slot, i] = i32(draft_tokens[slot, i] % i32(31) + i32(1))


class WrongDraftsRunner(Runner):
    """Between propose and the next combine somebody puts valid ids, but not those that were drafted, into draft_tokens."""

    def launch(self, plan: StepPlan) -> StepOutcome:
        outcome = super().launch(plan)
        with self.table.eager("fault", reads=("draft_tokens",), writes=("draft_tokens",)):
            self.compute.launch(shift_drafts, 1, 32, self._state.draft_tokens)
        return outcome


class NoProposalAfterPrefillRunner(Runner):
    """Does not propose behind a step that prefills: the first decode step of each request has no drafts."""

    def _run(self, key: GraphKey) -> None:
        if key.family.value != "propose" or not self._mixed:
            super()._run(key)
        self._mixed = key.family.value == "mixed"


class ShapeRoutedRunner(Runner):
    """Chooses the graph by the shape of the rows: a prompt chunk of 1 + k tokens then replays the verify graph (B13)."""

    def _key(self, plan: StepPlan) -> GraphKey:
        if all(row.num_tokens == self.query_len for row in plan.rows):
            return GraphKey.uniform(self._bucket(len(plan.rows)), self.query_len)
        return super()._key(plan)


class DrainingRunner(Runner):
    """Waits for the compute stream in every step: right in everything but the one thing it is for."""

    def launch(self, plan: StepPlan) -> StepOutcome:
        self.compute.synchronize()
        return super().launch(plan)


class PoisoningRunner(Runner):
    """Overwrites the host twin of every array that only the device writes, at every step."""

    def launch(self, plan: StepPlan) -> StepOutcome:
        for buffer in self.table.buffers.values():
            if buffer.truth is Truth.DEVICE_EXACT:
                buffer.poison = True
        return super().launch(plan)


class _Redirected:
    """A Launcher whose accept walk reads its drafts from another array."""

    def __init__(self, launch: Launcher, compared: Array) -> None:
        self._launch, self._compared = launch, compared

    def launch(self, kernel: Any, grid: Any, block: int, *args: Any) -> None:
        if kernel is accept_greedy:
            at = kernel.params.index("input_ids")
            args = (*args[:at], self._compared, *args[at + 1 :])
        self._launch.launch(kernel, grid, block, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launch, name)


class HostReadRunner(Runner):
    """The accept walk compares drafts that the host has put together and uploaded, instead of the device's input ids.

    `known` says what the host has at the time of the launch. It is asked by a blocking download, which a test may do; where the
    product could have the same values without waiting is the subject of docs/draft-sampled.md.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        k = self.sizes.num_speculative_tokens
        self._drafts: Ints = np.full((self.sizes.max_num_seqs, k), -1, np.int32)
        self._draft_sampled = self.table.create("draft_sampled", (self.sizes.max_num_batched_tokens,), Truth.HOST_EXACT)

    def known(self, now: Ints, before: Ints) -> Ints:
        """int32 [N, k]: what the host believes to be fed, of the drafts of this step and of the step before."""
        raise NotImplementedError

    def _instrumented(self, launch: Launcher, key: GraphKey) -> Launcher:
        redirected: Any = _Redirected(super()._instrumented(launch, key), self._draft_sampled.device_array)
        return redirected

    def launch(self, plan: StepPlan) -> StepOutcome:
        now: Ints = self.device.download(self._state.draft_tokens)
        known, self._drafts = self.known(now, self._drafts), now
        ids = np.zeros(self.sizes.max_num_batched_tokens, np.int32)
        start = 0
        for row in plan.rows:
            start += row.num_tokens
            ids[start - row.num_drafts : start] = known[row.slot, : row.num_drafts]
        self._draft_sampled.write_host(ids)
        self._draft_sampled.upload(self.compute)
        return super().launch(plan)


class ExactHostReadRunner(HostReadRunner):
    """The host has the drafts of this very step: it waited for the propose graph, or made the drafts itself."""

    def known(self, now: Ints, before: Ints) -> Ints:
        return now


class StaleHostReadRunner(HostReadRunner):
    """The host has the drafts of the step before: what a copy that nobody waited for yields."""

    def known(self, now: Ints, before: Ints) -> Ints:
        return before


class ShiftedHostReadRunner(HostReadRunner):
    """Draft i is compared where draft i + 1 belongs: the index lacks the 1 that steps over the committed id."""

    def known(self, now: Ints, before: Ints) -> Ints:
        shifted = np.full_like(now, -1)
        shifted[:, 1:] = now[:, :-1]
        return shifted


class PlaceholderHostReadRunner(HostReadRunner):
    """The host has the scheduler's placeholders: drafts are no longer spliced into its token row."""

    def known(self, now: Ints, before: Ints) -> Ints:
        return np.full_like(now, -1)
