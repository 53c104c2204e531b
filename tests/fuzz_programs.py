"""Random programs for the virtual device, an interpreter for them, and an oracle for what the race detector must say.

A program is a list of `Step`s over three streams, two device arrays, two pinned arrays, one mapped array (both a device and a host
array) and four events. `anything_goes` draws each step blindly. `mostly_ordered` puts the waits that each step needs before it, as
direct edges or through a third stream with no operation between (t -> u -> s), and forgets one in eight: there one missing edge is
the only defect, which blind programs seldom have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphs.executor import Bound, KernelArgument
from graphs.launch import Grid
from kernels.lang import Kernel, kernel
from runtime.virtual_device import VirtualDevice
from runtime.virtual_stream import VirtualStream

STREAMS, ARRAYS, EVENTS, LENGTH = 3, 3, 4, 4
RANGES = (slice(0, 4), slice(0, 2), slice(2, 4), slice(1, 3))
MAPPED = 2  # this device array and this host array are one
FORGET = 0.12


@kernel(writes=("y",))
def mix(y, x, c):
    """y = (3x + 5y + c) mod 9973: depends on the order of everything."""
    for i in range(len(y)):
        y[i] = (int(x[i]) * 3 + int(y[i]) * 5 + int(c)) % 9973


class PythonExecutor:
    """Runs kernels as the Python functions that they are written as: enough for a few elements, and nothing to compile."""

    name = "python"

    def bind(self, kernel: Kernel, grid: Grid, block: int, args: tuple[KernelArgument, ...]) -> Bound:
        return lambda: kernel.py_func(*args)


@dataclass(frozen=True)
class Step:
    """One statement. `a`, `b`: array, event or stream numbers, by what; `part`: of RANGES; `nodes`, `repeats`: of a graph."""

    what: str
    stream: int = 0
    a: int = 0
    b: int = 0
    part: int = 0
    value: int = 0
    nodes: tuple[Step, ...] = ()
    repeats: int = 1


Program = list[Step]


def _device_work(rng: random.Random, stream: int) -> Step:
    what = rng.choice(("mix", "mix", "h2d", "d2h"))
    part = rng.choice((0, 0, 1, 2, 3))
    return Step(what, stream, rng.randrange(ARRAYS), rng.randrange(ARRAYS), part, rng.randrange(9))


def _graph(rng: random.Random, stream: int) -> Step:
    """Work on two branches, with edges between them that may come too late or point the wrong way."""
    nodes = []
    for _ in range(rng.randrange(2, 9)):
        branch, event = rng.randrange(2), rng.randrange(2)
        what = rng.choice(("work", "work", "record", "wait", "edge"))
        if what == "work":
            nodes.append(_device_work(rng, branch))
        elif what == "edge":
            nodes += [Step("record", branch, event), Step("wait", 1 - branch, event)]
        else:
            nodes.append(Step(what, branch, event))
    return Step("graph", stream, nodes=tuple(nodes), repeats=rng.randrange(1, 3))


def _host_work(rng: random.Random) -> Step:
    what = rng.choice(("write", "read"))
    return Step(what, a=rng.randrange(ARRAYS), part=rng.randrange(len(RANGES)), value=rng.randrange(9))


def anything_goes(rng: random.Random) -> Program:
    """6 to 25 steps, each drawn by itself."""
    program = []
    for _ in range(rng.randrange(6, 26)):
        stream, event = rng.randrange(STREAMS), rng.randrange(EVENTS)
        what = rng.choices(
            ("work", "record", "wait", "host", "event_sync", "stream_sync", "device_sync", "graph", "query"),
            (8, 4, 4, 3, 2, 2, 1, 2, 2),
        )[0]
        if what == "work":
            program.append(_device_work(rng, stream))
        elif what == "graph":
            program.append(_graph(rng, stream))
        elif what == "host":
            program.append(_host_work(rng))
        else:
            program.append(Step(what, stream, event))
    return program


def mostly_ordered(rng: random.Random) -> Program:
    """3 to 8 pieces of work, each after the waits that order it behind everything before, one in eight of them forgotten."""
    program: Program = []
    used = 0

    def edge(source: int, target: int) -> None:
        nonlocal used
        program.extend((Step("record", source, used % EVENTS), Step("wait", target, used % EVENTS)))
        used += 1

    def order_stream(target: int) -> None:
        for source in range(STREAMS):
            if source == target or rng.random() < FORGET:
                continue
            between = 3 - source - target
            if rng.random() < 0.5:
                edge(source, target)
            else:
                edge(source, between)
                edge(between, target)

    def order_host() -> None:
        nonlocal used
        for source in range(STREAMS):
            if rng.random() < FORGET:
                continue
            how = rng.random()
            if how < 0.3:
                program.append(Step("stream_sync", source))
                continue
            last = source
            if how > 0.6:
                last = (source + 1) % STREAMS
                edge(source, last)
            program.extend((Step("record", last, used % EVENTS), Step("event_sync", a=used % EVENTS)))
            used += 1

    for _ in range(rng.randrange(3, 9)):
        stream = rng.randrange(STREAMS)
        if rng.random() < 0.3:
            order_host()
            program.append(_host_work(rng))
        else:
            order_stream(stream)
            program.append(_graph(rng, stream) if rng.random() < 0.4 else _device_work(rng, stream))
    return program


GENERATORS: dict[str, Callable[[random.Random], Program]] = {"anything_goes": anything_goes, "mostly_ordered": mostly_ordered}


@dataclass
class Result:
    """outputs: what the host read, and every array at the end; flagged: the steps that a hazard was reported for."""

    outputs: list[list[int]]
    flagged: set[int]
    queries: dict[int, bool]


class Interpreter:
    """Runs one program on one device."""

    def __init__(self, device: VirtualDevice) -> None:
        self.device = device
        self.streams = [device.stream(f"s{i}") for i in range(STREAMS)]
        self.events = [device.event(f"e{i}") for i in range(EVENTS)]
        both = device.mapped("m", (LENGTH,), np.int64)
        self.on_device = [device.array("d0", (LENGTH,), np.int64), device.array("d1", (LENGTH,), np.int64), both]
        self.on_host = [device.pinned("p0", (LENGTH,), np.int64), device.pinned("p1", (LENGTH,), np.int64), both]
        for i, array in enumerate((*self.on_device, *self.on_host[:MAPPED])):
            device.upload(array, np.arange(LENGTH) + 10 * i)

    def run(self, program: Program) -> Result:
        outputs: list[list[int]] = []
        flagged: set[int] = set()
        queries: dict[int, bool] = {}
        for i, step in enumerate(program):
            before = len(self.device.races)
            value = self._step(step)
            if isinstance(value, bool):
                queries[i] = value
            elif value is not None:
                outputs.append(value)
            if len(self.device.races) > before:
                flagged.add(i)
        outputs += [self.device.download(array).tolist() for array in (*self.on_device, *self.on_host[:MAPPED])]
        return Result(outputs, flagged, queries)

    def _step(self, step: Step) -> Any:
        stream, event = self.streams[step.stream], self.events[step.a % EVENTS]
        recorded = event.recorded
        if step.what == "write":
            self.on_host[step.a].write(step.value, RANGES[step.part])
        elif step.what == "read":
            return self.on_host[step.a].read(RANGES[step.part]).tolist()
        elif step.what == "stream_sync":
            stream.synchronize()
        elif step.what == "device_sync":
            self.device.synchronize()
        elif step.what == "record":
            stream.record(event)
        elif step.what == "wait" and recorded:
            stream.wait(event)
        elif step.what == "event_sync" and recorded:
            event.synchronize()
        elif step.what == "query" and recorded:
            return event.query()
        elif step.what == "graph":
            self._graph(step, stream)
        elif step.what in ("mix", "h2d", "d2h"):
            self._work(step, stream)
        return None

    def _work(self, step: Step, stream: VirtualStream) -> None:
        part = RANGES[step.part]
        if step.what == "mix":
            stream.launch(mix, 1, 1, self.on_device[step.a][part], self.on_device[step.b][part], step.value)
        elif step.what == "h2d":
            stream.copy(self.on_device[step.a][part], self.on_host[step.b][part])
        else:
            stream.copy(self.on_host[step.a][part], self.on_device[step.b][part])

    def _graph(self, step: Step, stream: VirtualStream) -> None:
        """Fork at once, each node on the branch that it names, join at the end."""
        branches = (stream, self.streams[(step.stream + 1) % STREAMS])
        events = [self.device.event() for _ in range(2)]
        fork, merge = self.device.event(), self.device.event()
        with stream.capture() as capture:
            stream.record(fork)
            branches[1].wait(fork)
            for node in step.nodes:
                if node.what == "record":
                    branches[node.stream].record(events[node.a])
                elif node.what == "wait":
                    if events[node.a].captured is not None:
                        branches[node.stream].wait(events[node.a])
                else:
                    self._work(node, branches[node.stream])
            branches[1].record(merge)
            stream.wait(merge)
        for _ in range(step.repeats):
            capture.graph.launch(stream)


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
