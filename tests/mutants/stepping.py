"""Mutations of the step as a whole: what the runner stages and launches, the order of a recorded step, the loop of the engine."""

from __future__ import annotations

from tests.mutants.mutation import Edit, Mutation, gated, mutation

_RUNNER, _STEP, _ENGINE = "runtime/runner.py", "graphs/step.py", "runtime/engine.py"
_STAGING, _ADMISSIONS = "runtime/step_staging.py", "runtime/admissions.py"
_HAZARDS = "tests/test_hazards.py::test_"
_UNCHANGED = "tests/test_runtime_runner.py::test_a_step_like_the_one_before_uploads_nothing"
_BEGIN, _END = "kernels/begin_step.py", "kernels/end_step.py"
_WRITE_TABLES = "    write_staged(block_tables, block_writes, num_block_writes, thread, threads)\n    cuda.syncthreads()\n"
_COMBINE = "    if warp < warps:\n        combine_rows(\n"
_COUNT = "    count_rejected(num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_requests)\n"
_RETURN = "        return StepOutcome(plan, self.buffers.outcomes, logprobs, of_prompts)\n"
_SUBMIT = "self.buffers.outcomes.submit(plan.step, self.compute, self.copy)"
_PUBLISH = "    publish_rows(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests)\n"

# Accept compares with an array beside the input ids, as a host copy of them would be.
_OTHER_IDS = (
    Edit("runtime/step_buffers.py", '("input_token_ids", (tokens,)),', '("input_token_ids", (tokens,)), ("other_ids", (tokens,)),'),
    Edit("graphs/arrays.py", "    input_token_ids: Array  # [T]\n", "    input_token_ids: Array  # [T]\n    other_ids: Array\n"),
    Edit(
        _STEP,
        "    walk = (*results, tokens, step.input_token_ids, ",
        "    walk = (*results, tokens, step.other_ids, ",
    ),
)

