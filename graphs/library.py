"""All graphs of an engine: captured once, largest first, looked up by key, replayed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from graphs.key import Family, GraphKey
from graphs.launch import Launcher
from graphs.trace import Trace

Recorder = Callable[[Launcher, GraphKey], None]
Mode = Literal["graph", "eager"]


class Executable(Protocol):
    """What a device makes of a capture."""

    def launch(self, stream: Any) -> None: ...


class Capture(Protocol):
    """The scope of a capture; `graph` is there once it was left without an exception."""

    @property
    def graph(self) -> Executable: ...


class ReplayWatch(Protocol):
    """Hears of every launch of a graph: a profiler notes the time, or records an event on either side of it."""

    def before(self, key: GraphKey) -> None: ...

    def after(self, key: GraphKey) -> None: ...


class CapturingStream(Launcher, Protocol):
    """A stream that can put its launches into a graph."""

    def capture(self, name: str = ...) -> AbstractContextManager[Capture]: ...


@dataclass(frozen=True)
class StepGraph:
    """One graph of the library: its key, what it reads and writes by array name, and how to run it."""

    key: GraphKey
    reads: frozenset[str]
    writes: frozenset[str]
    num_nodes: int
    executable: Executable | None  # None in eager mode: the recorder itself is run


class GraphLibrary:
    """Owner of the captured graphs of one stream.

    Args:
        stream: the compute stream that every graph is captured from and launched on.
        recorders: how each family is recorded.
        mode: "graph" replays captured graphs; "eager" runs the recorder at every launch (ablation, debugging).
        before_launch: called with the graph before it is queued: the mirrors check their tags here and refuse a stale read.
        after_launch: called with the graph once it is queued: the mirrors move their tags.
    """

    def __init__(
        self,
        stream: CapturingStream,
        recorders: Mapping[Family, Recorder],
        mode: Mode,
        before_launch: Callable[[StepGraph], None],
        after_launch: Callable[[StepGraph], None],
    ) -> None:
        self._stream = stream
        self._recorders = dict(recorders)
        self._before_launch = before_launch
        self._after_launch = after_launch
        self.mode: Mode = mode
        self.graphs: dict[GraphKey, StepGraph] = {}
        self.traces: dict[GraphKey, Trace] = {}
        self.launches: Counter[GraphKey] = Counter()
        self.capture_seconds = 0.0
        self.watch: ReplayWatch | None = None

    def capture(self, keys: Iterable[GraphKey], progress: Callable[[int, int], None] | None = None) -> None:
        """Capture every key, largest first: what the largest needs of memory, the smaller ones find there."""
        ordered = sorted(set(keys) - set(self.graphs), key=lambda key: (key.num_tokens, key.num_requests), reverse=True)
        for done, key in enumerate(ordered):
            if progress is not None:
                progress(done, len(ordered))
            self.graphs[key] = self._capture(key)

    def _capture(self, key: GraphKey) -> StepGraph:
        record = self._recorders[key.family]
        began = time.perf_counter()
        trace = self.traces[key] = Trace.of(lambda launch: record(launch, key))
        executable: Executable | None = None
        if self.mode == "graph":
            with self._stream.capture(str(key)) as captured:
                record(self._stream, key)
            executable = captured.graph
        self.capture_seconds += time.perf_counter() - began
        return StepGraph(key, trace.reads, trace.writes, len(trace.nodes), executable)

    def record(self, launch: Launcher, key: GraphKey) -> None:
        """Record what the graph of `key` launches on any launcher: to look at its parts."""
        self._recorders[key.family](launch, key)

    def launch(self, key: GraphKey) -> None:
        """Queue the graph of `key` on the stream.

        Raises:
            KeyError: the key was never captured.
            StaleReadError: (from the mirrors) an array that the graph reads is older on the device than on the host.
        """
        graph = self.graphs[key]
        self._before_launch(graph)
        if self.watch is not None:
            self.watch.before(key)
        if graph.executable is not None:
            graph.executable.launch(self._stream)
        else:
            self._recorders[key.family](self._stream, key)
        if self.watch is not None:
            self.watch.after(key)
        self._after_launch(graph)
        self.launches[key] += 1

    def close(self) -> None:
        """Drop the executables, and the recorders with what they hold. Idempotent."""
        self.graphs.clear()
        self.traces.clear()
        self._recorders.clear()
