"""`python -m tests.host_step`: what the host does for a step, measured on a GPU that does nothing (tests/idle_gpu.py).

Microseconds of each phase, medians over steady decode steps of the SmolLM2 shape; calls into CUDA cost nothing here. To compare two
states of the sources, run it in each of them in turn, several times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from runtime.engine import Engine
from runtime.phase_clock import NO_PHASES, Phase, PhaseClock
from runtime.sampling import SamplingParams
from tests.idle_gpu import idle_gpu

SPECULATORS: dict[str, dict[str, Any]] = {
    "none": {"speculator__method": "none"},
    "ngram": {"speculator__method": "ngram", "speculator__num_speculative_tokens": 4},
    "dflash2": {
        "speculator__method": "dflash",
        "speculator__draft_source": "random:dflash2?block=8",
        "speculator__num_speculative_tokens": 4,
    },
}
WORK = (Phase.SCHEDULE, Phase.STAGE, Phase.LAUNCH, Phase.UPDATE, Phase.DETOKENISE)


@contextmanager
def decoding_engine(speculator: str, requests: int, source: str = "random:smollm2-135m?layers=8") -> Iterator[Engine]:
    """An engine in the middle of the decode of that many requests, every step of which yields a token, or two with drafts."""
    with idle_gpu() as module, Engine.from_config(
        {},
        on_device=module.CudaDevice(),
        device="cuda",
        model__source=source,
        model__dtype="bfloat16",
        scheduler__max_num_seqs=8,
        scheduler__max_model_len=2048,
        scheduler__max_num_batched_tokens=512,
        graphs__ops="plain",
        run__chat=False,
        **SPECULATORS[speculator],
    ) as engine:
        _answer(engine, num_drafts=0, num_sampled=1)
        prompt = list(range(20, 80))
        generations = [engine.submit(prompt, SamplingParams(max_tokens=1900, ignore_eos=True)) for _ in range(requests)]
        while not all(generation.events for generation in generations):
            engine.step()
        if speculator != "none":
            engine.step()  # collects the first decode row, which was launched with the answer above
            _answer(engine, num_drafts=4, num_sampled=2)
        for _ in range(20):
            engine.step()
        yield engine


def _answer(engine: Engine, *, num_drafts: int, num_sampled: int) -> None:
    """What every row of every step says from now on: kernels/publish.py, as the host finds it in the page-locked blocks."""
    ring: Any = engine.runner.buffers.outcomes  # type: ignore[attr-defined]
    for block in ring._landings._blocks:
        block.write(7)
        block.write(np.array([num_sampled, num_drafts, 0, 0], np.int32), (slice(None), slice(0, 4)))


def phases_of(engine: Engine, steps: int) -> dict[str, float]:
    """Microseconds of each phase in a median step, and of their sum without the wait."""
    clock = PhaseClock((steps + 1) * len(Phase))
    engine.trace_phases(clock)
    for _ in range(steps):
        engine.step()
    engine.trace_phases(NO_PHASES)
    spent = np.zeros((len(Phase), steps))
    for span in clock.spans():
        if 0 <= span.step < steps:
            spent[span.phase, span.step] += (span.end - span.start) / 1e3
    medians = {phase.label: float(np.median(spent[phase, :-1])) for phase in WORK}
    return medians | {"work": float(np.median(spent[list(WORK), :-1].sum(axis=0)))}


def calls_of(engine: Engine, steps: int) -> float:
    """Calls of functions, in Python and in C, in a mean step."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(steps):
            engine.step()
    finally:
        sys.setprofile(before)
    return counted / steps


def main() -> None:
    for speculator in SPECULATORS:
        for requests in (1, 8):
            with decoding_engine(speculator, requests) as engine:
                phases, calls = phases_of(engine, 600), calls_of(engine, 48)
            parts = ", ".join(f"{name} {micros:.1f}" for name, micros in phases.items() if name != "work")
            print(f"{speculator:8} c={requests}: {phases['work']:6.1f} us a step ({parts}); {calls:.0f} calls")


if __name__ == "__main__":
    main()
