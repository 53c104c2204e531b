"""What a step of each number of drafts costs on this machine, measured when an engine is opened: what `auto` decides by."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runtime.config import SpeculatorConfig
from runtime.draft_lengths import AdaptiveLengths, FixedLength
from runtime.metrics import AcceptanceStats
from runtime.path_counters import PathCounters
from runtime.sampling import SamplingParams

CANDIDATES = (0, 1, 3, 5)
"""Beside the most that are allowed: between neighbours of these the yield of a step differs little."""

PROMPT_LEN = 32
SETTLING_STEPS, TIMED_STEPS = 3, 8
LEAST_STEPS, ENOUGH_S = 2, 0.3
"""Of one size: fewer steps do where they take that long together."""

SECOND_LOOK_S = 3.0
"""Everything is timed twice, a disturbance of the machine being over by then, unless the first time took longer than that."""

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def draft_lengths(config: SpeculatorConfig) -> tuple[int, ...] | None:
    """Every number of drafts that a step of this configuration may verify; None where it never changes."""
    if config.adapts:
        return tuple(sorted({config.k, *(count for count in CANDIDATES if count < config.k)}))
    return None if config.ranges is None else tuple(sorted(set(config.ranges.values())))


def adapt(engine: Any, vocab_size: int, progress: Progress, clock: Callable[[], float] = time.perf_counter) -> None:
    """Time steps of the engine and let what pays decide from then on. The engine is idle before and after; nothing of the
    measurement stays in its counts."""
    table = measured(engine, vocab_size, progress, clock)
    runner, scheduler = engine.runner, engine.scheduler
    scheduler.lengths = AdaptiveLengths(runner.draft_lengths, table)
    for bucket in runner.buckets.sizes:
        times = ", ".join(f"{k}: {table[bucket, k] * 1e3:.3f}" for k in runner.draft_lengths)
        logger.info("ms of a step by drafts, %d requests: %s", bucket, times)
    limits = scheduler.limits
    scheduler.acceptance = AcceptanceStats(limits.num_speculative_tokens, limits.synthetic_acceptance)
    runner.paths = PathCounters()


def measured(engine: Any, vocab_size: int, progress: Progress, clock: Callable[[], float]) -> Mapping[tuple[int, int], float]:
    """Seconds of a step by (requests, drafts), for every bucket of requests and every captured number of drafts: medians of
    steady steps over random prompts, from one call of Engine.step to the next, so that the host counts where it is the slower.

    A step with more drafts is never taken for the shorter one: what says so is noise, and would speak for drafting.
    """
    scheduler, runner = engine.scheduler, engine.runner
    sizes = [(bucket, k) for bucket in runner.buckets.sizes for k in runner.draft_lengths]
    table = dict.fromkeys(sizes, float("inf"))
    began = clock()
    for look in range(2):
        for number, (bucket, k) in enumerate(sizes):
            progress(look * len(sizes) + number, 2 * len(sizes))
            scheduler.lengths = FixedLength(k)
            table[bucket, k] = min(table[bucket, k], _step_time(engine, bucket, vocab_size, clock))
        if clock() - began > SECOND_LOOK_S:
            break
    progress(2 * len(sizes), 2 * len(sizes))
    return {(b, k): min(table[b, more] for more in runner.draft_lengths if more >= k) for b, k in sizes}


def _step_time(engine: Any, requests: int, vocab_size: int, clock: Callable[[], float]) -> float:
    """Of `requests` rows that decode. Requests that end before enough steps were timed (a short max_model_len) begin again."""
    rng = np.random.default_rng(requests)
    longest = engine.scheduler.max_model_len
    prompt_len = min(PROMPT_LEN, max(1, longest // 4))
    params = SamplingParams(max_tokens=longest - prompt_len, ignore_eos=True)
    times: list[float] = []

    def enough() -> bool:
        return len(times) >= TIMED_STEPS or (len(times) >= LEAST_STEPS and sum(times) > ENOUGH_S)

    while not enough():
        generations = [engine.submit(rng.integers(vocab_size, size=prompt_len).tolist(), params) for _ in range(requests)]
        before, settling = len(times), SETTLING_STEPS
        while not enough() and all(generation.output is None for generation in generations):
            decoding = all(generation.request.output_token_ids for generation in generations)
            began = clock()
            engine.step()
            if decoding and settling == 0:
                times.append(clock() - began)
            settling -= decoding and settling > 0
        for generation in generations:
            engine.cancel(generation.request.request_id)
        while engine.has_unfinished:
            engine.step()
        if len(times) == before:
            break  # sequences are so short that no step is steady: whatever is said of them does not matter
    return statistics.median(times) if times else 1.0