MUTATIONS = (
    gated(
        "null-cu-num-logits-in-the-runner",
        "9a-2",
        Edit(_STAGING, "accumulate((1 + num_drafts for _", "accumulate((1 for _"),
        gate="G2",
        axis="fed = drafted",
        text="one logits row for each request is right for every step without drafts",
    ),
    gated(
        "draft-sampled-from-the-hosts-placeholders",
        "9a-17",
        _OTHER_IDS,
        gate="G2",
        axis="compared = fed",
        silent=True,
        text="a placeholder matches nothing: acceptance 0",
    ),
    gated(
        "draft-sampled-of-the-step-before",
        "9a-17",
        (
            *_OTHER_IDS,
            Edit(
                _STEP,
                "        record_walk(launch, key, target.row_argmax, step, synthetic_acceptance)\n",
                "        record_walk(launch, key, target.row_argmax, step, synthetic_acceptance)\n"
                "        launch.copy(step.other_ids[: key.num_tokens], step.input_token_ids[: key.num_tokens])\n",
            ),
        ),
        gate="G2",
        axis="compared = fed",
        text="old ids mostly differ from the argmax; where one is accepted that was not fed, the text goes wrong later",
    ),
    gated(
        "propose-skipped-in-mixed-steps",
        "9c-32",
        Edit(
            _RUNNER,
            "        elif self._proposer is not None:\n            # In every arm",
            "        elif self._proposer is not None and plan.query_len is not None:\n            # In every arm",
        ),
        gate="G1",
        axis="one proposal a step",
        silent=True,
        text="the first decode row of a request verifies nothing, the rows beside it drafts of an older step",
    ),
    gated(
        "propose-skipped-in-verify-steps",
        "9c-31",
        Edit(
            _RUNNER,
            "        elif self._proposer is not None:\n            # In every arm",
            "        elif self._proposer is not None and plan.query_len is None:\n            # In every arm",
        ),
        gate="G2",
        axis="a record a step",
        silent=True,
        text="drafts of the prefill are verified again and again",
    ),
    gated(
        "first-decode-row-without-drafts",
        "9c-32",
        Edit(
            _RUNNER,
            "        elif self._proposer is not None:\n            # In every arm",
            "        elif self._proposer is not None and not plan.admissions:\n            # In every arm",
        ),
        gate="G1",
        axis="first decode drafts",
        silent=True,
        text="one step of each request is slower",
    ),
    mutation(
        "draft-pool-one-row-short",
        "9a-6",
        "runtime/step_buffers.py",
        '"draft_tokens": (slots, max(k, 1)),',
        '"draft_tokens": (max(slots - 1, 1), max(k, 1)),',
        test=_HAZARDS + "every_array_by_slot_has_a_row_for_every_slot",
        text="the highest slot reads past the allocation: garbage drafts, which are rejected",
    ),
    gated(
        "stream-synchronised-in-the-step",
        "9b-18",
        Edit(
            _RUNNER,
            _RETURN,
            "        self.compute.synchronize()\n" + _RETURN,
        ),
        gate="G1",
        axis="no synchronisation",
        silent=True,
        text="every token is right, and the device idles while the host plans",
    ),
    gated(
        "event-waited-for-in-the-step",
        "9b-19",
        Edit(
            _RUNNER,
            _RETURN,
            "        self.buffers.outcomes._pending[plan.step].event.synchronize()\n" + _RETURN,
        ),
        gate="G1",
        axis="no synchronisation",
        silent=True,
        text="waiting for an event and not for a stream changes the shape of the stall, not its cost",
    ),
    gated(
        "both-arms-wait-for-each-step",
        "9e-54",
        Edit(_ENGINE, "(plan is None or len(self._in_flight) > self.steps_ahead)", "(plan is None or len(self._in_flight) > 0)"),
        gate="G1",
        axis="the arms differ",
        silent=True,
        text="an A/B of two arms that are the same finds no difference",
    ),
    gated(
        "latest-outcome-first",
        "B5",
        Edit(
            _ENGINE,
            "        outcome = self._in_flight.popleft()\n        self.runner.paths",
            "        outcome = self._in_flight.pop()\n        self.runner.paths",
        ),
        gate="G1",
        axis="runs to its end",
        expects="OutcomeError",
        text="with one step in flight the latest is the oldest",
    ),
    gated(
        "block-tables-written-after-their-first-use",
        "B38",
        (
            Edit(_BEGIN, _WRITE_TABLES, ""),
            Edit(_BEGIN, _COMBINE, _WRITE_TABLES + _COMBINE),
        ),
        gate="G1",
        axis="token identity",
        text="it does show in text, but only behind a block boundary",
    ),
    gated(
        "discard-guard-dropped",
        "9d-46",
        Edit(_END, _COUNT, ""),
        gate="G1",
        axis="runs to its end",
        text="needs a prompt longer than a step's budget",
    ),
    gated(
        "outcome-published-before-the-cut",
        "B36",
        (
            Edit(_END, _PUBLISH, ""),
            Edit(_END, _COUNT, _COUNT + _PUBLISH),
        ),
        gate="G1",
        axis="runs to its end",
        text="the stop arrives one step late, with the tokens behind it",
    ),
    gated(
        "no-committed-id-in-the-step",
        "9a-10",
        Edit(_BEGIN, "cu_num_logits, i32(1), num_requests", "cu_num_logits, i32(0), num_requests"),
        gate="G2",
        axis="committed id",
        text="it does show in text; the gate says which id went missing",
    ),
    gated(
        "tokens-behind-a-stop-string-kept",
        "B36",
        Edit("runtime/generation.py", "            if self.stopped_by_string:\n                break\n", ""),
        gate="G1",
        axis="token identity",
        text="the text is cut at the match: only the ids and their count are wrong",
    ),
    gated(
        "stop-string-not-told-to-the-scheduler",
        "B36",
        Edit(
            _ENGINE,
            '                self.scheduler.finish(update.request_id, "stop")\n',
            '                self.scheduler.finish("", "stop")\n',
        ),
        gate="G1",
        axis="runs to its end",
        text="the request runs on, in a slot that nobody reads",
    ),
    gated(
        "cancelled-request-runs-on",
        "B39",
        Edit(_ENGINE, "        self.scheduler.cancel(request_id)\n", ""),
        gate="G1",
        axis="runs to its end",
        text="its frames come back to a request that is not there",
    ),
    mutation(
        "outcome-copied-on-the-compute-stream",
        "9b-27",
        _RUNNER,
        _SUBMIT,
        "self.buffers.outcomes.submit(plan.step, self.compute, self.compute)",
        test=_HAZARDS + "the_outcome_travels_beside_the_drafts",
        text="the same values at the same time, on a device with one queue; elsewhere the drafts wait for the copy",
    ),
    Mutation(
        "outcome-behind-the-drafts",
        "9b-19",
        (
            Edit(_RUNNER, f"        {_SUBMIT}\n", ""),
            Edit(_RUNNER, "self.paths.proposals += 1\n", f"self.paths.proposals += 1\n        {_SUBMIT}\n"),
        ),
        test=_HAZARDS + "the_outcome_travels_beside_the_drafts",
        text="collecting a step waits for drafts that nobody needs yet",
    ),
    mutation(
        "block-table-not-emptied-at-admission",
        "B12",
        _STAGING,
        "                cells[admission.slot, column] = -1\n",
        "                pass\n",
        test=_HAZARDS + "a_slot_that_changes_hands_keeps_no_block",
        text="a row that runs past its own blocks writes into another request's: nothing does so today",
    ),
    mutation(
        "step-taken-for-the-one-before",
        "9a-13",
        _STAGING,
        "        new_rows = rows != self._rows\n",
        "        new_rows = self._rows is None or len(rows) != len(self._rows)\n",
        test=_UNCHANGED,
        expects="AssertionError|assert |DeviceError",
        text="rows of the step before, in other slots or of other lengths",
    ),
    mutation(
        "block-writes-of-the-step-before-stay",
        "9a-13",
        _STAGING,
        "if not new_rows and not num_writes and not self._num_writes:",
        "if not new_rows and not num_writes:",
        test=_UNCHANGED,
        expects="AssertionError|assert ",
        text="writing a cell again with the same value changes nothing until the cell has another owner",
    ),
    mutation(
        "min-tokens-counted-anew-after-a-preemption",
        "B28",
        _ADMISSIONS,
        "min_total_len = admission.prompt_len + admission.params.min_tokens",
        "min_total_len = len(admission.prefill_tokens) + admission.params.min_tokens",
        test=_HAZARDS + "an_admission_counts_min_tokens_from_the_prompt",
        text="needs min_tokens, a preemption and a stop token in the window between",
    ),
    mutation(
        "nothing-refused-before-staging",
        "9a-9",
        _STAGING,
        "        check_arguments(\n            cu_num_logits",
        "        (lambda **arguments: None)(\n            cu_num_logits",
        test=_HAZARDS + "a_plan_that_the_combine_cannot_refuse_is_not_staged",
        expects="DID NOT RAISE",
        text="the scheduler makes no such plan",
    ),
)
