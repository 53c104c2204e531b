"""Mutations of what becomes of a request that a row of nothing ends: where, with which counts, told to whom."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_ENGINE, _PLAN, _REQUEST, _SCHEDULER = "runtime/engine.py", "runtime/plan.py", "runtime/request.py", "runtime/scheduler.py"
_NOTHING, _PLANNED = "tests/test_runtime_engine_nothing.py::test_", "tests/test_runtime_scheduler_nothing.py::test_"
_STOP = _NOTHING + "a_stop_string_in_front_of_nothing"
_COUNTS = _NOTHING + "every_draft_in_front_of_nothing_counts"

MUTATIONS = (
    mutation(
        "the-last-row-of-nothing-is-reported",
        "B27",
        "kernels/publish.py",
        "                if nothing == i32(0):\n                    nothing = i32(column + 1)\n",
        "                nothing = i32(column + 1)\n",
        test="tests/test_hazards.py::test_publish_is_its_oracle",
        text="it takes two such rows in a block: id 0 stands in front of the second",
    ),
    mutation(
        "a-draft-in-front-of-nothing-is-the-token-behind",
        "B27",
        _SCHEDULER,
        "stats.add_step(num_drafts, place)",
        "stats.add_step(num_drafts, max(place - 1, 0))",
        test=_COUNTS,
        text="the text is right, acceptance is not",
    ),
    mutation(
        "a-replayed-row-of-nothing-ends-its-request",
        "B27",
        _SCHEDULER,
        "if result.nothing_left and result.nothing_left[index] and not replayed:",
        "if result.nothing_left and result.nothing_left[index]:",
        test=_PLANNED + "a_token_that_is_replayed_is_known",
        text="only behind a preemption",
    ),
    mutation(
        "a-request-without-a-token-has-its-length",
        "B27",
        _SCHEDULER,
        'self._queue.retire(request, "error")',
        'self._queue.retire(request, "length")',
        test=_COUNTS,
        text="the output says error, the request does not",
    ),
    mutation(
        "prompt-logprobs-lost-with-the-first-token",
        "B27",
        _SCHEDULER,
        "            if result.prompt_logprobs:\n                request.prompt_logprobs",
        "            if result.prompt_logprobs and not (result.nothing_left and result.nothing_left[index]):\n"
        "                request.prompt_logprobs",
        test=_NOTHING + "a_prompt_that_nothing_follows_has_its_logprobs",
        text="there is no text",
    ),
    mutation(
        "a-stop-string-in-front-of-nothing-is-another-step",
        "B36",
        _PLAN,
        'return len(self.token_ids) if self.finish_reason == "error" else max(len(self.token_ids) - 1, 0)',
        "return max(len(self.token_ids) - 1, 0)",
        test=_STOP,
        text="there is none: the engine stops in the middle of a step, and the batch is lost",
        expects="no such step was counted|assert ",
    ),
    mutation(
        "no-token-of-the-last-step-kept",
        "B36",
        _REQUEST,
        "update.num_accepted, max(kept - 1, 0))",
        "update.num_accepted, kept - 1)",
        test="tests/test_runtime_stops.py::test_half_a_character_in_front_of_nothing",
        text="there is none: the engine stops in the middle of a step, and the batch is lost",
        expects="no such step was counted",
    ),
    mutation(
        "a-row-of-nothing-behind-a-stop-string-is-reported",
        "B27",
        _ENGINE,
        'if generation.output.finish_reason == "error":',
        'if update.finish_reason == "error":',
        test=_STOP,
        text="it is right, and a warning says that it is not",
    ),
)
