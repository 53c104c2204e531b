"""Runs a program of tests/fuzz_programs.py on a device, and says which of its steps the race detector flagged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphs.executor import Bound, KernelArgument
from graphs.launch import Grid
from kernels.lang import Kernel, kernel
from runtime.virtual_device import VirtualDevice
from runtime.virtual_stream import VirtualStream
from tests.fuzz_programs import EVENTS, LENGTH, RANGES, STREAMS, Program, Step

MAPPED = 2  # this device array and this host array are one


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
