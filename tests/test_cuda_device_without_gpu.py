"""What stands between a user and a GPU, told from a stand-in for CuPy: each missing piece has its own text and remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import runtime.cuda_probe
import runtime.device
from runtime.cli import app
from runtime.cuda_probe import GpuFacts, cuda_unavailable, cuda_version
from runtime.device import open_device, resolve_kind
from runtime.errors import DeviceError


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


def stand_in(
    monkeypatch: pytest.MonkeyPatch, *, count: int = 1, fails: int = 0, driver: int = 13000, cc: tuple[int, int] = (9, 0)
) -> None:
    """A `cupy` whose driver sees `count` GPUs, or answers with error `fails`."""

    def device_count() -> int:
        if fails:
            raise CUDARuntimeError(fails)
        return count

    properties = {"name": b"GPU", "major": cc[0], "minor": cc[1], "totalGlobalMem": 2**34, "multiProcessorCount": 10}
    cuda = ModuleType("cupy.cuda")
    cuda.runtime = SimpleNamespace(  # type: ignore[attr-defined]
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=device_count,
        getDeviceProperties=lambda number: properties,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: 13010,
    )
    cupy = ModuleType("cupy")
    cupy.cuda = cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(runtime.cuda_probe, "SIMULATED", False)
    monkeypatch.setattr(runtime.cuda_probe.importlib.util, "find_spec", lambda name: object())


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert cuda_unavailable() == "CuPy is not installed; pip install draftgraph[cu12] or draftgraph[cu13]"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"count": 0}, "CuPy finds no GPU; check CUDA_VISIBLE_DEVICES"),
        ({"fails": 100}, r"CuPy finds no usable GPU \(cudaError 100\); check the driver with nvidia-smi"),
        ({"fails": 35, "driver": 0}, "CuPy finds no usable GPU"),
        ({"fails": 35, "driver": 12040}, r"built for CUDA 13.1 and the driver knows CUDA 12.4; .*\[cu12\] in place of .*cu13"),
        ({"cc": (7, 5)}, r"compute capability of GPU = 7.5, 8.0 \(Ampere\) is needed"),
    ],
    ids=str,
)
def test_each_reason_has_its_text(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], text: str) -> None:
    stand_in(monkeypatch, **options)
    with pytest.raises(DeviceError, match=f"device = cuda: .*{text}.*; or set device = cpu"):
        open_device("cuda")
    kind, reason = resolve_kind("auto")
    assert kind == "cpu"
    assert reason == cuda_unavailable()


def test_missing_cublas_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(runtime.cuda_probe.importlib.util, "find_spec", lambda name: None)
    assert "nvmath-python is not installed" in str(cuda_unavailable())


def test_a_simulating_process_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(runtime.cuda_probe, "SIMULATED", True)
    assert "NUMBA_ENABLE_CUDASIM = 1" in str(cuda_unavailable())


def test_a_usable_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    assert cuda_unavailable() is None
    assert resolve_kind("auto") == ("cuda", "a GPU and CuPy were found")


def test_facts_as_text() -> None:
    facts = GpuFacts("NVIDIA H200", (9, 0), 2**37, 132, "580.159.04", 13000, 13010)
    assert str(facts) == "NVIDIA H200, compute capability 9.0, 128.0 GiB, driver 580.159.04 (CUDA 13.0), CUDA runtime 13.1"
    assert cuda_version(12090) == "12.9"


@pytest.mark.parametrize("command", ["run", "profile", "info", "bench"])
def test_a_gpu_that_is_asked_for_and_absent_is_told_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """Before a model is looked for, and before a library that traces GPUs is."""
    monkeypatch.setattr(runtime.device, "cuda_unavailable", lambda: "CuPy finds no GPU; check CUDA_VISIBLE_DEVICES")
    config = tmp_path / "run.yaml"
    config.write_text("model: {source: nowhere}\nrun: {prompts: [hello]}\n")
    result = CliRunner().invoke(app, [command, str(config), "--set", "device=cuda", "-q"])
    assert result.exit_code == 2
    assert result.stderr == "error: device = cuda: CuPy finds no GPU; check CUDA_VISIBLE_DEVICES; or set device = cpu\n"


@pytest.mark.parametrize(
    "error",
    [ImportError("libnvJitLink.so.13: cannot open shared object file"), RuntimeError("no libcudart"), OSError("no such library")],
    ids=lambda error: type(error).__name__,
)
def test_a_library_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """CuPy is there and sees a GPU; something else that an extra brings is not, or is of another CUDA."""
    stand_in(monkeypatch)

    def find(name: str, *rest: object) -> None:
        if name == "runtime.cuda_device":
            raise error

    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find), *sys.meta_path])
    with pytest.raises(DeviceError, match=rf"device = cuda: a library of it cannot be loaded \({error}\); install one of .*anew"):
        open_device("cuda")


@pytest.mark.parametrize("error", [ImportError("numpy.core.multiarray failed"), AttributeError("row_stack")], ids=str)
def test_a_cupy_that_does_not_fit_its_neighbours(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)

    def find(name: str, *rest: object) -> None:
        if name == "cupy":
            raise error

    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find), *sys.meta_path])
    assert cuda_unavailable() == f"CuPy cannot be imported ({error}); install one of draftgraph[cu12] and draftgraph[cu13] anew"
