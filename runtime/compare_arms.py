"""Arms of a comparison: the same configuration but for what tells them apart, and evidence that something does."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from runtime.config import RunConfig, load_config
from runtime.config_file import parse_override
from runtime.cut_short import refuse_cut_short, refuse_stuck
from runtime.errors import ConfigError
from runtime.prompts import Prompt
from runtime.report import RequestOutput
from runtime.sampling import SamplingParams

NOISY_COUNTERS = ("event_queries", "copied_bytes")
"""What differs between runs of one arm: how often an event is asked for, how many cells of a block table a reused slot changes."""


@dataclass(frozen=True)
class Arm:
    """One side. name: what it sets, as the command line says it, e.g. `runner.async=true`."""

    name: str
    config: RunConfig

    @classmethod
    def parse(cls, text: str, base: RunConfig) -> Arm:
        """`a.b=c`, or several of them apart by spaces: `speculator.method=dflash speculator.num_speculative_tokens=7`.

        Raises ConfigError.
        """
        try:
            overrides = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"--arms {text}: {error}; write KEY=VALUE, several of them apart by spaces") from error
        if not overrides:
            raise ConfigError("--arms: an arm sets at least one key, as in runner.async=false")
        for override in overrides:
            parse_override(override, "--arms")  # a mistake in its form is one of this option, and load_config would say --set
        try:
            return cls(text, load_config(base, overrides))
        except ConfigError as error:
            raise ConfigError(f"--arms {text}: {error}") from error


@dataclass(frozen=True)
class Sample:
    """One run of one arm.

    Attributes:
        tpot_ms: of a request, mean over the requests; per token after the first, and not per step.
        tokens_per_s: of all requests together, prefill included.
        outputs: SHA-256 of the token ids, in the order of the prompts.
        path: what the run did, by counters: see `path_taken`.
    """

    tpot_ms: float
    tokens_per_s: float
    outputs: str
    path: Mapping[str, Any]


def measure(engine: Any, prompts: Sequence[Prompt], params: SamplingParams, concurrency: int) -> Sample:
    """Answer each prompt once, `concurrency` of them at a time: where one is done, the next takes its place.

    Raises ConfigError: answers of one token, cut short by the model's length, or with no token to choose.
    """
    before, began = _counts(engine), time.perf_counter()
    outputs = _answers(engine, prompts, params, concurrency)
    seconds = time.perf_counter() - began
    engine.drain()
    refuse_stuck(outputs)
    refuse_cut_short(outputs, params, engine.scheduler.max_model_len)
    tpots = [output.tpot_s for output in outputs if output.tpot_s is not None]
    if not tpots:
        raise ConfigError("compare: no request produced two tokens, so there is no time per token; raise --output-len")
    digest = hashlib.sha256(repr([[int(token) for token in output.token_ids] for output in outputs]).encode())
    produced = sum(len(output.token_ids) for output in outputs)
    return Sample(1e3 * fmean(tpots), produced / seconds, digest.hexdigest(), path_taken(engine, before, _counts(engine)))


def _answers(engine: Any, prompts: Sequence[Prompt], params: SamplingParams, concurrency: int) -> list[RequestOutput]:
    """Of each prompt, in their order."""
    running: list[Any] = []
    outputs: dict[int, RequestOutput] = {}
    try:
        while len(outputs) < len(prompts):
            while len(running) < concurrency and len(outputs) + len(running) < len(prompts):
                index = len(outputs) + len(running)
                running.append(engine.submit(prompts[index], params, index=index))
            engine.step()
            for generation in running:
                generation.events.clear()
                if generation.output is not None:
                    outputs[generation.place.index] = generation.output
            running = [generation for generation in running if generation.output is None]
    finally:
        for generation in running:
            engine.cancel(generation.request.request_id)
    return [outputs[index] for index in range(len(prompts))]


def path_taken(engine: Any, before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Any]:
    """What tells arms apart, counted and not configured: an option that is ignored leaves no trace here.

    Counters of the engine's paths and of the device, and of each graph that was launched what it launches and how many of them may
    start early, as a digest.
    """
    changed = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
    library = engine.runner.library
    graphs = {}
    for key in library.graphs:
        if f"graph {key}" in changed:
            names = "\n".join(f"{node.name} {node.grid} {node.block}" for node in library.traces[key].nodes)
            names += f"\nof them early {getattr(library.graphs[key].executable, 'num_early', 0)}"
            graphs[str(key)] = hashlib.sha256(names.encode()).hexdigest()[:12]
    return {"counters": changed, "graphs": graphs}


def _counts(engine: Any) -> dict[str, int]:
    """Flat: names of counters to numbers since the engine was opened."""
    counts = {f"graph {key}": count for key, count in engine.runner.library.launches.items()}
    sources = {"path": engine.runner.paths.as_dict(), "device": vars(engine.runner.device.counters)}
    for source, values in sources.items():
        for name, value in values.items():
            if name in NOISY_COUNTERS:
                continue
            if isinstance(value, Mapping):
                counts |= {f"{source} {name} {key}": count for key, count in value.items()}
            else:
                counts[f"{source} {name}"] = value
    return counts
