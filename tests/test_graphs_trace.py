"""Trace: a recorder's launches without a device, and what they read and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from graphs.launch import Launcher
from graphs.trace import Trace
from kernels.argmax import argmax
from kernels.gather import gather_rows
from kernels.lang import MAX_THREADS
from runtime.virtual_device import VirtualDevice
from tests.tiny_engine import EXECUTOR

Arrays = dict[str, Any]


@pytest.fixture
def arrays() -> Iterator[Arrays]:
    with VirtualDevice(EXECUTOR) as device:
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "rows": ((4, 8), np.float32),
            "x": ((6, 8), np.float32),
            "head": ((10, 8), np.float32),
            "logits": ((4, 10), np.float32),
            "best": ((4,), np.int32),
            "indices": ((4,), np.int32),
            "live": ((2,), np.int32),
            "kept": ((4,), np.int32),
        }
        yield {name: device.array(name, shape, dtype) for name, (shape, dtype) in shapes.items()}


def record(launch: Launcher, a: Arrays) -> None:
    launch.fill(a["best"], -1)
    launch.launch(gather_rows, 4, 32, a["rows"], a["x"], a["indices"], a["live"][0:1])
    launch.matmul(a["logits"], a["rows"], a["head"], a["live"][1:2])
    launch.launch(argmax, 4, 32, a["best"], a["logits"], 10, a["live"][0:1])
    launch.copy(a["kept"], a["best"])


def test_nodes_in_order_with_what_they_touch(arrays: Arrays) -> None:
    trace = Trace.of(lambda launch: record(launch, arrays))
    assert [(node.name, set(node.reads), set(node.writes)) for node in trace.nodes] == [
        ("fill", set(), {"best"}),
        ("gather_rows", {"x", "indices", "live"}, {"rows"}),
        ("matmul", {"rows", "head", "live"}, {"logits"}),
        ("argmax", {"logits", "live"}, {"best"}),
        ("copy", {"best"}, {"kept"}),
    ]
    assert trace.writes == {"best", "rows", "logits", "kept"}
    assert trace.reads == {"x", "indices", "live", "rows", "head", "logits", "best"}
    launched = trace.nodes[3]
    assert (launched.kernel, launched.grid, launched.block, launched.args[2]) == (argmax, 4, 32, 10)


def test_a_capture_of_the_same_recorder_touches_the_same_arrays(arrays: Arrays) -> None:
    """The mirrors are told what the trace says; the device finds it out by itself."""
    trace = Trace.of(lambda launch: record(launch, arrays))
    stream = arrays["x"].allocation.device.stream("compute")
    with stream.capture("g") as captured:
        record(stream, arrays)
    assert (captured.graph.reads, captured.graph.writes) == (trace.reads, trace.writes)
    assert captured.graph.num_nodes == len(trace.nodes)


def test_a_trace_of_nothing() -> None:
    assert (Trace().reads, Trace().writes) == (frozenset(), frozenset())


@pytest.mark.parametrize("call", ["record", "wait"])
def test_events_inside_a_recorder_are_refused(call: str) -> None:
    with pytest.raises(TypeError, match="one graph is one stream"):
        getattr(Trace(), call)(object())


def test_arguments_that_do_not_fit_are_refused(arrays: Arrays) -> None:
    with pytest.raises(TypeError, match="got 1 arguments, its 4 parameters"):
        Trace().launch(argmax, 1, 32, arrays["best"])
    for block in (0, MAX_THREADS + 1):
        with pytest.raises(ValueError, match=f"block = {block}"):
            Trace().launch(argmax, 1, block, arrays["best"], arrays["logits"], 10, arrays["live"][0:1])


def test_a_drawing_has_every_node_and_its_edges(arrays: Arrays) -> None:
    lines = Trace.of(lambda launch: record(launch, arrays)).dot("step").splitlines()
    assert lines[0] == 'digraph "step" {'
    assert lines[-1] == "}"
    assert [line.strip() for line in lines if "->" in line and "label" not in line] == [
        "n1 -> n2;",  # rows
        "n0 -> n3;",  # best, overwritten
        "n2 -> n3;",  # logits
        "n3 -> n4;",  # best
    ]
    assert sum("label=" in line for line in lines) == 5
