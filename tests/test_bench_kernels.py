"""The rig of runtime/bench_kernels.py on the virtual device: what a GPU times must first be right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphs.cpu_executor import CpuExecutor
from graphs.fused_ops import FusedOps
from graphs.plain_ops import PlainOps
from runtime import bench_kernels
from runtime.bench_kernels import MODELS, Rig, Row
from runtime.models.scratch import AUTO_FUSED_ROWS, build_ops
from runtime.models.spec import ModelSpec
from runtime.step_buffers import StepSizes
from runtime.virtual_device import VirtualDevice
from tests.storage_cases import stored

TINY = {
    "num_layers": 2,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "vocab_size": 70,
}


def tiny(name: str) -> ModelSpec:
    return ModelSpec(**{**vars(MODELS[name]), **TINY, "rope": bench_kernels.RopeSpec(1e4, 64)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("requests", "query_len", "context"), [(1, 1, 5), (3, 4, 130)])
@pytest.mark.parametrize("name", MODELS)
def test_sets_agree_on_the_step_that_is_timed(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: Any, requests: int, query_len: int, context: int
) -> None:
    device = VirtualDevice(CpuExecutor(), poison=True)
    rng = np.random.default_rng(1)

    def fill(array: Any, scale: float) -> None:
        values = (rng.standard_normal(array.shape) * scale).astype(np.float32)
        device.upload(array, stored(values, "bfloat16" if array.dtype == np.uint16 else str(array.dtype)))

    monkeypatch.setattr(bench_kernels, "fill_normal", fill)
    rig = Rig(device, device.stream("s"), tiny(name), dtype, requests, query_len, context)  # type: ignore[arg-type]
    error, agreement = rig.difference()
    assert 0 < error < {"float32": 1e-5, "bfloat16": 3e-2}[dtype]
    assert agreement > 0.7


def test_a_row_says_what_it_moves() -> None:
    row = Row("m", 1, 8, "qkv 576x960", 1_105_920, {"fused": 2.0, "cublas": 4.0})
    assert str(row) == "m             R=1 q=8 qkv 576x960         fused     2.00 us   553 GB/s | cublas     4.00 us   276 GB/s"


def test_models_are_those_of_the_records() -> None:
    spec = MODELS["qwen3-8b"]
    assert (spec.qkv_size, spec.q_size, spec.kv_size) == (6144, 4096, 1024)
    assert (MODELS["smollm2-135m"].qkv_size, MODELS["smollm2-135m"].q_size) == (960, 576)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_auto_is_fused_where_that_was_measured_faster(name: str, dtype: Any) -> None:
    device = VirtualDevice(CpuExecutor(), poison=True)
    table, said = build_ops(device, MODELS[name], StepSizes(2, 7, 64, 16, 16, 1), dtype, on_gpu=True)
    few = isinstance(table.for_rows(1), FusedOps)
    assert few == (name == "smollm2-135m" and dtype == "bfloat16") == ("fused" in said)
    assert isinstance(table.for_rows(AUTO_FUSED_ROWS), FusedOps) == few
    assert isinstance(table.for_rows(AUTO_FUSED_ROWS + 1), PlainOps)


def test_the_head_of_the_mixed_set_is_the_librarys() -> None:
    device = VirtualDevice(CpuExecutor(), poison=True)
    table, _ = build_ops(device, MODELS["smollm2-135m"], StepSizes(2, 7, 64, 16, 16, 1), "bfloat16", on_gpu=True)
    assert isinstance(table.few, FusedOps)
    assert isinstance(table.many, PlainOps)
    assert table.few.stripes is table.many.stripes is not None
    assert not table.few.batch_invariant
