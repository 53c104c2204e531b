"""Bench: times a set of prompts on one engine, warm-up first: medians with their spread, and what a step costs.

Result keys are those of `vllm bench serve --save-result`, so that its tools read the file; what they do not have
(repetitions, load time, memory, prefill and decode rates of single requests) has names of its own.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.config import RunConfig
from runtime.console import Advance, ProgressBars, silent_bar
from runtime.copy_bandwidth import copy_bandwidth
from runtime.cpu_threads import busy_elsewhere, usable_cores
from runtime.cut_short import refuse_cut_short, refuse_stuck
from runtime.prompts import Prompt
from runtime.random_prompts import random_prompts
from runtime.report import RequestOutput, RunRecord, total_acceptance
from runtime.sampling import SamplingParams
from runtime.shown_value import counted
from runtime.step_probe import probe_steps

if TYPE_CHECKING:
    from runtime.engine import Engine

WIDE_SPREAD = 0.2
"""Over the median. Repetitions of equal work that differ by more were disturbed."""


@dataclass(frozen=True)
class Bench:
    """What to time.

    prompts       of each repetition
    num_warmups   repetitions before the clock counts, at each level
    repeats       timed repetitions at each level
    levels        requests at a time: prompts go in calls of that many, one level after the other on one engine
    input_len     instead of prompts: as many random ones of this length as requests at a time
    """

    prompts: Sequence[Prompt]
    num_warmups: int
    repeats: int
    levels: Sequence[int]
    input_len: int | None = None

    def filled(self) -> Bench:
        """With the prompts repeated until they are enough for the highest level."""
        times = -(-max(self.levels) // len(self.prompts)) if self.prompts else 1
        return replace(self, prompts=list(self.prompts) * times)

    def run(
        self,
        config: RunConfig,
        open_engine: Callable[[], AbstractContextManager[Engine]],
        bars: ProgressBars = silent_bar,
    ) -> list[dict[str, Any]]:
        """Opens an engine, times it at every level, closes it. Seconds, except where a key ends in _ms. A bar a level advances
        between repetitions."""
        start = time.perf_counter()
        with open_engine() as engine:
            load_s = time.perf_counter() - start
            # Measured once all that the engine needs is allocated, and before anything else runs.
            device: Any = engine.runner.device  # type: ignore[attr-defined]
            bandwidth = copy_bandwidth(device) if device.has_clock else None
            results = []
            for level in self.levels:
                with bars(f"bench: {counted(level, 'request')} at a time", "repetitions") as advance:
                    results.append(self._level(engine, config, level, load_s, bandwidth, advance))
            return results

    def _level(
        self, engine: Engine, config: RunConfig, concurrency: int, load_s: float, bandwidth: float | None, advance: Advance
    ) -> dict[str, Any]:
        prompts, params = self._prompts_of(engine, concurrency), config.sampling.params_to_time()
        done, total = 0, self.num_warmups + self.repeats + 1  # the last is for what a step costs

        def repetition() -> list[RunRecord]:
            nonlocal done
            advance(done, total)
            records = [_timed(engine, call, params) for call in _calls(prompts, concurrency)]
            done += 1
            return records

        for _ in range(self.num_warmups):
            repetition()
        repetitions = [repetition() for _ in range(self.repeats)]
        records = [record for records in repetitions for record in records]
        durations = [sum(record.end - record.start for record in records) for records in repetitions]
        outputs = [output for record in records for output in record.outputs()]
        refuse_stuck(outputs)
        refuse_cut_short(outputs[: len(prompts)], params, engine.scheduler.max_model_len)
        result = self._header(config, concurrency, len(prompts)) | _counts(outputs, sum(durations))
        result |= _latencies(records, outputs) | _by_repetition(repetitions, durations)
        if max(result["output_throughput_spread"], result.get("tpot_spread", 0.0)) > WIDE_SPREAD:
            result |= {"cores_busy_elsewhere": busy_elsewhere(), "usable_cores": usable_cores()}
        result |= {
            "load_s": load_s,
            "peak_memory_bytes": _peak_memory_bytes(),
            "token_ids": [[int(token) for token in output.token_ids] for output in outputs[: len(prompts)]],
        }
        if concurrency == 1:
            result |= _single_request_rates(outputs)
        result |= _acceptance(outputs)
        if lengths := engine.info().get("speculator", {}).get("draft_lengths"):
            result["draft_lengths"] = lengths
        steps = probe_steps(engine, repetition)
        advance(total, total)
        if "device_step_ms" in steps:
            steps |= _streaming(engine, outputs, concurrency, steps["device_step_ms"]["median"], bandwidth)
        return result | {"steps": steps}

    def _prompts_of(self, engine: Engine, concurrency: int) -> Sequence[Prompt]:
        if self.input_len is None:
            return self.prompts
        return random_prompts(engine, concurrency, self.input_len)

    def _header(self, config: RunConfig, concurrency: int, num_prompts: int) -> dict[str, Any]:
        return {
            "date": datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": "offline",
            "backend": "draftgraph",
            "label": None if config.speculator.synthetic_acceptance is None else f"acceptance {config.speculator.acceptance}",
            "model_id": config.model.source,
            "tokenizer_id": config.model.source,
            "num_prompts": num_prompts * self.repeats,
            "request_rate": "inf",
            "burstiness": 1.0,
            "max_concurrency": concurrency,
            "max_concurrent_requests": min(concurrency, num_prompts),
            "num_warmups": self.num_warmups,
            "repeats": self.repeats,
            "config": config.as_dict(),
        }


def compared(result: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """`result` with the run without speculation beside it: its numbers, the speed-up, and whether tokens agree."""
    return result | {
        "without_speculation": plain,
        "speedup": result["median_output_throughput"] / plain["median_output_throughput"],
        "same_tokens": result["token_ids"] == plain["token_ids"],
    }


def _calls(prompts: Sequence[Prompt], concurrency: int) -> Iterator[Sequence[Prompt]]:
    for first in range(0, len(prompts), concurrency):
        yield prompts[first : first + concurrency]


def _timed(engine: Engine, prompts: Sequence[Prompt], params: SamplingParams) -> RunRecord:
    record = RunRecord(prompts, time.perf_counter())
    for event in engine.stream(prompts, params):
        record.add(event, time.perf_counter())
    return record


def _by_repetition(repetitions: Sequence[Sequence[RunRecord]], durations: Sequence[float]) -> dict[str, Any]:
    """One figure for each repetition, their median, and their spread: largest less smallest, over the median."""
    rates, tpots = [], []
    for records, duration in zip(repetitions, durations, strict=True):
        outputs = [output for record in records for output in record.outputs()]
        rates.append(sum(len(output.token_ids) for output in outputs) / duration)
        tpots += [statistics.median(known)] if (known := [o.tpot_s * 1e3 for o in outputs if o.tpot_s is not None]) else []
    result: dict[str, Any] = {
        "repetition_durations_s": list(durations),
        "repetition_output_throughputs": rates,
        "median_output_throughput": statistics.median(rates),
        "output_throughput_spread": (max(rates) - min(rates)) / statistics.median(rates),
    }
    if tpots:
        result |= {"repetition_tpots_ms": tpots, "tpot_spread": (max(tpots) - min(tpots)) / statistics.median(tpots)}
    return result


def _streaming(
    engine: Engine, outputs: Sequence[RequestOutput], concurrency: int, step_ms: float, bandwidth: float | None
) -> dict[str, Any]:
    """What a steady step reads, at what rate, and the rate of a copy in the same run. Keys and values are those of sequences that
    are half finished, which is what the steps of a run have on average."""
    info = engine.info()
    model, scheduler, speculator = info["model"], info["scheduler"], info["speculator"]
    length = statistics.fmean(len(output.prompt_token_ids) + len(output.token_ids) / 2 for output in outputs)
    token_bytes = scheduler["kv_cache_bytes"] / (scheduler["num_blocks"] * scheduler["block_size"])
    nbytes = {
        "weight_bytes": model["streamed_bytes"] + speculator["streamed_bytes"],
        "kv_bytes": int(concurrency * length * token_bytes),
    }
    rate = sum(nbytes.values()) / (step_ms / 1e3)
    result: dict[str, Any] = nbytes | {"achieved_gb_s": rate / 1e9}
    if bandwidth is None:
        return result | {"copy_absent": "no memory was left for a copy of 256 MiB"}
    return result | {"copy_gb_s": bandwidth / 1e9, "share_of_copy": rate / bandwidth}


def _counts(outputs: Sequence[RequestOutput], duration: float) -> dict[str, Any]:
    num_in = sum(len(output.prompt_token_ids) for output in outputs)
    num_out = sum(len(output.token_ids) for output in outputs)
    return {
        "duration": duration,
        "completed": len(outputs),
        "failed": 0,
        "total_input_tokens": num_in,
        "total_output_tokens": num_out,
        "request_throughput": len(outputs) / duration,
        "request_goodput": None,
        "output_throughput": num_out / duration,
        "total_token_throughput": (num_in + num_out) / duration,
    }


def _latencies(records: Sequence[RunRecord], outputs: Sequence[RequestOutput]) -> dict[str, float]:
    """ITL is per step (one event), TPOT per token; they differ by the acceptance length."""
    seen = [(record.start, times) for record in records for times in record.token_times if times]
    samples = {
        "ttft": [output.ttft_s for output in outputs if output.ttft_s is not None],
        "tpot": [output.tpot_s for output in outputs if output.tpot_s is not None],
        "itl": [late - early for _, times in seen for early, late in pairwise(times)],
        "e2el": [times[-1] - start for start, times in seen],
    }
    result = {}
    for name, seconds in samples.items():
        if seconds:
            values = np.asarray(seconds) * 1000.0
            result[f"mean_{name}_ms"] = float(values.mean())
            result[f"median_{name}_ms"] = float(np.median(values))
            result[f"std_{name}_ms"] = float(values.std())
            result[f"p99_{name}_ms"] = float(np.percentile(values, 99))
    return result


def _single_request_rates(outputs: Sequence[RequestOutput]) -> dict[str, float | None]:
    """Prefill and decode apart: only where each request runs alone is its TTFT its prefill."""
    prefill_s = sum(output.ttft_s for output in outputs if output.ttft_s is not None)
    decoded = [(len(output.token_ids) - 1, output.tpot_s) for output in outputs if output.tpot_s is not None]
    decode_s = sum(tokens * tpot for tokens, tpot in decoded)
    return {
        "prefill_tokens_per_s": sum(len(output.prompt_token_ids) for output in outputs) / prefill_s,
        "decode_tokens_per_s": sum(tokens for tokens, _ in decoded) / decode_s if decode_s else None,
    }


def _acceptance(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    acceptance = total_acceptance(outputs)
    if acceptance is None:
        return {}
    marked = {} if acceptance.synthetic is None else {"acceptance": f"synthetic:{acceptance.synthetic:g}"}
    return marked | {
        "spec_decode_acceptance_rate": acceptance.draft_acceptance_rate * 100.0,
        "spec_decode_acceptance_length": acceptance.mean_acceptance_length,
        "spec_decode_num_drafts": acceptance.num_drafts,
        "spec_decode_draft_tokens": acceptance.num_draft_tokens,
        "spec_decode_accepted_tokens": acceptance.num_accepted_tokens,
        "spec_decode_per_position_acceptance_rates": acceptance.per_position_acceptance,
    }


def _peak_memory_bytes() -> int:
    """Largest resident size of this process so far. Where Linux says it, of this program alone: ru_maxrss begins at the size of
    the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
