"""From the target's raw logits to the logits that tokens are drawn from, row by row, on the device, and the counts behind them."""

from __future__ import annotations

from graphs.arrays import SlotState, StepArrays
from graphs.launch import Array, Launcher
from graphs.sampling_state import RequestLists, SamplingScratch, SamplingState
from kernels.expand import expand_rows
from kernels.penalties import count_tokens
from kernels.process_adjust import adjust_logits, forbid_tokens
from kernels.process_buckets import find_buckets
from kernels.process_histogram import count_logits
from kernels.process_members import list_members, rank_members

ROW_THREADS = 32
THREADS = 256
SEARCH_THREADS = 1024
RANK_THREADS = 512
ADJUST_BLOCKS = LIST_BLOCKS = 1216
COUNT_BLOCKS = 600
STRIPE_COLUMNS = 4096


def stripes_of(vocab_size: int) -> int:
    """S: stripes whose largest logits are kept, each the work of a block."""
    return -(-vocab_size // STRIPE_COLUMNS)


def record_processing(
    launch: Launcher,
    state: SlotState,
    step: StepArrays,
    lists: RequestLists,
    scratch: SamplingScratch,
    logits: Array,
    num_requests: int,
    num_logits: int,
) -> None:
    """Record logits [J, V' >= V] -> scratch.processed float32 [J, V] and scratch.filters.threshold [J] for at most `num_logits`
    rows of `num_requests` requests.

    The order is vLLM's: logit bias, penalties, ids that are not allowed, bad words, stop ids before min_tokens; then for rows of a
    temperature above 0 the temperature, min_p, top_k, top_p. A masked token is -inf, or below the threshold of its row: what min_p,
    top_k and top_p take out is not stored, everyone who reads `processed` compares.
    """
    sampling, inputs = state.sampling, step.inputs
    processed, indices, live = scratch.processed[:num_logits], step.logits_indices[:num_logits], inputs.num_logits
    best = scratch.stripe_best
    slots, places = scratch.slot_of_row[:num_logits], scratch.local_position[:num_logits]
    rows = inputs.idx_mapping[:num_requests], inputs.cu_num_logits[: num_requests + 1], inputs.num_requests
    launch.launch(expand_rows, 1, ROW_THREADS, slots, places, *rows)
    # A block costs as much as a stripe of its own: those of many rows take several each.
    blocks = min(best.shape[0], max(1, ADJUST_BLOCKS // num_logits))
    launch.launch(
        adjust_logits,
        (num_logits, blocks),
        THREADS,
        processed,
        best,
        logits[:num_logits],
        sampling.temperature,
        sampling.repetition,
        sampling.presence,
        sampling.frequency,
        lists.counts,
        sampling.num_bias,
        lists.bias_ids,
        lists.bias_values,
        sampling.restricted,
        lists.allowed,
        slots,
        places,
        step.input_token_ids,
        indices,
        live,
    )
    launch.launch(
        forbid_tokens,
        num_logits,
        ROW_THREADS,
        processed,
        best,
        state.history,
        state.total_len,
        state.min_total_len,
        state.stop_ids,
        sampling.num_bad,
        lists.bad_starts,
        lists.bad_tokens,
        slots,
        places,
        step.input_token_ids,
        indices,
        live,
    )
    _record_filters(launch, sampling, scratch, processed, slots, live)


def _record_filters(
    launch: Launcher, sampling: SamplingState, scratch: SamplingScratch, processed: Array, slots: Array, live: Array
) -> None:
    rows = processed.shape[0]
    filters, best = scratch.filters, scratch.stripe_best
    histogram, found, threshold = filters.histogram[:rows], filters.found[:rows], filters.threshold[:rows]
    members, num_members = filters.members[:rows], filters.num_members[:rows]
    temperature, top_k, top_p, min_p = sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
    # Few rows need many blocks each to fill a GPU; many rows need none, and a block pays for its histogram.
    counting, listing = ((rows, min(best.shape[0], max(1, -(-blocks // rows)))) for blocks in (COUNT_BLOCKS, LIST_BLOCKS))
    launch.launch(count_logits, counting, THREADS, histogram, processed, best, temperature, top_k, top_p, slots, live)
    kinds = (temperature, top_k, top_p, min_p, slots, live)
    launch.launch(find_buckets, rows, SEARCH_THREADS, found, threshold, num_members, histogram, processed, best, *kinds)
    launch.launch(list_members, listing, THREADS, members, num_members, found, processed, best, slots, live)
    ranked = (threshold, members, num_members, found, best, top_k, top_p, slots, live)
    launch.launch(rank_members, rows, RANK_THREADS, *ranked)


def record_counting(launch: Launcher, step: StepArrays, lists: RequestLists, num_requests: int) -> None:
    """Record what the step kept -> lists.counts. To be recorded behind `advance`."""
    inputs = step.inputs
    sampled, num_sampled = step.sampled[:num_requests], step.num_sampled[:num_requests]
    rows = inputs.idx_mapping[:num_requests], inputs.num_requests
    launch.launch(count_tokens, 1, ROW_THREADS, lists.counts, sampled, num_sampled, *rows)
