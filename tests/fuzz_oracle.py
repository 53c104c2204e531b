"""What the race detector must say of a program of tests/fuzz_programs.py, and what each run of one must end with."""

from __future__ import annotations

from typing import Any

from runtime.virtual_device import VirtualDevice
from tests.fuzz_interpreter import Interpreter, PythonExecutor
from tests.fuzz_programs import EVENTS, RANGES, STREAMS, Program, Step


def oracle(program: Program, queries: dict[int, bool]) -> set[int]:
    """The steps that race with an earlier one: sets of finished operations instead of clocks, nothing merged, nothing forgotten.

    queries: what each query answered in the run that is judged: only a True orders the host.
    """
    host = 0  # bit i: operation i is known to have run
    streams = [0] * STREAMS
    events: list[int | None] = [None] * EVENTS
    log: list[tuple[int, str, slice, bool]] = []  # (bit, memory, range, writes)
    flagged: set[int] = set()
    operations = 0

    def touched(step: Step) -> list[tuple[str, bool]]:
        device = ("d0", "d1", "m")
        pinned = ("p0", "p1", "m")
        if step.what == "mix":
            return [(device[step.a], True), (device[step.b], False)]
        if step.what == "h2d":
            return [(device[step.a], True), (pinned[step.b], False)]
        if step.what == "d2h":
            return [(pinned[step.a], True), (device[step.b], False)]
        return [(pinned[step.a], step.what == "write")]

    def races(step: Step, known: int) -> bool:
        part = RANGES[step.part]
        return any(
            memory == other and (writes or other_writes) and part.start < span.stop and span.start < part.stop and not known & bit
            for memory, writes in touched(step)
            for bit, other, span, other_writes in log
        )

    def enqueue(step: Step, known: int) -> int:
        nonlocal operations
        bit = 1 << operations
        operations += 1
        log.extend((bit, memory, RANGES[step.part], writes) for memory, writes in touched(step))
        return known | bit

    for i, step in enumerate(program):
        event = events[step.a % EVENTS]
        if step.what in ("write", "read"):
            if races(step, host):
                flagged.add(i)
        elif step.what == "stream_sync":
            host |= streams[step.stream]
        elif step.what == "device_sync":
            host = (1 << operations) - 1
        elif step.what == "record":
            events[step.a] = streams[step.stream]
        elif step.what == "wait":
            streams[step.stream] |= event or 0
        elif step.what == "event_sync" or (step.what == "query" and queries.get(i)):
            host |= event or 0
        elif step.what in ("mix", "h2d", "d2h"):
            known = streams[step.stream] | host
            if races(step, known):
                flagged.add(i)
            streams[step.stream] = enqueue(step, known)
        elif step.what == "graph":
            for _ in range(step.repeats):
                ends = [streams[step.stream] | host] * 2
                inner: list[int] = [0, 0]
                for node in step.nodes:
                    if node.what == "record":
                        inner[node.a] = ends[node.stream]
                    elif node.what == "wait":
                        ends[node.stream] |= inner[node.a]
                    else:
                        if races(node, ends[node.stream]):
                            flagged.add(i)
                        ends[node.stream] = enqueue(node, ends[node.stream])
                streams[step.stream] = ends[0] | ends[1]
    return flagged


def check(program: Program, seeds: range) -> None:
    """What must hold for every program; AssertionError says what does not.

    1. Under every schedule the detector flags exactly the steps that the oracle flags.
    2. A run without a flag ends as the program run in order does, poison or not.
    """
    reference = Interpreter(VirtualDevice(PythonExecutor(), schedule="eager", detect=False)).run(program).outputs
    schedules: list[tuple[Any, int]] = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in seeds)]
    for schedule, seed in schedules:
        device = VirtualDevice(PythonExecutor(), schedule=schedule, seed=seed, poison=seed % 2 == 0, on_race="record")
        result = Interpreter(device).run(program)
        expected = oracle(program, result.queries)
        assert result.flagged == expected, (
            f"{schedule} {seed}: the detector flags steps {sorted(result.flagged)}, the oracle {sorted(expected)} of {program}"
        )
        if not expected:
            assert result.outputs == reference, f"{schedule} {seed}: no race, but {result.outputs} != {reference} for {program}"


def differs_somewhere(program: Program, seeds: range) -> bool:
    """Does any schedule end otherwise than the program run in order?"""
    reference = Interpreter(VirtualDevice(PythonExecutor(), schedule="eager", detect=False)).run(program).outputs
    schedules: list[tuple[Any, int]] = [("lazy", 0), *(("random", seed) for seed in seeds)]
    return any(
        Interpreter(VirtualDevice(PythonExecutor(), schedule=schedule, seed=seed, detect=False)).run(program).outputs != reference
        for schedule, seed in schedules
    )
