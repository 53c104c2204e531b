"""What is said when something fails in a GPU, by a stand-in for CuPy that fails: each failure has its text and its remedy, and
nothing is waited for that will never end."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from runtime.engine import Engine
from runtime.errors import DeviceError
from tests import idle_gpu
from tests.host_step import _answer
from tests.planted_waits import config_of

NO_MEMORY = "cudaErrorMemoryAllocation: out of memory"
NO_ROOM = r"ran out of memory: 1,073,741,824 of 1,073,741,824 bytes are free on idle; lower scheduler.num_blocks, .*graphs.buckets"


@pytest.fixture
def module() -> Iterator[Any]:
    with idle_gpu.idle_gpu() as module:
        yield module


def failing(text: str, kind: type[Exception] = RuntimeError) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise kind(text)

    return fail


def recorded(device: Any, name: str = "verify[R=8]") -> Any:
    """A graph of two fills."""
    stream, x = device.stream("compute"), device.array("x", (4,), np.int32)
    with stream.capture(name) as capture:
        stream.fill(x, 1)
        stream.fill(x, 2)
    return capture.graph


@pytest.mark.parametrize("call", ["upload", "end_capture"])
def test_a_graph_that_finds_no_memory_says_what_takes_less(module: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(idle_gpu._Graph if call == "upload" else idle_gpu._Stream, call, failing(NO_MEMORY))
    with module.CudaDevice() as device:
        with pytest.raises(DeviceError, match=rf"capture of graph `verify\[R=8\]`, 2 nodes, {NO_ROOM}.*; graphs.mode = eager runs"):
            recorded(device)
        monkeypatch.undo()
        device.free(device.array("y", (1,), np.int32))


@pytest.mark.parametrize(
    ("text", "kind"),
    [("cuMemsetD32Async: CUDA_ERROR_OUT_OF_MEMORY", RuntimeError), ("Out of memory allocating 512 bytes", MemoryError)],
)
def test_a_node_that_finds_no_memory_says_so_too(
    module: Any, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception]
) -> None:
    """By the name that the driver has for it, or by the type that CuPy has."""
    monkeypatch.setitem(vars(sys.modules["runtime.cuda_work"]), "fill_async", failing(text, kind))
    with module.CudaDevice() as device, pytest.raises(DeviceError, match=NO_ROOM):
        recorded(device)


def test_a_capture_that_fails_for_another_reason_does_not_speak_of_memory(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_gpu._Stream, "end_capture", failing("cudaErrorStreamCaptureUnjoined"))
    with module.CudaDevice() as device, pytest.raises(DeviceError) as caught:
        recorded(device)
    assert re.search(r"capture of graph `verify.*` failed at end: .*Unjoined; set graphs.mode = eager", str(caught.value))
    assert "bytes" not in str(caught.value)


def test_a_replay_that_finds_no_memory_says_what_takes_less(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with module.CudaDevice() as device:
        graph = recorded(device)
        monkeypatch.setattr(idle_gpu._Graph, "launch", failing(NO_MEMORY))
        monkeypatch.setattr(sys.modules["runtime.cuda_device"], "_CUDA_PACKAGES", {"builtins"})  # where the stand-in's errors live
        with pytest.raises(DeviceError, match=rf"launch of graph `verify\[R=8\]` {NO_ROOM}"):
            graph.launch(device.stream("compute"))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("[2] Call to cuModuleLoadDataEx results in CUDA_ERROR_OUT_OF_MEMORY", RuntimeError, "cannot be loaded for want of memory"),
        ("NVVM_ERROR_COMPILATION", RuntimeError, r"does not compile for idle: RuntimeError: NVVM.*; check .* one extra.*driver"),
        ("unknown intrinsic", TypeError, r"does not compile for idle: TypeError"),
    ],
)
def test_a_kernel_that_cannot_be_had(module: Any, text: str, kind: type[Exception], said: str) -> None:
    compiler: Any = sys.modules["runtime.cuda_compiler"].CudaCompiler("idle")  # type: ignore[attr-defined]
    kernel = MagicMock()
    kernel.name, kernel.jit.compile = "spoilt", failing(text, kind)
    compiler._cached.add(kernel)
    with pytest.raises(DeviceError, match=rf"kernel spoilt.* {said}"):
        compiler.handle(kernel, (), 32)
    with pytest.raises(DeviceError, match="kernel spoilt"):
        compiler.handle(kernel, (), 32)


def test_a_gpu_that_others_fill_is_not_opened_and_says_so(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for a context, nobody can say how much is free."""
    calls = sys.modules["cupy.cuda"].runtime
    monkeypatch.setattr(calls, "free", failing(NO_MEMORY))
    monkeypatch.setattr(calls, "memGetInfo", failing(NO_MEMORY))
    with pytest.raises(DeviceError, match=r"idle cannot be opened: .*: other programs hold all of idle; .*or set device = cpu"):
        module.CudaDevice()
    monkeypatch.setattr(calls, "free", failing("cudaErrorDevicesUnavailable: busy or unavailable"))
    with pytest.raises(DeviceError, match=r"idle cannot be opened: .*unavailable: see in nvidia-smi .*; or set device = cpu"):
        module.CudaDevice()


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda stream, event: stream.record(event), "record of event `e` on stream `s`"),
        (lambda stream, event: stream.wait(event), "wait of stream `s` for event `e`"),
        (lambda stream, event: event.synchronize(), "wait for event `e`"),
        (lambda stream, event: event.query(), "query of event `e`"),
        (lambda stream, event: stream.query(), "query of stream `s`"),
        (lambda stream, event: stream.synchronize(), "synchronize of stream `s`"),
        (lambda stream, event: stream.device.synchronize(), "synchronize of the device"),
        (lambda stream, event: stream.device.free_bytes(), "question for free memory"),
        (lambda stream, event: stream.device.mapped("m", (1,), np.int32), "address of mapped memory `m`"),
        (lambda stream, event: stream.device.event("f"), "making event `f`"),
        (lambda stream, event: stream.device.stream("t"), "making stream `t`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_of_a_kernel_is_told_whichever_call_it_shows_at(
    module: Any, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any, Any], Any], what: str
) -> None:
    """CUDA reports it at the next call, whatever that asks for."""
    illegal = failing("cudaErrorIllegalAddress: an illegal memory access")
    device = module.CudaDevice()
    stream, event = device.stream("s"), device.event("e")
    stream.record(event)
    monkeypatch.setattr(sys.modules["runtime.cuda_device"], "_CUDA_PACKAGES", {"builtins"})
    for kind, names in ((idle_gpu._Event, ("record", "synchronize", "__init__")), (idle_gpu._Stream, ("wait_event", "__init__"))):
        for name in names:
            monkeypatch.setattr(kind, name, illegal)
    for kind in (idle_gpu._Event, idle_gpu._Stream):
        monkeypatch.setattr(kind, "done", property(illegal))
    for name in ("streamSynchronize", "deviceSynchronize", "memGetInfo", "pointerGetAttributes"):
        monkeypatch.setattr(sys.modules["cupy.cuda"].runtime, name, illegal)
    with pytest.raises(DeviceError, match=rf"^{what} failed on idle: cudaErrorIllegalAddress.*compute-sanitizer"):
        call(stream, event)
    device.close()


