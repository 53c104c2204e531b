"""The CUDA device: memory, copies, fills, order, counters, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kernels.lang import MAX_THREADS, cuda, kernel
from runtime.device import open_device
from runtime.errors import DeviceError
from runtime.race_detector import UseAfterFree
from tests.spin import spin

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[1]


@kernel(writes=("y",))
def add(y, x, factor):
    """y += factor * x over whatever shape of one axis."""
    for i in range(cuda.grid(1), len(y), cuda.gridsize(1)):
        y[i] += factor * x[i]


@kernel(writes=("y",))
def spoilt(y):
    """Compiles for nothing: adds a string."""
    y[0] = y[0] + "one"


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    with open_device("cuda", poison=True) as device:  # type: ignore[attr-defined]
        yield device


def filled(device: CudaDevice, name: str, values: Any, dtype: Any = np.float32) -> Any:
    array = device.array(name, np.shape(values), dtype)
    device.upload(array, np.asarray(values, dtype))
    return array


def test_what_it_says_of_itself(device: CudaDevice, record_property: Any) -> None:
    assert device.facts.compute_capability >= (8, 0)
    assert device.name in device.description
    assert device.free_bytes() <= device.facts.memory_bytes
    assert str(device).startswith("CudaDevice(")
    record_property("gpu", device.description)


def test_views_copies_and_fills_are_those_of_numpy(device: CudaDevice) -> None:
    stream, values = device.stream("s"), np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    x, p = filled(device, "x", values, np.int32), device.pinned("p", (3, 4, 5), np.int32)
    cuts: list[Any] = [np.s_[:], np.s_[1:], np.s_[1:2, 1:3], np.s_[:, 1:3], np.s_[:, :, 1:2], np.s_[0:1, 2:9], np.s_[3:]]
    for cut in cuts:
        p.write(-1)
        stream.copy(p[cut], x[cut])
        expected = np.full_like(values, -1)
        expected[cut] = values[cut]
        stream.synchronize()
        assert p.read().tolist() == expected.tolist(), cut
        y = filled(device, f"y {cut}", values, np.int32)
        stream.fill(y[cut], 7)
        expected = values.copy()
        expected[cut] = 7
        assert device.download(y).tolist() == expected.tolist(), cut
    assert device.download(x[1:2].reshape((5, 4))).tolist() == values[1].reshape(5, 4).tolist()
    with pytest.raises(DeviceError, match="no rows of one pitch"):
        stream.copy(p[:, 1:3, 1:2], x[:, 1:3, 1:2])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.float32, 1.5), (np.float16, -2.5), (np.int32, -7), (np.uint8, 200), (np.uint16, 0x3F80), (np.float32, np.nan)],
)
def test_fills_of_every_width(device: CudaDevice, dtype: Any, value: float) -> None:
    x, stream = device.array("x", (5, 3), dtype), device.stream("s")
    stream.fill(x, value)
    np.testing.assert_array_equal(device.download(x), np.full((5, 3), value, dtype))


def test_fresh_memory_is_poisoned(device: CudaDevice) -> None:
    assert np.isnan(device.download(device.array("f", (3,), np.float32))).all()
    assert (device.download(device.array("i", (3,), np.int32)) == np.int32(0xA5A5A5A5 - 2**32)).all()
    assert np.isnan(device.pinned("p", (3,), np.float32).read()).all()


def test_launches_take_views_constants_mapped_memory_and_scalars(device: CudaDevice) -> None:
    stream = device.stream("s")
    y, ones = filled(device, "y", np.zeros((3, 4))), device.constant("ones", np.ones(4, np.float32))
    m = device.mapped("m", (4,), np.float32)
    m.write([1, 2, 3, 4])
    stream.launch(add, 2, 3, y[1:2].reshape((4,)), m, 2)
    stream.launch(add, 1, 64, y[2:3].reshape((4,)), ones, 0.5)
    stream.launch(add, (1, 1, 1), 64, m, ones, 10.0)
    stream.synchronize()
    assert device.download(y).tolist() == [[0] * 4, [2, 4, 6, 8], [0.5] * 4]
    assert m.read().tolist() == [11, 12, 13, 14]


def test_streams_run_apart_and_events_order_them(device: CudaDevice) -> None:
    slow, fast = device.stream("slow"), device.stream("fast")
    sink, x = device.array("sink", (1,), np.int32), filled(device, "x", [0], np.int32)
    p, done, timed = device.pinned("p", (1,), np.int32), device.event("done"), device.event("timed", timing=True)
    start = device.event("start", timing=True)
    slow.launch(spin, 1, 1, sink, 1)
    device.synchronize()  # compiled
    slow.record(start)
    slow.launch(spin, 1, 1, sink, 100)
    slow.fill(x, 5)
    slow.record(done)
    slow.record(timed)
    fast.record(fast_done := device.event("fast"))
    fast_done.synchronize()
    assert not done.query()
    assert not slow.query()
    fast.wait(done)
    fast.copy(p, x)
    fast.record(fast_done)
    fast_done.synchronize()
    assert p.read().tolist() == [5]
    assert done.query()
    assert 1 < timed.milliseconds_since(start) < 1000


def test_counters(device: CudaDevice) -> None:
    stream, event = device.stream("compute"), device.event()
    x, p = device.array("x", (2,), np.float32), device.pinned("p", (2,), np.float32)
    before = device.counters.copy()
    stream.fill(x, 0)
    stream.launch(add, 1, 1, x, x, 1.0)
    stream.copy(p, x)
    stream.copy(x, p)
    stream.record(event)
    event.query()
    event.synchronize()
    stream.synchronize()
    device.synchronize()
    counted = device.counters.since(before)
    assert (counted.launches, counted.copies, counted.copied_bytes) == (2, 2, 16)
    assert counted.copies_by_kind == {"d2h": 1, "h2d": 1}
    assert (counted.event_queries, counted.event_synchronizes, counted.device_synchronizes) == (1, 1, 1)
    assert counted.synchronizes_by_stream == {"compute": 1}


def test_what_is_refused(device: CudaDevice) -> None:
    stream, other = device.stream("s"), device.event("other")
    x, c = device.array("x", (4,), np.float32), device.constant("c", np.ones(4, np.float32))
    p = device.pinned("p", (4,), np.float32)
    refused = [
        (lambda: stream.launch(add, 1, 1, c, x, 1.0), "is a constant and cannot be written"),
        (lambda: stream.launch(add, 1, 1, p, x, 1.0), "kernels do not see pinned memory `p`"),
        (lambda: stream.launch(add, 1, 1, x, x), "takes 3 arguments"),
        (lambda: stream.launch(add, 1, MAX_THREADS + 1, x, x, 1.0), f"block = {MAX_THREADS + 1}"),
        (lambda: stream.launch(add, 0, 1, x, x, 1.0), "is empty"),
        (lambda: stream.launch(add, 1, 1, x, x, 2**40), "outside int32"),
        (lambda: stream.launch(add, 1, 1, 3, x, 1.0), "must be an array"),
        (lambda: stream.launch(add, 1, 1, x, np.ones(4), 1.0), "are arrays of this device, ints or floats"),
        (lambda: stream.copy(x, np.ones(4, np.float32)), "host memory must come from device.pinned"),
        (lambda: stream.copy(x[:2], p), "does not fit"),
        (lambda: stream.fill(device.array("i", (1,), np.int32), 0.5), "does not fit int32"),
        (lambda: stream.wait(other), "was never recorded"),
        (lambda: other.synchronize(), "was never recorded"),
        (lambda: device.array("x", (4,), np.float32), "name `x` is taken"),
        (lambda: device.upload(c, np.ones(4, np.float32)), "is a constant"),
        (lambda: device.pinned("q", (4,), np.int32).write(np.ones(4)), "values written to int32"),
        (lambda: x[0], "views are cut by slices"),
        (lambda: x[:2].reshape((3,)), "cannot become"),
        (lambda: stream.launch(spoilt, 1, 1, x), "kernel spoilt.* does not compile"),
    ]
    for call, text in refused:
        with pytest.raises(DeviceError, match=text):
            call()  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match="implicitly"):
        np.asarray(x)


def test_freed_arrays_are_refused(device: CudaDevice) -> None:
    stream, x = device.stream("s"), device.array("x", (4,), np.float32)
    p = device.pinned("p", (4,), np.float32)
    with stream.capture() as capture:
        stream.fill(x, 0)
    device.free(x)
    device.free(p)
    for call in (
        lambda: stream.fill(x[:1], 1),
        lambda: capture.graph.launch(stream),
        lambda: device.free(x),
        lambda: p.read(),
        lambda: device.download(x),
    ):
        with pytest.raises(UseAfterFree):
            call()  # type: ignore[no-untyped-call]
    assert device.array("x", (1,), np.int32).nbytes == 4


def test_bytes_are_accounted_for_and_come_back(device: CudaDevice) -> None:
    before, block = device.free_bytes(), 512 * 2**20
    x = device.array("x", (block,), np.uint8)
    device.pinned("p", (10,), np.float32)
    device.constant("c", np.ones(3, np.float32))
    assert device.allocated_bytes() == {"device": block, "constant": 12, "pinned": 40, "mapped": 0}
    assert device.free_bytes() <= before - block
    device.free(x)
    assert device.free_bytes() > before - block


def test_out_of_memory_says_how_much_and_what_to_do(device: CudaDevice) -> None:
    with pytest.raises(DeviceError, match=r"`kv_cache` of [\d,]+ bytes does not fit: [\d,]+ of [\d,]+ bytes are free.*num_blocks"):
        device.array("kv_cache", (2**50,), np.uint8)
    stream, x = device.stream("s"), device.array("x", (1,), np.float32)
    stream.fill(x, 1)
    assert device.download(x) == 1


def test_compiled_kernels_are_kept_on_disk(tmp_path: Path) -> None:
    """The second process loads what the first compiled."""
    environment = {**os.environ, "DRAFTGRAPH_CACHE": str(tmp_path)}
    hits = []
    for _ in range(2):
        command = [sys.executable, "-c", CACHED]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
        hits.append(int(done.stdout))
    assert hits == [0, 1]


CACHED = """
import numpy as np
from runtime.device import open_device
from tests.test_gpu_device import add
with open_device("cuda") as device:
    stream, y = device.stream("s"), device.array("y", (4,), np.float32)
    device.upload(y, np.ones(4, np.float32))
    stream.launch(add, 1, 1, y, y, 2.0)
    assert device.download(y).tolist() == [3] * 4
