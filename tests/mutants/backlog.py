"""Mutations of rows that wait until a drafter's context is brought up to date: what is lost is acceptance, never text."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_KEEP, _BACKLOG, _HOST, _RUNNER = (
    "kernels/keep_taps.py",
    "graphs/draft_backlog.py",
    "runtime/context_backlog.py",
    "runtime/runner.py",
)
_UPLOAD = "runtime/speculators/dflash_upload.py"
_TESTS = "tests/test_draft_backlog.py::test_"
_KERNEL = "tests/test_kernels_dflash.py::test_keep_taps[3-6-float32-cpu-1x1]"
_PAGES = _TESTS + "pages_are_those_of_a_context_that_keeps_up"
_ROOM = _TESTS + "drafts_are_those_of_a_context_that_keeps_up[v2-with-room-for-three-async]"
_LESS = "the drafter guesses from something else: fewer drafts are accepted, and every text is right"

MUTATIONS = (
    mutation(
        "waiting-row-overwritten",
        "B40",
        _KEEP,
        "place = slot * i32(depth) + position % i32(depth)",
        "place = slot * i32(depth)",
        test=_PAGES,
        text="of the steps that wait only the last enters the context; " + _LESS,
    ),
    mutation(
        "waiting-row-of-another-position",
        "D2",
        _KEEP,
        "kept_positions[place] = position\n",
        "kept_positions[place] = max(position - i32(1), i32(0))\n",
        test=_PAGES,
        text="keys turned by one position too few; " + _LESS,
    ),
    mutation(
        "waiting-row-of-another-page",
        "B38",
        _KEEP,
        "kept_cells[place] = slot_mapping[row]",
        "kept_cells[place] = slot_mapping[0]",
        test=_PAGES,
        text="right for the first row of a batch, and so for a batch of one",
    ),
    mutation(
        "waiting-row-of-another-slot",
        "9a-12",
        _UPLOAD,
        "np.repeat(np.arange(slots, dtype=np.int32), depth)",
        "np.tile(np.arange(slots, dtype=np.int32), depth)",
        test=_PAGES,
        text="whether a row was committed is asked of another request; " + _LESS,
    ),
    mutation(
        "waiting-drafts-left-in-their-slots",
        "B40",
        _KEEP,
        "                    draft_tokens[slot, i] = i32(-1)\n",
        "                    pass\n",
        test=_KERNEL,
        text="drafts of a position that is past are verified: rejected",
    ),
    mutation(
        "caught-up-with-twice",
        "B40",
        _BACKLOG,
        "        launch.fill(kept.cells[:rows], -1)\n",
        "",
        test=_PAGES,
        text="rows enter the context again when their pages are another request's",
    ),
    mutation(
        "too-few-slots-caught-up-with",
        "B40",
        _HOST,
        "self._slots = max(self._slots, *(row.slot + 1 for row in plan.rows))",
        "self._slots = max(self._slots, *(row.slot for row in plan.rows), 1)",
        test=_TESTS + "slots_that_are_caught_up_with_are_those_whose_rows_wait",
        text="right whenever a bucket of slots is larger than the slots in use",
    ),
    mutation(
        "catching-up-forgotten",
        "B40",
        _HOST,
        "if not defers or self.steps == self.depth:",
        "if self.steps == self.depth:",
        test=_ROOM,
        expects="StaleReadError",
        text=_LESS,
    ),
    mutation(
        "context-behind-and-nobody-asks",
        "9a-17",
        _HOST,
        "if self.steps and graph.key.family is Family.PROPOSE:",
        "if self.steps < 0 and graph.key.family is Family.PROPOSE:",
        test=_TESTS + "an_engine_that_forgets_to_catch_up_is_stopped",
        expects="DID NOT RAISE",
        text="the second of two locks: with the first one intact nothing is wrong",
    ),
    mutation(
        "one-step-too-many-waits",
        "B40",
        _HOST,
        "self.steps == self.depth",
        "self.steps > self.depth",
        test=_ROOM,
        text="the first row of those that wait is lost, and only when so many wait",
    ),
    mutation(
        "wait-goes-on-without-the-request",
        "9a-12",
        _HOST,
        "return now != self._epochs and not set(self._epochs) <= set(now)",
        "return False",
        test=_TESTS + "a_request_that_is_missed_ends_the_wait",
        text="a row of a request that has gone enters the pages of its successor, if a slot or a page changes hands in time",
    ),
    mutation(
        "verify-steps-wait-as-well",
        "B40",
        _RUNNER,
        "self._backlog is not None and plan.query_len == 1 and not plan.proposes",
        "self._backlog is not None and not plan.proposes",
        test=_ROOM,
        expects=".",
        text="a rejected draft's row enters the context once its position has been passed",
    ),
    mutation(
        "what-was-caught-up-with-still-waits",
        "B40",
        _RUNNER,
        "        backlog.caught_up()\n        self.paths.catch_ups += 1\n",
        "        self.paths.catch_ups += 1\n",
        test=_ROOM,
        expects="StaleReadError|assert",
        text="what has entered the context counts as waiting: later rows are refused, or enter with every step",
    ),
    mutation(
        "a-choice-is-never-made-again",
        "9e-62",
        "runtime/draft_lengths.py",
        "        self._holding.clear()\n",
        "",
        test="tests/test_draft_lengths.py::test_what_pays_is_chosen",
        text="the length that is believed to pay at first stays for good",
    ),
    mutation(
        "what-was-observed-changes-nothing",
        "9e-62",
        "runtime/draft_lengths.py",
        "        self.acceptance.observe(scheduled, accepted)\n        self._forget()\n",
        "        self.acceptance.observe(scheduled, accepted)\n",
        test="tests/test_draft_lengths.py::test_what_pays_is_chosen",
        text="the length that is believed to pay at first stays for good",
    ),
)