def test_a_device_that_fails_as_it_closes_gives_its_memory_back(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["runtime.cuda_device"], "_CUDA_PACKAGES", {"builtins"})
    device = module.CudaDevice()
    device.array("x", (4,), np.int32)
    monkeypatch.setattr(sys.modules["cupy.cuda"].runtime, "deviceSynchronize", failing("cudaErrorLaunchFailure"))
    with pytest.raises(DeviceError, match="synchronize of the device failed on idle: cudaErrorLaunchFailure"):
        device.close()
    assert device.allocated_bytes()["device"] == 0
    device.close()


@pytest.mark.parametrize(("failed", "lost"), [(True, True), (True, False), (False, False)])
def test_memory_that_cuda_would_not_take_back_is_left_to_the_process(
    module: Any, monkeypatch: pytest.MonkeyPatch, failed: bool, lost: bool
) -> None:
    """CUDA would refuse to free it, and CuPy tells that by a traceback for each array: an engine has hundreds."""
    freed: list[object] = []
    monkeypatch.setattr(sys.modules["runtime.cuda_device"], "_CUDA_PACKAGES", {"builtins"})
    device = module.CudaDevice()
    for name in ("x", "y"):
        device.array(name, (4,), np.int32)
    workspace = idle_gpu._Memory(64)  # of cuBLAS, which is closed with the device
    device.closers.append(lambda held=workspace: None)
    stream, event = device.stream("s"), device.event("e")
    stream.record(event)
    del workspace
    monkeypatch.setattr(idle_gpu._Memory, "__del__", lambda self: freed.append(self.nbytes), raising=False)
    if failed:
        monkeypatch.setattr(idle_gpu._Event, "synchronize", failing("cudaErrorIllegalAddress"))
        with pytest.raises(DeviceError):
            event.synchronize()
    if lost:
        monkeypatch.setattr(sys.modules["cupy.cuda"].runtime, "memGetInfo", failing("cudaErrorIllegalAddress"))
    device.close()
    del device, stream, event
    gc.collect()
    assert sorted(freed) == ([] if lost else [16, 16, 64])
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("no libcublas.so.13"), r"cuBLAS cannot be started on idle: .*so.13; it comes with draftgraph\[cu12\]"),
        (MemoryError("Out of memory allocating 67,108,864 bytes"), rf"start of cuBLAS on stream `s` {NO_ROOM}"),
    ],
    ids=["missing", "full"],
)
def test_a_library_of_products_that_does_not_start(
    module: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setitem(vars(sys.modules["runtime.cuda_stream"]), "Cublas", MagicMock(side_effect=error))
    monkeypatch.setattr(sys.modules["runtime.cuda_device"], "_CUDA_PACKAGES", {"builtins"})
    stream = module.CudaDevice().stream("s")
    with pytest.raises(DeviceError, match=said):
        _ = stream.cublas


@pytest.mark.parametrize("call", ["product", "warm_up"])
def test_a_product_that_cannot_be_prepared(module: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The library has no code for this GPU, say: seen in front of a capture, where it is run once."""
    library = MagicMock()
    getattr(library, call).side_effect = RuntimeError("cuBLASError: ARCH_MISMATCH")
    monkeypatch.setitem(vars(sys.modules["runtime.cuda_stream"]), "Cublas", lambda *arguments: library)
    monkeypatch.setitem(vars(sys.modules["runtime.cuda_work"]), "cublas", MagicMock())
    monkeypatch.setattr(sys.modules["runtime.cuda_device"], "_CUDA_PACKAGES", {"builtins"})
    device = module.CudaDevice()
    stream, rows = device.stream("s"), device.array("rows", (1,), np.int32)
    out, x, weight = (device.array(name, (2, 2), np.float32) for name in ("out", "x", "weight"))
    with pytest.raises(DeviceError, match=r"^preparing matmul weight -> out failed on idle: cuBLASError: ARCH"), stream.capture():
        stream.matmul(out, x, weight, rows)
    device.close()


def test_a_block_that_wants_more_shared_memory_than_there_is(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sys.modules["graphs.direct_launch"].DriverError  # type: ignore[attr-defined]
    work = vars(sys.modules["runtime.cuda_work"])
    monkeypatch.setitem(work, "allow_shared", failing("CUDA_ERROR_INVALID_VALUE", error))
    monkeypatch.setitem(work, "check_launch", MagicMock())
    kernel = MagicMock(params=(), cluster=1, overlap=False, shared=209_168)
    kernel.name = "flow_project"
    said = r"kernel flow_project needs 209,168 bytes of shared memory in a block, which idle refuses \(CUDA_ERROR_INVALID_VALUE\)"
    with module.CudaDevice() as device, pytest.raises(DeviceError, match=said):
        device.stream("s").launch(kernel, 1, 32)


def test_an_engine_that_finds_no_memory_for_its_graphs_ends_with_the_message(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = module.CudaDevice()
    monkeypatch.setattr(idle_gpu._Graph, "upload", failing(NO_MEMORY))
    with pytest.raises(DeviceError, match=rf"capture of graph `.*`, \d+ nodes, {NO_ROOM}"):
        Engine.from_config(config_of("ngram"), on_device=device, graphs__ops="plain")
    assert device.allocated_bytes() == {"device": 0, "constant": 0, "pinned": 0, "mapped": 0}


def test_a_fault_in_the_middle_of_a_decode_ends_the_engine_and_waits_for_nothing(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An illegal address, say, that shows at the next wait: CUDA takes no more work, so that closing must not wait for any."""
    engine = Engine.from_config(config_of("plain"), on_device=module.CudaDevice(), graphs__ops="plain")
    _answer(engine, num_drafts=0, num_sampled=1)
    monkeypatch.setattr(sys.modules["runtime.cuda_device"], "_CUDA_PACKAGES", {"builtins"})
    generation = engine.submit([5, 6, 7])
    for _ in range(4):
        engine.step()
    monkeypatch.setattr(idle_gpu._Event, "synchronize", failing("cudaErrorIllegalAddress: an illegal memory access"))
    monkeypatch.setattr(sys.modules["cupy.cuda"].runtime, "deviceSynchronize", failing("waited for a device that has failed"))
    with pytest.raises(DeviceError, match=r"wait for event `.*` failed on idle: cudaErrorIllegalAddress.*compute-sanitizer"):
        engine.step()
    with pytest.raises(RuntimeError, match="the engine stopped in the middle of a step"):
        engine.step()
    engine.close()
    assert generation.output is None
