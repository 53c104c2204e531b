"""Device memory of sampled steps (graphs/sampled_step.py)."""

from __future__ import annotations

import numpy as np

from graphs.arrays import ModelArrays, Scratch
from graphs.launch import Array
from graphs.logits_processing import stripes_of as processing_stripes
from graphs.logprobs import LogprobRecorder, LogprobScratch, PromptLogprobRecorder
from graphs.sampled_step import SUM_TILES, Sampler, Verification, stripes_of
from graphs.sampling_state import DraftDistribution, FilterScratch, SamplingScratch, VerificationScratch
from kernels.logprobs import MAX_LOGPROBS
from kernels.process_buckets import FOUND, MEMBERS
from kernels.process_histogram import BUCKETS
from runtime.device import Device
from runtime.request_lists import allocate_request_lists
from runtime.step_buffers import StepSizes


def build_sampler(
    device: Device,
    logits: Array,
    sizes: StepSizes,
    vocab_size: int,
    drafts: DraftDistribution | None = None,
    verification: Verification = "standard",
) -> Sampler:
    """The sampler of a target whose logits end up in `logits` [J, V'], with its arrays.

    drafts: what the drafter draws from; None for one that is certain of its drafts.
    """
    slots = sizes.max_num_seqs
    verified = None
    if drafts is not None:
        verified = allocate_verification_scratch(device, slots, sizes.num_logits, vocab_size)
    scratch = allocate_sampling_scratch(device, sizes.num_logits, vocab_size)
    return Sampler(logits, scratch, allocate_request_lists(device, slots, vocab_size), drafts, verified, verification)


def allocate_sampling_scratch(device: Device, num_logits: int, vocab_size: int) -> SamplingScratch:
    """Arrays for steps of at most `num_logits` logits rows J; 4 J V bytes and little more."""
    stripes = stripes_of(vocab_size)
    histogram = device.array("filter_histogram", (num_logits, 2, BUCKETS), np.int32)
    device.upload(histogram, np.zeros(histogram.shape, np.int32))
    return SamplingScratch(
        slot_of_row=device.array("logits_slot", (num_logits,), np.int32),
        local_position=device.array("logits_place", (num_logits,), np.int32),
        filters=FilterScratch(
            histogram=histogram,
            found=device.array("filter_found", (num_logits, FOUND), np.int64),
            threshold=device.array("filter_threshold", (num_logits,), np.float32),
            members=device.array("filter_members", (num_logits, MEMBERS), np.float32),
            num_members=device.array("filter_num_members", (num_logits,), np.int32),
        ),
        stripe_best=device.array("processed_best", (processing_stripes(vocab_size), num_logits), np.float32),
        processed=device.array("processed_logits", (num_logits, vocab_size), np.float32),
        best_score=device.array("sample_best_score", (stripes, num_logits), np.float32),
        best_column=device.array("sample_best_column", (stripes, num_logits), np.int32),
        picks=device.array("sample_picks", (num_logits,), np.int32),
    )


def build_logprobs(
    device: Device, model: ModelArrays, scratch: Scratch, sizes: StepSizes
) -> tuple[LogprobRecorder, PromptLogprobRecorder]:
    """Log probabilities of emitted tokens and of prompts, with the arrays that they share."""
    rows, vocab_size = sizes.num_logits, model.shape.vocab_size
    logprobs = LogprobScratch(
        top_ids=device.array("logprob_top_ids", (rows, MAX_LOGPROBS), np.int32),
        top_values=device.array("logprob_top_values", (rows, MAX_LOGPROBS), np.float32),
    )
    return LogprobRecorder(scratch.logits, logprobs, vocab_size), PromptLogprobRecorder(model, scratch, logprobs)


def allocate_verification_scratch(device: Device, num_requests: int, num_logits: int, vocab_size: int) -> VerificationScratch:
    """Arrays to verify drafts that come with a distribution."""
    stripes = stripes_of(vocab_size, SUM_TILES)
    return VerificationScratch(
        stripe_max=device.array("sample_stripe_max", (stripes, num_logits), np.float32),
        stripe_sum=device.array("sample_stripe_sum", (stripes, num_logits), np.float32),
        stripe_column=device.array("sample_stripe_column", (stripes, num_logits), np.int32),
        log_sum=device.array("sample_log_sum", (num_logits,), np.float32),
        uniforms=device.array("sample_uniforms", (num_logits,), np.float32),
        num_accepted=device.array("sample_num_accepted", (num_requests,), np.int32),
        scale=device.array("sample_scale", (num_requests,), np.float32),
        residual=device.array("sample_residual", (num_requests,), np.int32),
    )