print(sum(add.jit.stats.cache_hits.values()))
"""


def test_a_closed_device_takes_nothing() -> None:
    device: Any = open_device("cuda")
    stream, x = device.stream("s"), device.array("x", (1,), np.float32)
    device.close()
    device.close()
    for call in (lambda: stream.fill(x, 1), lambda: device.array("y", (1,), np.int32), lambda: device.stream("t")):
        with pytest.raises((DeviceError, UseAfterFree)):
            call()  # type: ignore[no-untyped-call]


def test_host_costs(device: CudaDevice, record_property: Any) -> None:
    """Figures, and limits far above what was measured: an eager launch, a graph of 200 nodes, an event."""
    stream, x = device.stream("s"), device.array("x", (64,), np.float32)

    def microseconds(call: Any, repeats: int = 200) -> float:
        call()
        stream.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            call()
        spent = time.perf_counter() - began
        stream.synchronize()
        return spent / repeats * 1e6

    with stream.capture() as capture:
        for _ in range(200):
            stream.launch(add, 1, 64, x, x, 1.0)
    event = device.event()
    costs = {
        "eager launch": microseconds(lambda: stream.launch(add, 1, 64, x, x, 1.0)),
        "graph of 200 nodes": microseconds(lambda: capture.graph.launch(stream), 50),
        "fill": microseconds(lambda: stream.fill(x, 0)),
        "record": microseconds(lambda: stream.record(event)),
    }
    for name, cost in costs.items():
        record_property(f"host cost of one {name}", f"{cost:.1f} us")
    assert costs["eager launch"] < 500
    assert costs["graph of 200 nodes"] < 400
