"""Bench: times a set of prompts on one engine, warm-up first, and reports median and spread.

Result keys are those of `vllm bench serve --save-result`, so that its tools read the file; what they do not have
(repetitions, load time, memory, prefill and decode rates of single requests) has names of its own.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.config import RunConfig
from runtime.prompts import Prompt
from runtime.report import RequestOutput, RunRecord, total_acceptance
from runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from runtime.engine import Engine


@dataclass(frozen=True)
class Bench:
    """What to time: `prompts` in calls of `max_concurrency`, `num_warmups` times unseen, then `repeats` times."""

    prompts: Sequence[Prompt]
    num_warmups: int
    repeats: int
    max_concurrency: int

    def run(self, config: RunConfig, open_engine: Callable[[], AbstractContextManager[Engine]]) -> dict[str, Any]:
        """Opens an engine, times it, closes it. Seconds, except where a key ends in _ms."""
        start = time.perf_counter()
        with open_engine() as engine:
            load_s = time.perf_counter() - start
            for _ in range(self.num_warmups):
                self._repetition(engine, config.sampling.params())
            repetitions = [self._repetition(engine, config.sampling.params()) for _ in range(self.repeats)]
        records = [record for records in repetitions for record in records]
        durations = [sum(record.end - record.start for record in records) for records in repetitions]
        outputs = [output for record in records for output in record.outputs()]
        rates = [
            sum(len(output.token_ids) for record in records for output in record.outputs()) / duration
            for records, duration in zip(repetitions, durations, strict=True)
        ]
        result = self._header(config) | _counts(outputs, sum(durations)) | _latencies(records, outputs)
        result |= {
            "load_s": load_s,
            "peak_memory_bytes": _peak_memory_bytes(),
            "repetition_durations_s": durations,
            "repetition_output_throughputs": rates,
            "median_output_throughput": statistics.median(rates),
            "output_throughput_spread": (max(rates) - min(rates)) / statistics.median(rates),
            "token_ids": [[int(token) for token in output.token_ids] for output in outputs[: len(self.prompts)]],
        }
        if self.max_concurrency == 1:
            result |= _single_request_rates(outputs)
        return result | _acceptance(outputs)

    def _repetition(self, engine: Engine, params: SamplingParams) -> list[RunRecord]:
        records = []
        for first in range(0, len(self.prompts), self.max_concurrency):
            prompts = self.prompts[first : first + self.max_concurrency]
            record = RunRecord(prompts, time.perf_counter())
            for event in engine.stream(prompts, params):
                record.add(event, time.perf_counter())
            records.append(record)
        return records

    def _header(self, config: RunConfig) -> dict[str, Any]:
        return {
            "date": datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": "offline",
            "backend": "draftgraph",
            "label": None,
            "model_id": config.model.source,
            "tokenizer_id": config.model.source,
            "num_prompts": len(self.prompts) * self.repeats,
            "request_rate": "inf",
            "burstiness": 1.0,
            "max_concurrency": self.max_concurrency,
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


def render_bench(result: dict[str, Any]) -> str:
    """The result for a reader."""
    lines = [
        f"{result['model_id']}: {result['num_prompts']} requests ({result['repeats']} repetitions after "
        f"{result['num_warmups']} warm-up), {result['max_concurrency']} at a time",
        f"load {result['load_s']:.2f} s, peak memory {result['peak_memory_bytes'] / 2**30:.2f} GiB",
        f"tokens: {result['total_input_tokens']} in, {result['total_output_tokens']} out",
        f"output: median {result['median_output_throughput']:.1f} tok/s, spread "
        f"{result['output_throughput_spread'] * 100:.1f} % over repetitions",
    ]
    if "prefill_tokens_per_s" in result:
        lines.append(
            f"one request: prefill {result['prefill_tokens_per_s']:.1f} tok/s, "
            f"decode {_rate(result['decode_tokens_per_s'])}"
        )
    for name in ("ttft", "tpot", "itl", "e2el"):
        if f"median_{name}_ms" in result:
            lines.append(
                f"{name.upper()}: median {result[f'median_{name}_ms']:.2f} ms, mean {result[f'mean_{name}_ms']:.2f}, "
                f"std {result[f'std_{name}_ms']:.2f}, p99 {result[f'p99_{name}_ms']:.2f}"
            )
    if "spec_decode_acceptance_length" in result:
        rates = " ".join(f"{rate:.2f}" for rate in result["spec_decode_per_position_acceptance_rates"])
        lines.append(
            f"acceptance length {result['spec_decode_acceptance_length']:.2f}, rate "
            f"{result['spec_decode_acceptance_rate']:.1f} %, per position {rates}, "
            f"{result['spec_decode_num_drafts']} drafts"
        )
    if "speedup" in result:
        plain = result["without_speculation"]["median_output_throughput"]
        same = "the same tokens" if result["same_tokens"] else "DIFFERENT TOKENS"
        lines.append(f"without speculation: {plain:.1f} tok/s; speed-up {result['speedup']:.2f}, {same}")
    return "\n".join(lines)


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
    return {
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


def _rate(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:.1f} tok/s"
