"""An engine over a tiny checkpoint on a device of the test's choice, and what plain greedy decoding says it must produce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphs.cpu_executor import CpuExecutor
from runtime.device_counters import DeviceCounters
from runtime.engine import Engine
from runtime.generation import Generation
from runtime.report import RequestOutput
from runtime.sampling import SamplingParams
from runtime.virtual_device import VirtualDevice
from tests.reference_forward import reference_logits
from tests.reference_sampling import processed
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint

EXECUTOR = CpuExecutor()  # shared: every kernel is compiled, or read from the disk cache, once in a process
EOS = 2


def open_tiny(
    model: Path, *, schedule: Any = "lazy", seed: int = 0, k: int = 3, poison: bool = True, on: Any = None, **overrides: Any
) -> Engine:
    """Engine.from_config over `model` with small sizes; races raise at the line that completes them.

    Args:
        schedule, seed: of the virtual device.
        k: num_speculative_tokens of the n-gram proposer; 0 = no speculation.
        on: another device to use.
        overrides: as Engine.from_config takes them; they win over the small sizes.
    """
    device = on or VirtualDevice(EXECUTOR, schedule=schedule, seed=seed, poison=poison)
    settings: dict[str, Any] = {
        "model__source": str(model),
        "device": "cpu",
        "mirror__poison": poison,
        "scheduler__max_num_seqs": 4,
        "scheduler__max_model_len": 64,
        "scheduler__max_num_batched_tokens": 32,
        "scheduler__block_size": 4,
        "speculator__method": "ngram" if k else "none",
        "speculator__num_speculative_tokens": k,
        "run__chat": False,
    }
    return Engine.from_config({}, on_device=device, **(settings | overrides))


class Reference:
    """Greedy decoding one token at a time by tests/reference_forward, remembered from test to test."""

    def __init__(self, model: TinyModel) -> None:
        self.model = model
        self._logits: dict[tuple[int, ...], npt.NDArray[Any]] = {}

    def logits(self, tokens: tuple[int, ...]) -> npt.NDArray[Any]:
        """[V] of the token behind `tokens`."""
        if tokens not in self._logits:
            self._logits[tokens] = reference_logits(self.model.config, self.model.tensors, tokens)[-1]
        return self._logits[tokens]

    def next_token(self, prompt: tuple[int, ...], output: tuple[int, ...], params: SamplingParams, stops: set[int]) -> int:
        logits = processed(self.logits(prompt + output), prompt, output, params, stops)
        best, second = np.sort(logits)[[-1, -2]]
        # Rounding differs from kernel to kernel: a case whose winner is that close would prove nothing.
        assert best - second > 1e-5, f"the reference is not sure of the token behind {prompt + output}: choose another prompt"
        return int(np.argmax(logits))

    def generate(self, prompt: Sequence[int], params: SamplingParams, max_model_len: int) -> tuple[tuple[int, ...], str]:
        """(token ids, finish reason) without stop strings, which end text and not tokens."""
        prompt = tuple(prompt)
        output: tuple[int, ...] = ()
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
        while True:
            output += (self.next_token(prompt, output, params, stops),)
            if output[-1] in stops:
                return output, "stop"
            if len(output) == params.max_tokens or len(prompt) + len(output) == max_model_len:
                return output, "length"


def tiny_reference(folder: Path, shape: TinyShape | None = None) -> Reference:
    return Reference(write_tiny_checkpoint(folder, shape))


# Greedy text that repeats itself with variations: prompt lookup is right about half of the time. The first seldom ends by itself,
# the second often does.
LOOPING = TinyShape(seed=0, attention_scale=0.1, num_likely_ids=24)
ENDING = TinyShape(seed=3, attention_scale=0.1, num_likely_ids=24)


@dataclass(frozen=True)
class Arrival:
    """One request: it is submitted before step `step` of the engine's loop."""

    prompt: Sequence[int]
    params: SamplingParams
    step: int = 0


def drive(engine: Engine, arrivals: Sequence[Arrival], max_steps: int = 2000) -> list[RequestOutput]:
    """Submit and step by hand until everything has ended; outputs in the order of `arrivals`."""
    generations: dict[int, Generation] = {}
    for step in range(max_steps):
        for index, arrival in enumerate(arrivals):
            if arrival.step == step:
                generations[index] = engine.submit(list(arrival.prompt), arrival.params, index=index)
        if len(generations) == len(arrivals) and not engine.has_unfinished:
            outputs = [generations[index].output for index in range(len(arrivals))]
            assert all(output is not None for output in outputs)
            return [output for output in outputs if output is not None]
        engine.step()
        engine.scheduler.check_integrity()
    raise AssertionError(f"not finished after {max_steps} steps: {engine.scheduler}")


def check_outputs(reference: Reference, engine: Engine, arrivals: Sequence[Arrival], outputs: Sequence[RequestOutput]) -> None:
    """Tokens and finish reasons are those of the reference; slots, blocks and the device are left clean."""
    for number, (arrival, output) in enumerate(zip(arrivals, outputs, strict=True)):
        expected = reference.generate(arrival.prompt, arrival.params, engine.scheduler.max_model_len)
        assert (output.token_ids, output.finish_reason) == expected, f"request {number}: {arrival}"
    check_idle(engine)


def count_steady_steps(engine: Engine, steps: int = 5) -> DeviceCounters:
    """What steps ask of the device in which requests decode and none begins or ends: a wait for one event each, and two replays.

    engine: a request with room for ten steps was submitted.
    """
    counters = engine.runner.device.counters  # type: ignore[attr-defined]
    for _ in range(4):
        engine.step()
    before = counters.copy()
    for _ in range(steps):
        engine.step()
    counted: DeviceCounters = counters.since(before)
    assert (counted.stream_synchronizes, counted.device_synchronizes, counted.transfers) == (0, 0, 0)
    assert counted.event_synchronizes == steps
    assert counted.graph_launches == 2 * steps
    return counted


def check_idle(engine: Engine) -> None:
    """Nothing is held any more and no race was seen."""
    scheduler, device = engine.scheduler, engine.runner.device  # type: ignore[attr-defined]
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert scheduler.slots.num_free == scheduler.limits.max_num_seqs
    assert getattr(device, "races", []) == []  # a GPU detects none
