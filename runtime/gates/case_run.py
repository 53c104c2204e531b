"""CaseRun: one case played through the engine from the first arrival to the last token, with everything a gate asks about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.gates.case import STEP_LIMIT, Case, RequestPlan
from runtime.gates.device_model import DeviceModel, Drafter
from runtime.gates.recording import RecordedStep, RecordingRunner
from runtime.gates.tapes import TapeRow, read_tape
from runtime.gates.toy import lookup_drafts, overruled_drafts, scripted_drafts
from runtime.gates.toy_drafter import block_drafts
from runtime.gates.toy_engine import DRAFTERS, NGRAM_MAX, NGRAM_MIN, ToyEngine, ToyOptions, Venue, open_toy
from runtime.generation import Generation
from runtime.path_counters import PathCounters
from runtime.runner import Runner

TAPE_STEPS = 2048


@dataclass(frozen=True)
class TapeRecords:
    """The tapes of a run by step: rows that were drafted, fed and compared."""

    drafted: list[list[TapeRow]]
    fed: list[list[TapeRow]]
    compared: list[list[TapeRow]]


@dataclass
class CaseRun:
    """What happened.

    generations: of the requests, in order of arrival.
    streamed: tokens of each as they came.
    coverage: how often each path was taken that a gate must not miss.
    leaks: what was still held when everything had ended, "" for nothing.
    """

    case: Case
    options: ToyOptions
    requests: list[RequestPlan]
    generations: list[Generation]
    streamed: list[list[int]]
    steps: list[RecordedStep]
    paths: PathCounters
    races: list[str]
    tapes: TapeRecords | None
    leaks: str
    coverage: Counter[str] = field(default_factory=Counter)


def run_case(case: Case, executor: Venue, *, tapes: bool = False, runner_type: type[Runner] = Runner) -> CaseRun:
    """Play `case`. Arrivals are all at the start; cancels come before the step that the case names.

    Raises:
        Whatever the engine raises: a gate reports it as a failure of the case.
        RuntimeError: the engine makes no progress.
    """
    toy = open_toy(case.options(tape_steps=TAPE_STEPS if tapes else 0), executor, runner_type)
    recording = RecordingRunner(toy.runner, toy.device)
    toy.engine.runner = recording
    try:
        requests = case.requests()
        generations = [toy.engine.submit(plan.prompt, plan.params, index=index) for index, plan in enumerate(requests)]
        streamed: list[list[int]] = [[] for _ in requests]
        _play(toy, recording, requests, generations, streamed)
        return CaseRun(
            case=case,
            options=toy.options,
            requests=requests,
            generations=generations,
            streamed=streamed,
            steps=recording.steps,
            paths=toy.runner.paths,
            races=toy.races,
            tapes=_read_tapes(toy),
            leaks=_leaks(toy),
            coverage=_coverage(toy, generations),
        )
    finally:
        toy.engine.close()


def drafter_of(case: Case) -> Drafter:
    """The Python meaning of the case's speculator."""
    if case.speculator == "ngram":
        return lambda prefix, slot: lookup_drafts(prefix, case.k, min_n=NGRAM_MIN, max_n=NGRAM_MAX)
    script = case.script()
    if case.speculator in DRAFTERS:
        version, longest = DRAFTERS[case.speculator], case.options().effective_max_model_len

        def drafts(prefix: Sequence[int], slot: int) -> list[int]:
            drafted = block_drafts(version, prefix, case.k, longest)
            return overruled_drafts(drafted, prefix, script[slot], case.memory)

        return drafts
    return lambda prefix, slot: scripted_drafts(prefix, script[slot], case.k, case.memory)


def model_of(run: CaseRun) -> DeviceModel:
    options = run.options
    return DeviceModel(
        options.k,
        options.effective_max_model_len,
        options.memory,
        drafter_of(run.case),
        options.eos_token_ids,
        pauses=run.case.keeps_context,
    )


def _play(
    toy: ToyEngine,
    recording: RecordingRunner,
    requests: list[RequestPlan],
    generations: list[Generation],
    streamed: list[list[int]],
) -> None:
    for number in range(STEP_LIMIT):
        recording.turn = number
        for plan, generation in zip(requests, generations, strict=True):
            if plan.cancel_at == number:
                toy.engine.cancel(generation.request.request_id)
        toy.engine.step()
        for generation, tokens in zip(generations, streamed, strict=True):
            while generation.events:
                tokens.extend(generation.events.pop(0).token_ids)
        if not toy.engine.has_unfinished:
            return
    raise RuntimeError(f"no end after {STEP_LIMIT} steps: {toy.engine.scheduler}")


def _read_tapes(toy: ToyEngine) -> TapeRecords | None:
    if toy.tapes is None:
        return None
    tapes = toy.tapes
    return TapeRecords(
        read_tape(toy.device, tapes.drafted), read_tape(toy.device, tapes.fed), read_tape(toy.device, tapes.compared)
    )


def _leaks(toy: ToyEngine) -> str:
    scheduler = toy.engine.scheduler
    scheduler.check_integrity()
    held = {"blocks": scheduler.blocks.num_blocks - scheduler.blocks.num_free, "slots": len(scheduler.slots.held)}
    held["steps in flight"] = scheduler.num_steps_in_flight
    return ", ".join(f"{count} {name}" for name, count in held.items() if count)


def _coverage(toy: ToyEngine, generations: list[Generation]) -> Counter[str]:
    counters = toy.engine.scheduler.counters
    coverage = Counter(
        {
            "preemptions": counters.preemptions,
            "frames dropped": counters.stale_rows,
            "slots given again": max(0, toy.runner.paths.admissions - toy.options.num_slots),
            "padded rows": toy.runner.paths.padded_rows,
        }
    )
    for generation in generations:
        assert generation.output is not None
        coverage[f"ended: {generation.output.finish_reason}"] += 1
    return coverage
