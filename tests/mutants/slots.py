"""Mutations of admission and of the drafts that a slot holds: what a request could inherit from the previous owner of its slot."""

from __future__ import annotations

from tests.mutants.mutation import Edit, Mutation, gated, mutation

_SLOTS, _NGRAM, _ADMISSIONS = "kernels/slots.py", "kernels/ngram.py", "runtime/admissions.py"
_STEP_TESTS = "tests/test_kernels_step.py::test_"
_SLOT_TESTS = "tests/test_kernels_slots.py::test_"
_ADMIT = _SLOT_TESTS + "admit_rewrites_every_field_of_its_slot_and_no_other"
_NGRAM_LAUNCHES = _SLOT_TESTS + "ngram_at_every_launch"
_KNOWN = "history[slot, i] = tokens[i] if i < known"
_DRAFT_ONLY = "a wrong draft costs acceptance, never text"

# Field -> (what admission stores there, why text does not show its absence).
_FIELDS = {
    "num_computed": ("num_computed[slot] = computed", "shows only in a slot that was used before"),
    "total_len": ("total_len[slot] = known", "shows only in a slot that was used before"),
    "prefill_len": ("prefill_len[slot] = known", "right whenever both owners have prompts of one length"),
    "max_total_len": ("max_total_len[slot] = record[3]", "the host ends the request as well, some steps later"),
    "min_total_len": ("min_total_len[slot] = record[4]", "matters only with min_tokens"),
    "num_draft": ("num_draft[slot] = i32(0)", _DRAFT_ONLY),
    "finished": ("finished[slot] = i32(0)", "a first owner that ran into max_tokens leaves a slot that never emits"),
    "draft_tokens": ("draft_tokens[slot, i] = i32(-1)", _DRAFT_ONLY),
    "stop_ids": ("stop_ids[slot, i] = record[i32(RECORD_FIELDS) + i]", "most requests stop at the same token"),
    "history": (f"{_KNOWN} else", "shows only in a slot that was used before"),
}


def _not_initialised(field: str) -> Mutation:
    store, text = _FIELDS[field]
    target = store.split(" = ")[0]
    kept = f"{target} = {target}" + (f" if {target} == {target} else" if store.endswith(" else") else "")
    return mutation(f"slot-keeps-{field.replace('_', '-')}", "B1", _SLOTS, store, kept, test=_ADMIT, text=text)


MUTATIONS = (
    *(_not_initialised(field) for field in _FIELDS),
    mutation(
        "slot-keeps-last-sampled",
        "B1",
        _SLOTS,
        "last_sampled[slot] = tokens[computed - i32(1)] if computed > i32(0) and computed <= known else i32(0)",
        "last_sampled[slot] = last_sampled[slot]",
        test=_STEP_TESTS + "a_slot_reused_with_its_prompt_computed_begins_with_its_own_last_token",
        text="a prefill sets it before anybody reads it, unless the prompt was computed elsewhere",
    ),
    mutation(
        "history-keeps-the-tail-of-its-previous-owner",
        "9a-12",
        _SLOTS,
        f"{_KNOWN} else",
        f"{_KNOWN} else history[slot, i] if i > known else",
        test=_ADMIT,
        text="nothing reads behind the length of a request, as long as every reader knows it",
    ),
    mutation(
        "admission-to-the-next-slot",
        "9a-12",
        _SLOTS,
        "slot = i32(record[0])",
        "slot = i32(record[0]) + i32(1)",
        test=_ADMIT,
        text="it does show in text; the test says which field of which slot",
    ),
    mutation(
        "ngram-drafts-from-behind-the-text",
        "9d-44",
        _NGRAM,
        "count = min(k, i32(total - source))",
        "count = min(k, i32(history.shape[1]) - source)",
        test=_NGRAM_LAUNCHES,
        text=_DRAFT_ONLY,
    ),
    mutation(
        "ngram-history-lags-one-token",
        "B45",
        _NGRAM,
        "total = min(i32(total_len[slot]), i32(history.shape[1]))",
        "total = min(i32(total_len[slot]), i32(history.shape[1])) - i32(1)",
        test=_NGRAM_LAUNCHES,
        text="acceptance falls from 70 % to 1 %, the text is the same",
    ),
    mutation(
        "propose-neither-sets-nor-clears",
        "9c-42",
        _NGRAM,
        "        if known:\n            for i",
        "        if known and count > i32(0):\n            for i",
        test=_SLOT_TESTS + "ngram_clears_the_drafts_of_rows_that_propose_nothing",
        text=_DRAFT_ONLY,
    ),
    mutation(
        "propose-for-a-row-that-emitted-nothing",
        "9b-29",
        _NGRAM,
        "if known and num_sampled[row] > i32(0) and finished",
        "if known and finished",
        test=_SLOT_TESTS + "ngram_clears_the_drafts_of_rows_that_propose_nothing",
        text=_DRAFT_ONLY,
    ),
    mutation(
        "drafts-by-batch-row",
        "9c-38",
        _NGRAM,
        "draft_tokens[slot, i] = history[slot, source + i] if i < count else i32(-1)",
        "draft_tokens[row, i] = history[slot, source + i] if i < count else i32(-1)",
        test=_NGRAM_LAUNCHES,
        text=_DRAFT_ONLY,
    ),
    mutation(
        "draft-count-without-its-drafts",
        "9c-37",
        _NGRAM,
        "num_draft[slot] = count",
        "num_draft[slot] = k",
        test=_NGRAM_LAUNCHES,
        text="nothing but a report reads the count",
    ),
    gated(
        "min-tokens-ignored-by-advance",
        "B28",
        Edit("kernels/advance.py", "and total + kept >= min_total_len[slot]:", "and total + kept >= i32(0):"),
        gate="G1",
        axis="token identity",
        text="it does show in text, but only in that of requests that ask for min_tokens",
    ),
    gated(
        "min-tokens-not-told-to-the-device",
        "B28",
        Edit(_ADMISSIONS, "min_total_len = admission.prompt_len + admission.params.min_tokens", "min_total_len = 0"),
        gate="G1",
        axis="token identity",
        text="it does show in text, but only in that of requests that ask for min_tokens",
    ),
    gated(
        "end-of-text-of-the-model-forgotten",
        "B28",
        Edit(_ADMISSIONS, "*(() if params.ignore_eos else self._eos_token_ids)", "*()"),
        gate="G1",
        axis="token identity",
        text="it does show in text, but only of a model that says where its texts end",
    ),
    gated(
        "end-of-text-not-ignored-on-request",
        "B28",
        Edit(_ADMISSIONS, "*(() if params.ignore_eos else self._eos_token_ids)", "*self._eos_token_ids"),
        gate="G1",
        axis="token identity",
        text="it does show in text, but only in that of requests that ask for ignore_eos",
    ),
)
