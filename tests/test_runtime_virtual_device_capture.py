"""Capture and replay on the virtual device: what a graph does, what a capture refuses, and that streams survive a failed one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels.lang import kernel
from runtime.errors import DeviceError
from runtime.race_detector import Race, UseAfterFree
from runtime.virtual_capture import VirtualCapture
from runtime.virtual_device import VirtualDevice
from runtime.virtual_graph import VirtualGraph
from runtime.virtual_memory import VirtualArray
from tests.python_device import make

SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(6))]


@kernel(writes=("y",))
def accumulate(y, x, factor):
    """y += factor * x."""
    for i in range(len(y)):
        y[i] += factor * x[i]


def zeros(device: VirtualDevice, *names: str) -> list[VirtualArray]:
    arrays = [device.array(name, (2,), np.int32) for name in names]
    for array in arrays:
        device.upload(array, np.zeros(2, np.int32))
    return arrays


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_graph_replays_its_nodes_in_order_and_capture_runs_none(schedule: str, seed: int) -> None:
    device = make(schedule=schedule, seed=seed)
    stream, (x, y) = device.stream("compute"), zeros(device, "x", "y")
    with stream.capture("step") as capture:
        stream.launch(accumulate, 1, 1, y, x, 2)
        stream.fill(x, 3)
        stream.launch(accumulate, 1, 1, y, x, 1)
    assert device.download(y).tolist() == [0, 0]
    capture.graph.launch(stream)
    capture.graph.launch(stream)
    assert device.download(y).tolist() == [3 + 6 + 3] * 2


def test_what_a_graph_says_of_itself() -> None:
    device = make()
    stream = device.stream("compute")
    x, y = zeros(device, "x", "y")
    p = device.pinned("p", (2,), np.int32)
    w = device.constant("w", np.ones(2, np.int32))
    with stream.capture("step") as capture:
        stream.copy(x, p)
        stream.launch(accumulate, 1, 1, y[:1], x[:1], 1)
        stream.launch(accumulate, 1, 1, y[1:], w[1:], 1)
    graph = capture.graph
    assert (graph.name, graph.num_nodes) == ("step", 3)
    assert graph.reads == {"p", "x"}
    assert graph.writes == {"x", "y"}
    # Touching ranges are joined, and a range that is written covers the reads of it.
    assert sorted((a.allocation.name, a.start, a.stop, a.writes) for a in graph.accesses) == [
        ("p", 0, 8, False),
        ("x", 0, 8, True),
        ("y", 0, 8, True),
    ]
    assert repr(graph) == "VirtualGraph(step, 3 nodes in 1 segments)"
    dot = graph.dot()
    assert dot.startswith('digraph "step" {')
    assert 'n1 [label="launch accumulate\\ncompute"]' in dot
    assert "n0 -> n1;" in dot
    assert dot.endswith("}")


def test_replays_count_graphs_and_copies_but_no_launches() -> None:
    device = make()
    stream, (x,) = device.stream("compute"), zeros(device, "x")
    p = device.pinned("p", (2,), np.int32)
    p.write(5)
    with stream.capture() as capture:
        stream.copy(x, p)
        stream.fill(x, 1)
    before = device.counters.copy()
    for _ in range(3):
        capture.graph.launch(stream)
    counted = device.counters.since(before)
    assert (counted.graph_launches, counted.launches, counted.copies, counted.copied_bytes) == (3, 0, 3, 24)
    assert counted.copies_by_kind == {"h2d": 3}


def forked(device: VirtualDevice) -> tuple[VirtualGraph, VirtualArray]:
    """x = 1; then a = x and b = 2x on two streams; then x = a + b, twice over."""
    main, side = device.stream("main"), device.stream("side")
    x, a, b = zeros(device, "x", "a", "b")
    fork, join = device.event("fork"), device.event("join")
    with main.capture("forked") as capture:
        for _ in range(2):
            main.launch(accumulate, 1, 1, x, x, 1)
            main.record(fork)
            side.wait(fork)
            side.copy(b, x)
            side.launch(accumulate, 1, 1, b, x, 1)
            side.record(join)
            main.copy(a, x)
            main.wait(join)
            main.copy(x, a)
            main.launch(accumulate, 1, 1, x, b, 1)
    return capture.graph, x


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_fork_and_join_run_in_every_order_to_the_same_end(schedule: str, seed: int) -> None:
    device = make(schedule=schedule, seed=seed)
    graph, x = forked(device)
    stream = device.stream("other")
    stream.fill(x, 1)
    graph.launch(stream)
    graph.launch(stream)
    # Each round doubles x, then x = x + 2x: four rounds in all.
    assert device.download(x).tolist() == [6**4] * 2


def test_fork_and_join_are_segments() -> None:
    graph, _ = forked(make())
    assert graph.num_nodes == 12
    assert repr(graph) == "VirtualGraph(forked, 12 nodes in 7 segments)"


def test_a_race_between_branches_is_found_at_capture() -> None:
    device = make()
    main, side, fork = device.stream("main"), device.stream("side"), device.event("fork")
    x, y = zeros(device, "x", "y")

    def record() -> None:
        with main.capture("g"):
            main.record(fork)
            side.wait(fork)
            side.fill(x, 1)
            main.copy(y, x)

    with pytest.raises(Race, match=r"on `x`.*copy x -> y on stream `main`.*fill x on stream `side`") as caught:
        record()
    assert (caught.value.start, caught.value.stop) == (0, 8)
    assert works(device)


def test_replays_on_two_streams_without_an_edge_race() -> None:
    device = make()
    a, b, (x,) = device.stream("a"), device.stream("b"), zeros(device, "x")
    with a.capture("step") as capture:
        a.fill(x, 1)
    capture.graph.launch(a)
    with pytest.raises(Race, match=r"graph step on stream `b`.*graph step on stream `a`"):
        capture.graph.launch(b)
    done = device.event("done")
    a.record(done)
    b.wait(done)
    capture.graph.launch(b)


def test_a_graph_whose_array_was_freed_or_replaced_does_not_launch() -> None:
    device = make()
    stream, (x,) = device.stream("compute"), zeros(device, "x")
    with stream.capture("step") as capture:
        stream.fill(x, 1)
    device.free(x)
    with pytest.raises(UseAfterFree, match=r"graph `step` uses `x`, which was freed after the capture; capture the graph again"):
        capture.graph.launch(stream)
    device.array("x", (2,), np.int32)
    with pytest.raises(UseAfterFree, match="graph `step` uses `x`"):
        capture.graph.launch(stream)


def test_a_graph_belongs_to_its_device() -> None:
    device = make()
    stream, (x,) = device.stream("compute"), zeros(device, "x")
    with stream.capture("step") as capture:
        stream.fill(x, 1)
    with pytest.raises(DeviceError, match="captured on another device"):
        capture.graph.launch(make().stream("compute"))


def test_an_empty_graph_and_an_empty_fork_are_legal() -> None:
    device = make()
    main, side, fork, (x,) = device.stream("main"), device.stream("side"), device.event("fork"), zeros(device, "x")
    with main.capture() as capture:
        main.record(fork)
        side.wait(fork)
    main.fill(x, 2)
    capture.graph.launch(main)
    assert capture.graph.num_nodes == 0
    main.synchronize()
    assert device.download(x).tolist() == [2, 2]


def works(device: VirtualDevice) -> bool:
    """Every stream of the device takes work and captures again."""
    x = device.array("check", (2,), np.int32)
    for i, stream in enumerate(device._streams):
        stream.fill(x, i)
        with stream.capture("check") as capture:
            stream.fill(x, 10 + i)
        capture.graph.launch(stream)
        stream.synchronize()
        if x.values.tolist() != [10 + i] * 2:
            return False
    return device.capturing is None


class Scene:
    """A device with two streams, arrays, events in every state and a graph, for things that a capture must refuse."""

    def __init__(self) -> None:
        self.device = device = make()
        self.main, self.side = device.stream("main"), device.stream("side")
        self.x, self.y = zeros(device, "x", "y")
        self.p = device.pinned("p", (2,), np.int32)
        self.outside, self.inside, self.never = device.event("outside"), device.event("inside"), device.event("never")
        self.main.record(self.outside)
        with self.main.capture("earlier") as capture:
            self.main.fill(self.x, 1)
        self.graph = capture.graph
        self.second: VirtualCapture = self.side.capture("second")


REFUSED: dict[str, tuple[Callable[[Scene], object], str]] = {
    "synchronize of the stream": (lambda s: s.main.synchronize(), "synchronize of stream `main`"),
    "synchronize of another stream": (lambda s: s.side.synchronize(), "synchronize of stream `side`"),
    "synchronize of the device": (lambda s: s.device.synchronize(), "synchronize of the device"),
    "query of the stream": (lambda s: s.main.query(), "query of stream `main`"),
    "synchronize of an event": (lambda s: s.outside.synchronize(), "event `outside`"),
    "query of an event inside": (lambda s: (s.main.record(s.inside), s.inside.query()), "event `inside`"),
    "host write": (lambda s: s.p.write(1), "write of `p` by the host"),
    "host read": (lambda s: s.p.read(), "read of `p` by the host"),
    "allocation": (lambda s: s.device.array("new", (1,), np.int32), "allocation of `new`"),
    "free": (lambda s: s.device.free(s.x), "free of `x`"),
    "download": (lambda s: s.device.download(s.x), "download of `x`"),
    "close": (lambda s: s.device.close(), "close of the device"),
    "a graph in a graph": (lambda s: s.graph.launch(s.main), "launch of graph `earlier`"),
    "work on a stream outside": (lambda s: s.side.fill(s.x, 1), "fill x on stream `side`, which takes no part in it"),
    "record on a stream outside": (lambda s: s.side.record(s.inside), "record on stream `side`"),
    "wait for an event outside": (lambda s: s.main.wait(s.outside), "event `outside`, which was not recorded inside it"),
    "wait of a stream outside": (lambda s: s.side.wait(s.outside), "event `outside`, which was not recorded inside it"),
    "wait for an event never recorded": (lambda s: s.main.wait(s.never), "event `never`, which was not recorded inside it"),
    "a second capture": (lambda s: s.second.__enter__(), "a second capture, of graph `second`"),
    "a second capture of the stream": (lambda s: s.main.capture("again").__enter__(), "a second capture, of graph `again`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_capture_refuses_and_the_streams_work_again(name: str) -> None:
    act, text = REFUSED[name]
    scene = Scene()
    capture = scene.main.capture("broken")

    def record() -> None:
        with capture:
            scene.main.fill(scene.y, 1)
            act(scene)

    with pytest.raises(DeviceError, match=text) as caught:
        record()
    assert "capture of graph `broken`" in str(caught.value)
    with pytest.raises(DeviceError, match="`broken`: the capture has not ended, or has failed"):
        _ = capture.graph
    assert works(scene.device)


@pytest.mark.parametrize("name", REFUSED)
def test_swallowing_the_error_does_not_save_the_capture(name: str) -> None:
    act, text = REFUSED[name]
    scene = Scene()
    capture = scene.main.capture("broken")
    capture.__enter__()
    scene.main.fill(scene.y, 1)
    with pytest.raises(DeviceError):
        act(scene)
    with pytest.raises(DeviceError, match="`broken`: the capture was spoiled by") as caught:
        capture.__exit__(None, None, None)
    assert text in str(caught.value)
    assert works(scene.device)


def test_an_unjoined_fork_is_refused() -> None:
    scene = Scene()

    def record() -> None:
        with scene.main.capture("forgetful"):
            scene.main.fill(scene.x, 1)
            scene.main.record(scene.inside)
            scene.side.wait(scene.inside)
            scene.side.fill(scene.y, 1)

    with pytest.raises(DeviceError, match=r"`forgetful`: unjoined fork: fill y on stream `side`.*let `main` wait"):
        record()
    assert works(scene.device)


def test_an_exception_of_the_recorder_passes_and_ends_the_capture() -> None:
    scene = Scene()
    with pytest.raises(ZeroDivisionError), scene.main.capture():
        scene.main.fill(scene.x, 1 // 0)
    assert works(scene.device)


def test_events_of_a_capture_mean_nothing_outside_it() -> None:
    scene = Scene()
    with scene.main.capture():
        scene.main.fill(scene.x, 1)
        scene.main.record(scene.outside)
    with pytest.raises(DeviceError, match="never recorded"):
        scene.outside.synchronize()
    scene.main.record(scene.outside)
    scene.outside.synchronize()


def test_the_landing_of_a_copy_in_a_graph_is_poisoned_at_each_launch() -> None:
    device = make(poison=True, detect=False)
    stream, (x,) = device.stream("copy"), zeros(device, "x")
    p = device.pinned("p", (2,), np.int32)
    with stream.capture() as capture:
        stream.copy(p, x)
    for _ in range(2):
        capture.graph.launch(stream)
        assert p.read().view(np.uint8).tolist() == [0xA5] * 8
        stream.synchronize()
        assert p.read().tolist() == [0, 0]


def test_a_failing_node_is_named() -> None:
    device = make()
    stream, (x,) = device.stream("compute"), zeros(device, "x")
    rows = device.array("rows", (1,), np.int32)
    a, b = device.array("a", (2, 2), np.float32), device.array("b", (2, 2), np.float32)
    device.upload(rows, [3])
    with stream.capture("step") as capture:
        stream.fill(x, 1)
        stream.matmul(a, b, b, rows)
    capture.graph.launch(stream)
    with pytest.raises(DeviceError, match=r"graph step on stream `compute`.*matmul b -> a .*rows = 3 outside 0..2"):
        stream.synchronize()
