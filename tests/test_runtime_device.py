"""Opening devices, and the virtual device on the real executor."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.lang import SIMULATED, f32, kernel
from runtime.device import cuda_unavailable, open_device, resolve_kind
from runtime.errors import DeviceError


@kernel(writes=("out",))
def weighted(out, x, weight, factor, count):
    """out = factor * x * weight for the first count[0] elements."""
    for i in range(count[0]):
        out[i] = factor * x[i] * weight[i] + f32(1)


def test_cpu_runs_compiled_kernels_over_views_and_constants() -> None:
    device = open_device("cpu", poison=True)
    stream, done = device.stream("compute"), device.event("done")
    x, out = device.array("x", (2, 4), np.float32), device.array("out", (2, 4), np.float32)
    weight, count = device.constant("weight", np.arange(4, dtype=np.float32)), device.constant("count", np.array([3], np.int32))
    p = device.pinned("p", (2, 4), np.float32)
    p.write(np.arange(8).reshape(2, 4) * np.float32(1))
    stream.copy(x, p)
    stream.fill(out, 0)
    with stream.capture() as capture:
        stream.launch(weighted, 1, 32, out[1:].reshape((4,)), x[1:].reshape((4,)), weight, 2.0, count)
        stream.copy(p, out)
    capture.graph.launch(stream)
    stream.record(done)
    done.synchronize()
    assert p.read().tolist() == [[0, 0, 0, 0], [1, 11, 25, 0]]
    device.close()


def test_auto_says_why() -> None:
    kind, reason = resolve_kind("auto")
    missing = cuda_unavailable()
    assert (kind, reason) == (("cpu", missing) if missing else ("cuda", "a GPU and CuPy were found"))
    assert resolve_kind("simulator") == ("simulator", "asked for")


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(DeviceError, match="device = 'tpu'; use auto, cpu, simulator or cuda"):
        open_device("tpu")


@pytest.mark.skipif(cuda_unavailable() is None, reason="a GPU is present")
def test_cuda_without_a_gpu_says_what_is_missing() -> None:
    with pytest.raises(DeviceError, match=r"device = cuda: CuPy .*; or set device = cpu"):
        open_device("cuda")


@pytest.mark.skipif(SIMULATED, reason="this process is a simulator")
def test_the_simulator_needs_its_variable() -> None:
    with pytest.raises(DeviceError, match="NUMBA_ENABLE_CUDASIM=1"):
        open_device("simulator")


@pytest.mark.skipif(not SIMULATED, reason="needs NUMBA_ENABLE_CUDASIM=1")
def test_the_simulator_runs_every_thread() -> None:
    device = open_device("simulator")
    stream = device.stream("compute")
    out, x = device.array("out", (4,), np.float32), device.constant("x", np.ones(4, np.float32))
    stream.fill(out, 0)
    stream.launch(weighted, 1, 2, out, x, x, 3.0, device.constant("count", np.array([4], np.int32)))
    assert device.download(out).tolist() == [4, 4, 4, 4]
