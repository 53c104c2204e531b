"""Soak: one engine for many steps of random arrivals, cancels, preemptions and stops, checked against the oracle as it goes."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import dataclass

from runtime.gates.case import Case
from runtime.gates.toy import continuation, sequential_decode, text_of
from runtime.gates.toy_engine import ToyOptions, Venue, open_toy
from runtime.generation import Generation
from runtime.runner import Runner
from runtime.sampling import SamplingParams

NUM_SLOTS, K, MAX_LEN, BLOCKS = 4, 3, 48, 26
"""Four sequences of full length need 48 blocks: with 26 long ones are preempted now and then."""


@dataclass(frozen=True)
class SoakReport:
    """What a soak found.

    mismatches: requests that are not what the oracle says, the first of them in words.
    grown_bytes: Python memory that was allocated since the first quarter and is still held, in bytes.
    grown_objects: the same in objects that the garbage collector knows.
    held: what was not given back at the end, "" for nothing.
    """

    steps: int
    requests: int
    cancelled: int
    preemptions: int
    stale_rows: int
    mismatches: tuple[str, ...]
    races: int
    grown_bytes: int
    grown_objects: int
    held: str


class Soak:
    """Args: seed of everything that is drawn; the rest as runtime.gates.toy_engine.open_toy."""

    def __init__(self, seed: int, executor: Venue, runner_type: type[Runner] = Runner) -> None:
        self._draw = random.Random(seed)
        script = Case(k=K, batch=NUM_SLOTS, accept="ragged", seed=seed).script()
        self._options = ToyOptions(
            num_slots=NUM_SLOTS,
            k=K,
            max_model_len=MAX_LEN,
            max_num_batched_tokens=14,  # three decode rows of four: one skips whenever all of them decode
            num_blocks=BLOCKS,
            policy=("discrete", "integrated")[seed % 2],
            schedule="random",
            seed=seed,
            script=script,
        )
        self._toy = open_toy(self._options, executor, runner_type)
        self._live: list[Generation] = []
        self._mismatches: list[str] = []
        self._requests = self._cancelled = 0

    def run(self, steps: int) -> SoakReport:
        """Exactly `steps` steps of the loop, then until everything has ended."""
        tracemalloc.start()
        memory, objects = 0, 0
        for number in range(steps):
            if number == steps // 4:
                memory, objects = _held()
            self._one()
        while self._toy.engine.has_unfinished:
            self._toy.engine.step()
            self._look()
        self._live.clear()
        grown = [now - before for now, before in zip(_held(), (memory, objects), strict=True)]
        tracemalloc.stop()
        report = self._report(steps, *grown)
        self._toy.engine.close()
        return report

    def _one(self) -> None:
        draw, engine = self._draw, self._toy.engine
        if len(self._live) < 3 * NUM_SLOTS and draw.random() < 0.3:
            self._live.append(self._submit())
            self._requests += 1
        if self._live and draw.random() < 0.03:
            generation = draw.choice(self._live)
            self._cancelled += engine.cancel(generation.request.request_id)
        engine.step()
        self._look()

    def _submit(self) -> Generation:
        draw = self._draw
        prompt = [draw.randint(1, 31) for _ in range(draw.choice((1, 3, 4, 9, 18, MAX_LEN - 5, MAX_LEN - 1)))]
        later = continuation(prompt, len(prompt) + 16, self._options.memory)[len(prompt) :]
        place = draw.randrange(1, 14)
        params = draw.choice(
            (
                SamplingParams(max_tokens=draw.randint(1, 30)),
                SamplingParams(max_tokens=400),
                SamplingParams(max_tokens=400, stop_token_ids=(later[place],)),
                SamplingParams(max_tokens=400, stop=(text_of(later[place : place + 2]),)),
                SamplingParams(max_tokens=20, min_tokens=6, stop_token_ids=(later[2], later[place])),
            )
        )
        return self._toy.engine.submit(prompt, params)

    def _look(self) -> None:
        """Drop the events that came, and check the requests that ended."""
        for generation in self._live:
            generation.events.clear()
        for generation in [generation for generation in self._live if generation.output is not None]:
            self._live.remove(generation)
            self._check(generation)

    def _check(self, generation: Generation) -> None:
        output, request = generation.output, generation.request
        assert output is not None
        got = list(output.token_ids)
        expected, reason = sequential_decode(request.prompt_token_ids, request.params, MAX_LEN, self._options.memory)
        if output.finish_reason == "cancelled":
            expected, reason = expected[: len(got)], "cancelled"
        if (got, output.finish_reason) != (expected, reason):
            self._mismatches.append(f"{request.request_id}: {got} ({output.finish_reason}); the oracle: {expected} ({reason})")

    def _report(self, steps: int, grown_bytes: int, grown_objects: int) -> SoakReport:
        scheduler = self._toy.engine.scheduler
        scheduler.check_integrity()
        held = {"blocks": scheduler.blocks.num_blocks - scheduler.blocks.num_free, "slots": len(scheduler.slots.held)}
        return SoakReport(
            steps=steps,
            requests=self._requests,
            cancelled=self._cancelled,
            preemptions=scheduler.counters.preemptions,
            stale_rows=scheduler.counters.stale_rows,
            mismatches=tuple(self._mismatches),
            races=len(self._toy.races),
            grown_bytes=grown_bytes,
            grown_objects=grown_objects,
            held=", ".join(f"{count} {name}" for name, count in held.items() if count),
        )


def _held() -> tuple[int, int]:
    """Bytes and objects of this process that are still reachable."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects())
