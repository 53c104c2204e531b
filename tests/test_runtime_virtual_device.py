"""Memory of the virtual device and the arguments of its launches, one rule a test."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.lang import MAX_THREADS, kernel
from runtime.errors import DeviceError
from runtime.race_detector import UseAfterFree
from tests.python_device import make


@kernel(writes=("out",))
def scale(out, x, factor, count):
    """out = factor * x for the first count[0] elements."""
    for i in range(count[0]):
        out[i] = factor * x[i]


# Memory


def test_device_memory_refuses_the_host() -> None:
    x = make().array("x", (4,), np.float32)
    with pytest.raises(TypeError, match="device memory `x` implicitly"):
        np.asarray(x)
    with pytest.raises(TypeError, match="`x`"):
        list(x)
    with pytest.raises(DeviceError, match=r"x\[1\]"):
        x[1]
    assert not hasattr(x, "read")


def test_pinned_memory_refuses_the_host_except_through_read_and_write() -> None:
    p = make().pinned("p", (2, 3), np.int32)
    with pytest.raises(TypeError, match="pinned memory `p`"):
        np.add(p, 1)
    p.write(7)
    p.write([1, 2, 3], 1)
    p.write(9, (0, slice(1, None)))
    p.write([5, 6], (np.array([0, 1]), np.array([0, 2])))
    assert p.read().tolist() == [[5, 9, 9], [1, 2, 6]]
    assert p.read((1, 2)) == 6
    assert p[1:].read().tolist() == [[1, 2, 6]]
    assert p.reshape((6,))[4:].read().tolist() == [2, 6]


def test_read_returns_a_copy() -> None:
    p = make().pinned("p", (2,), np.int32)
    p.write(1)
    seen = p.read()
    seen[:] = 5
    p.write(2, 0)
    assert seen.tolist() == [5, 5]
    assert p.read().tolist() == [2, 1]


@pytest.mark.parametrize("values", [[1 << 31], np.array([-(1 << 40)]), 0.5, np.array([1.5])])
def test_host_writes_that_lose_values_are_refused(values: object) -> None:
    p = make().pinned("p", (1,), np.int32)
    with pytest.raises(DeviceError, match="p: "):
        p.write(values)


def test_views_share_memory_and_name() -> None:
    device = make()
    x = device.array("x", (4, 6), np.int32)
    row, tail = x[1:3], x[1:3].reshape((12,))[8:]
    assert (row.name, row.shape, row.start, row.stop, row.nbytes) == ("x", (2, 6), 24, 72, 48)
    assert (tail.shape, tail.start, tail.stop) == ((4,), 56, 72)
    # A strided view stands for the whole range that it spans.
    column = x[:, 2:4]
    assert (column.shape, column.start, column.stop, column.nbytes) == ((4, 2), 8, 88, 32)
    assert (x[2:2].start, x[2:2].stop) == (0, 0)
    assert x[2:9].shape == (2, 6)
    stream = device.stream("compute")
    stream.fill(x, 0)
    stream.fill(tail, 5)
    assert device.download(x)[2].tolist() == [0, 0, 5, 5, 5, 5]


def test_views_that_no_launch_could_take_are_refused() -> None:
    x = make().array("x", (4, 6), np.int32)
    with pytest.raises(DeviceError, match="step = 2"):
        x[::2]
    with pytest.raises(DeviceError, match="not contiguous"):
        x[:, 1:3].reshape((8,))
    with pytest.raises(DeviceError, match=r"\(4, 6\) cannot become \(5, 5\)"):
        x.reshape((5, 5))


def test_constants_are_shared_and_read_only() -> None:
    device = make()
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    weight = device.constant("weight", values)
    assert np.shares_memory(weight.values, values)
    assert values.flags.writeable
    stream = device.stream("compute")
    out, count = device.array("out", (2, 3), np.float32), device.constant("count", np.array([3], np.int32))
    for write in (
        lambda: stream.fill(weight, 0),
        lambda: stream.copy(weight, out),
        lambda: stream.launch(scale, 1, 1, weight, out, 1, count),
        lambda: stream.matmul(weight, out, out, count),
        lambda: device.upload(weight, values),
    ):
        with pytest.raises(DeviceError, match="`weight` is a constant"):
            write()


def test_names_are_unique_while_they_live() -> None:
    device = make()
    x = device.array("x", (1,), np.int32)
    with pytest.raises(DeviceError, match="`x` is taken"):
        device.pinned("x", (1,), np.int32)
    device.free(x)
    device.pinned("x", (1,), np.int32)


def test_accounting_by_kind() -> None:
    device = make()
    x = device.array("x", (10,), np.float32)
    device.pinned("p", (3,), np.int32)
    device.mapped("m", (2,), np.int64)
    device.constant("c", np.zeros(5, np.float32))
    assert device.allocated_bytes() == {"device": 40, "pinned": 12, "mapped": 16, "constant": 20}
    device.free(x)
    assert device.allocated_bytes()["device"] == 0
    device.close()
    device.close()
    assert sum(device.allocated_bytes().values()) == 0
    with pytest.raises(DeviceError, match="closed"):
        device.array("y", (1,), np.int32)


def test_allocation_beyond_memory_names_the_array() -> None:
    with pytest.raises(DeviceError, match="`cache` of 4,611,686,018,427,387,904 bytes"):
        make().array("cache", (1 << 60,), np.float32)


def test_poison_fills_fresh_and_freed_memory() -> None:
    device = make(poison=True)
    x, p = device.array("x", (3,), np.float32), device.pinned("p", (2,), np.int32)
    assert np.isnan(device.download(x)).all()
    assert p.read().view(np.uint8).tolist() == [0xA5] * 8
    p.write(1)
    memory = p.values
    device.free(p)
    assert memory.view(np.uint8).tolist() == [0xA5] * 8


def test_poison_fills_the_destination_of_a_copy_until_it_is_waited_for() -> None:
    device = make(poison=True, detect=False)
    stream, done = device.stream("copy"), device.event("done")
    x, p = device.array("x", (2,), np.int32), device.pinned("p", (2,), np.int32)
    stream.fill(x, 3)
    p.write(1)
    stream.copy(p, x)
    stream.record(done)
    assert p.read().view(np.uint8).tolist() == [0xA5] * 8
    done.synchronize()
    assert p.read().tolist() == [3, 3]


def test_poison_spares_a_destination_that_queued_work_still_reads() -> None:
    device = make(poison=True)
    stream = device.stream("compute")
    x, y, p = device.array("x", (2,), np.int32), device.array("y", (2,), np.int32), device.pinned("p", (2,), np.int32)
    p.write(1)
    stream.copy(x, p)
    stream.fill(y, 2)
    stream.copy(p, y)
    assert device.download(x).tolist() == [1, 1]
    assert device.download(p).tolist() == [2, 2]


@pytest.mark.parametrize("detect", [True, False])
def test_use_after_free_is_named_wherever_it_happens(detect: bool) -> None:
    device = make(detect=detect)
    stream = device.stream("compute")
    x, y, p = device.array("x", (2,), np.int32), device.array("y", (2,), np.int32), device.pinned("p", (2,), np.int32)
    view = x[1:]
    device.free(x)
    device.free(p)
    for use in (
        lambda: stream.fill(view, 0),
        lambda: stream.copy(y, x),
        lambda: stream.launch(scale, 1, 1, y, x, 1, y[:1]),
        lambda: device.download(x),
        lambda: device.free(x),
    ):
        with pytest.raises(UseAfterFree, match="`x`"):
            use()
    with pytest.raises(UseAfterFree, match="`p`"):
        p.read()


def test_free_under_queued_work_names_the_work() -> None:
    device = make()
    stream, x = device.stream("copy"), device.array("x", (2,), np.int32)
    p = device.pinned("p", (2,), np.int32)
    p.write(0)
    stream.copy(x, p)
    with pytest.raises(UseAfterFree, match=r"`p` is freed by the host .*copy p -> x on stream `copy`"):
        device.free(p)
    stream.synchronize()
    device.free(p)


# Arguments


def test_launch_arguments_are_checked() -> None:
    device = make()
    stream = device.stream("compute")
    x, count, p = device.array("x", (2,), np.int32), device.array("count", (1,), np.int32), device.pinned("p", (2,), np.int32)
    other = make().array("x", (2,), np.int32)
    for text, grid, block, args in (
        (r"takes 4 arguments .*got 3", 1, 1, (x, x, 1)),
        (f"block = {MAX_THREADS + 1}", 1, MAX_THREADS + 1, (x, x, 1, count)),
        (r"grid = \(2, 0\)", (2, 0), 1, (x, x, 1, count)),
        (r"scale\(factor\) = 2147483648, outside int32", 1, 1, (x, x, 1 << 31, count)),
        (r"scale\(factor\) = 1e\+39, outside float32", 1, 1, (x, x, 1e39, count)),
        (r"scale\(factor\) = 'two'", 1, 1, (x, x, "two", count)),
        (r"scale\(out\) is stored to", 1, 1, (3, x, 1, count)),
        (r"scale\(x\): kernels do not see pinned memory `p`", 1, 1, (x, p, 1, count)),
        (r"scale\(x\): `x` belongs to another device", 1, 1, (x, other, 1, count)),
        (r"scale\(x\) = array", 1, 1, (x, np.zeros(2), 1, count)),
    ):
        with pytest.raises(DeviceError, match=text):
            stream.launch(scale, grid, block, *args)
    with pytest.raises(DeviceError, match="not declared"):
        stream.launch(print, 1, 1, x)


def test_copy_fill_and_matmul_arguments_are_checked() -> None:
    device = make()
    stream = device.stream("compute")
    x, y, z = device.array("x", (2,), np.int32), device.array("y", (3,), np.int32), device.array("z", (2,), np.float32)
    out, inputs, weight = (device.array(n, s, np.float32) for n, s in (("out", (4, 3)), ("in", (4, 2)), ("w", (3, 2))))
    for text, call in (
        (r"copy y -> x: int32 \(3,\) does not fit int32 \(2,\)", lambda: stream.copy(x, y)),
        (r"copy z -> x: float32", lambda: stream.copy(x, z)),
        (r"copy\(src\): ndarray .* must come from device.pinned", lambda: stream.copy(x, np.zeros(2))),
        (r"fill x: value = 1.5", lambda: stream.fill(x, 1.5)),
        (r"fill x: value = 2147483648", lambda: stream.fill(x, 1 << 31)),
        (r"matmul: out in \(4, 2\)", lambda: stream.matmul(inputs, inputs, weight, x[:1])),
        (r"matmul: rows x is int32 \(2,\)", lambda: stream.matmul(out, inputs, weight, x)),
        (r"upload: \(3,\) does not fit `x`", lambda: device.upload(x, [0, 0, 0])),
        (r"x: float64 values written to int32", lambda: device.upload(x, [0.5, 1.5])),
    ):
        with pytest.raises(DeviceError, match=text):
            call()


def test_matmul_computes_live_rows_only() -> None:
    device = make()
    stream = device.stream("compute")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 3), np.float32), rng.standard_normal((5, 3), np.float32)
    inputs, out = device.array("x", (4, 3), np.float32), device.array("out", (4, 5), np.float32)
    rows = device.array("rows", (1,), np.int32)
    device.upload(inputs, x)
    stream.fill(out, -1)
    stream.fill(rows, 2)
    stream.matmul(out, inputs, device.constant("w", w), rows)
    result = device.download(out)
    np.testing.assert_allclose(result[:2], x[:2] @ w.T, rtol=1e-6)
    assert (result[2:] == -1).all()
