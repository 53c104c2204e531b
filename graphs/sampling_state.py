"""Sampling parameters of the requests in their slots, and what a drafter says of the distribution that it drew from."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.launch import Array


@dataclass(frozen=True)
class SamplingState:
    """By slot; written by kernels.sampling_slots.admit_sampling alone, every field for each new owner of a slot."""

    temperature: Array  # float32 [N] 0 = greedy
    seed: Array  # int32 [N, 2] the bits of the request's seed, low word first
    top_k: Array  # int32 [N] 0 = all
    top_p: Array  # float32 [N] 1 = all
    min_p: Array  # float32 [N] 0 = all
    repetition: Array  # float32 [N] 1 = off
    presence: Array  # float32 [N] 0 = off
    frequency: Array  # float32 [N] 0 = off
    num_logprobs: Array  # int32 [N] -1 = none are asked for, 0 = of the emitted token alone
    num_bias: Array  # int32 [N] entries of RequestLists.bias_ids
    num_bad: Array  # int32 [N] words of RequestLists.bad_starts
    restricted: Array  # int32 [N] 1 = RequestLists.allowed counts


@dataclass(frozen=True)
class RequestLists:
    """By slot, read as far as SamplingState says: what is here of an earlier owner is out of reach.

    Written at admission, for requests that have such lists (kernels/request_lists.py, kernels/penalties.py); counts by each sampled
    step too.
    """

    counts: Array  # int32 [N, V] kernels/penalties.py
    bias_ids: Array  # int32 [N, B]
    bias_values: Array  # float32 [N, B]
    bad_starts: Array  # int32 [N, M + 1] word m is bad_tokens[bad_starts[m] : bad_starts[m + 1]]
    bad_tokens: Array  # int32 [N, Q]
    allowed: Array  # int32 [N, W] bit v % 32 of word v / 32


@dataclass(frozen=True)
class DraftDistribution:
    """q of the drafts in SlotState.draft_tokens, where a drafter sampled them: nonzero on K candidates alone.

    Written by the propose graph beside the drafts, read by the verification of the next step. Probabilities of a row sum to 1; ids
    of a row are distinct, -1 = no candidate (its probability is not read). A proposer without one is certain of its drafts: q = 1.
    """

    ids: Array  # int32 [N, k, K]
    probs: Array  # float32 [N, k, K]


@dataclass(frozen=True)
class FilterScratch:
    """How the thresholds of top_k and top_p are found (kernels/process_histogram.py)."""

    histogram: Array  # int32 [J, 2, BUCKETS] zero between steps
    found: Array  # int64 [J, FOUND]
    threshold: Array  # float32 [J] of `processed`: what is below is masked
    members: Array  # float32 [J, MEMBERS]
    num_members: Array  # int32 [J]


@dataclass(frozen=True)
class SamplingScratch:
    """What a sampled step computes on its way from logits to tokens; contents mean nothing between steps."""

    slot_of_row: Array  # int32 [J]
    local_position: Array  # int32 [J] place of the row in its block
    filters: FilterScratch
    stripe_best: Array  # float32 [S', J] largest of each stripe of `processed`
    processed: Array  # float32 [J, V] logits after all processing; masked tokens are -inf or below the threshold
    best_score: Array  # float32 [S, J] of each stripe of the vocabulary
    best_column: Array  # int32 [S, J]
    picks: Array  # int32 [J] the token of each logits row: drawn, or its argmax where verification draws another one; or NO_TOKEN


@dataclass(frozen=True)
class VerificationScratch:
    """What verification of drafts with a distribution computes on its way."""

    stripe_max: Array  # float32 [S, J]
    stripe_sum: Array  # float32 [S, J]
    stripe_column: Array  # int32 [S, J]
    log_sum: Array  # float32 [J] p = exp(logit - log_sum)
    uniforms: Array  # float32 [J] decide on the draft behind each row
    num_accepted: Array  # int32 [N] by row
    scale: Array  # float32 [N] by row, s of the residual max(s p - q, 0)
    residual: Array  # int32 [N] by row, 1 = a draft was rejected
