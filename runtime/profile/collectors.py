"""Collectors: where the records of a pass come from. Three ways to look at a device, one form of what was seen.

A collector is made before the engine, begins and ends while the device is idle, and hears of each replay in between.
"""

from __future__ import annotations

import time
from typing import Any

from graphs.key import Family, GraphKey
from runtime.profile.host_calls import HostCalls
from runtime.profile.trace import Activity, Kind, Mode, Replay

OPENING = (Family.MIXED, Family.DECODE, Family.VERIFY)
"""A step begins with one of these and may launch others behind it: drafts, a drafter's context, log probabilities."""


class Collector:
    """Records nothing; the base of those that do."""

    mode: Mode

    def begin(self, engine: Any) -> None:
        """Records count from here on."""

    def before(self, key: GraphKey) -> None:
        """A graph is about to be launched."""

    def after(self, key: GraphKey) -> None:
        """It was launched."""

    def end(self, engine: Any) -> tuple[list[Activity], int]:
        """The records since `begin`, and how many more were dropped."""
        raise NotImplementedError

    def host_calls(self, window: tuple[int, int], steps: int) -> HostCalls | None:
        """After `end`: the host's calls between the launches of two replays, `steps` steps apart; None where nobody noted them."""
        return None


class ReplayLog:
    """The replays of a pass as the host made them (graphs.library.ReplayWatch).

    Attributes:
        replays: key, beginning and end of the call, in order.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._began = 0
        self._noted: list[tuple[GraphKey, int, int]] = []

    def __len__(self) -> int:
        return len(self._noted)

    def before(self, key: GraphKey) -> None:
        self._collector.before(key)
        self._began = time.perf_counter_ns()

    def after(self, key: GraphKey) -> None:
        self._noted.append((key, self._began, time.perf_counter_ns()))
        self._collector.after(key)

    def uniform_steps(self) -> int:
        """Steps at the end of the log in which every row decoded, without a prompt between them."""
        steps = 0
        for key, _, _ in reversed(self._noted):
            if key.family is Family.MIXED:
                break
            steps += key.family in OPENING
        return steps

    def replays(self) -> list[Replay]:
        return [Replay(str(key), start, end, key.family in OPENING) for key, start, end in self._noted]


class EventCollector(Collector):
    """The untraced pass: a timed event of our own before and behind each replay, outside the graphs."""

    mode = Mode.EVENTS

    def __init__(self) -> None:
        self._events: list[tuple[GraphKey, Any, Any]] = []
        self._engine: Any = None
        self._origin: Any = None
        self._origin_ns = 0
        self._begin: Any = None

    def begin(self, engine: Any) -> None:
        self._engine = engine
        engine.runner.device.synchronize()
        self._origin = self._event("origin")
        early = time.perf_counter_ns()
        self._origin.synchronize()
        self._origin_ns = (early + time.perf_counter_ns()) // 2

    def before(self, key: GraphKey) -> None:
        self._begin = self._event("begin")

    def after(self, key: GraphKey) -> None:
        self._events.append((key, self._begin, self._event("end")))

    def end(self, engine: Any) -> tuple[list[Activity], int]:
        engine.runner.device.synchronize()
        ids: dict[GraphKey, int] = {}
        activities = []
        for number, (key, begin, end) in enumerate(self._events, start=1):
            graph = ids.setdefault(key, len(ids) + 1)
            activities.append(Activity(Kind.GRAPH, str(key), self._host_ns(begin), self._host_ns(end), "compute", number, graph))
        return activities, 0

    def _event(self, name: str) -> Any:
        runner = self._engine.runner
        event = runner.device.event(f"profile_{name}_{len(self._events)}", timing=True)
        runner.compute.record(event)
        return event

    def _host_ns(self, event: Any) -> int:
        return self._origin_ns + round(event.milliseconds_since(self._origin) * 1e6)


class QueueCollector(Collector):
    """A device that models a GPU on the host: its operations in the order in which they ran, on the clock of the host.

    Args:
        inside: a replay is shown as the nodes inside it instead of as a whole.
    """

    mode = Mode.HOST

    def __init__(self, *, inside: bool) -> None:
        self._inside = inside
        self._ran: list[tuple[str, str, int, int, int]] = []  # label, stream, serial, start, end
        self._nodes: list[tuple[str, str, int, int]] = []  # of the replay that runs at present
        self._launches: list[tuple[int, int, GraphKey]] = []
        self._queue: Any = None
        self._first = 0

    def begin(self, engine: Any) -> None:
        engine.runner.device.synchronize()
        self._queue = engine.runner.device.queue
        self._queue.observe = self._observe
        if self._inside:
            self._queue.observe_node = self._observe_node

    def before(self, key: GraphKey) -> None:
        self._first = self._queue.num_enqueued

    def after(self, key: GraphKey) -> None:
        self._launches.append((self._first, self._queue.num_enqueued, key))

    def end(self, engine: Any) -> tuple[list[Activity], int]:
        engine.runner.device.synchronize()
        self._queue.observe = self._queue.observe_node = None
        launch_of: dict[int, tuple[int, GraphKey]] = {}
        for number, (first, last, key) in enumerate(self._launches, start=1):
            launch_of.update(dict.fromkeys(range(first + 1, last + 1), (number, key)))
        ids: dict[GraphKey, int] = {}
        activities = []
        for label, stream, serial, start, end in self._ran:
            launch = graph = 0
            if serial in launch_of:
                launch, key = launch_of[serial]
                graph = ids.setdefault(key, len(ids) + 1)
            activities.append(Activity(_kind(label), _name(label), start, end, stream, launch, graph))
        return activities, 0

    def _observe(self, operation: Any, start: int, end: int) -> None:
        if self._nodes:
            self._ran += [(label, stream, operation.serial, began, ended) for label, stream, began, ended in self._nodes]
            self._nodes.clear()
        else:
            self._ran.append((operation.origin.label, operation.origin.stream or "host", operation.serial, start, end))

    def _observe_node(self, origin: Any, start: int, end: int) -> None:
        self._nodes.append((origin.label, origin.stream or "host", start, end))


def _kind(label: str) -> Kind:
    """Of an operation of the virtual device, by what it is called in reports."""
    word = label.partition(" ")[0]
    return {"graph": Kind.GRAPH, "copy": Kind.MEMCPY, "fill": Kind.MEMSET}.get(word, Kind.KERNEL)


def _name(label: str) -> str:
    """`launch rms_norm` -> rms_norm, `matmul layers.0.qkv -> qkv` -> matmul; copies and graphs keep what they say."""
    word, _, rest = label.partition(" ")
    return {"launch": rest, "matmul": word}.get(word, label)
