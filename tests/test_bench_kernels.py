"""The rig of runtime/forward_rig.py on the virtual device: what a GPU times must first be right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs.cpu_executor import CpuExecutor
from graphs.flow_ops import FlowLayout
from graphs.fused_ops import FusedOps
from graphs.plain_ops import PlainOps
from runtime import forward_rig
from runtime.bench_kernels import MODELS
from runtime.bench_products import Product, ProductBench, ProductTimes, products_of
from runtime.errors import DeviceError
from runtime.forward_rig import Rig, Row
from runtime.models.rope import RopeSpec
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
    return ModelSpec(**{**vars(MODELS[name]), **TINY, "rope": RopeSpec(1e4, 64)})


def rig_of(monkeypatch: pytest.MonkeyPatch, name: str, dtype: Any, requests: int, query_len: int, context: int) -> Rig:
    device: Any = VirtualDevice(CpuExecutor(), poison=True)
    device.facts = SimpleNamespace(compute_capability=(9, 0))  # asked for where heads of a GPU are chosen among
    rng = np.random.default_rng(1)

    def fill(array: Any, scale: float) -> None:
        values = (rng.standard_normal(array.shape) * scale).astype(np.float32)
        device.upload(array, stored(values, "bfloat16" if array.dtype == np.uint16 else str(array.dtype)))

    monkeypatch.setattr(forward_rig, "fill_normal", fill)
    return Rig(device, device.stream("s"), tiny(name), dtype, requests, query_len, context)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("requests", "query_len", "context"), [(1, 1, 5), (3, 4, 130)])
@pytest.mark.parametrize("name", MODELS)
def test_sets_agree_on_the_step_that_is_timed(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: Any, requests: int, query_len: int, context: int
) -> None:
    error, agreement = rig_of(monkeypatch, name, dtype, requests, query_len, context).difference()
    assert 0 < error < {"float32": 1e-5, "bfloat16": 3e-2}[dtype]
    assert agreement > 0.7


def spoil_cache(rig: Rig) -> None:
    for layer in rig.model.layers:
        for cache in (layer.k_cache, layer.v_cache):
            rig.device.upload(cache, np.full(cache.shape, np.nan, np.float32))


def test_what_choosing_leaves_in_the_cache_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of(monkeypatch, "qwen3-8b", "float32", 2, 1, 5)

    class Chooser:
        """Leaves NaN, as layers do that run on activations that nobody wrote."""

        def __init__(self, device: Any, model: Any, scratch: Any) -> None: ...

        def __call__(self, fused: FusedOps, library: PlainOps, sizes: StepSizes) -> tuple[Any, str]:
            spoil_cache(rig)
            return SimpleNamespace(for_rows=lambda rows: fused), "said"

    monkeypatch.setattr(forward_rig, "OpsChooser", Chooser)
    assert rig.add_auto() == "said"
    error, agreement = rig.difference()
    assert 0 < error < 1e-5
    assert agreement == 1


def test_auto_chooses_among_the_heads_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, heads = rig_of(monkeypatch, "qwen3-8b", "float32", 2, 1, 5), []

    class Chooser:
        def __init__(self, device: Any, model: Any, scratch: Any) -> None: ...

        def __call__(self, fused: FusedOps, library: PlainOps, sizes: StepSizes) -> tuple[Any, str]:
            heads.append(fused.layouts.get("head"))
            return SimpleNamespace(for_rows=lambda rows: fused), "said"

    monkeypatch.setattr(forward_rig, "OpsChooser", Chooser)
    flowing = FlowLayout(2, 8, 132)
    for known in (flowing, None):
        monkeypatch.setattr("runtime.models.scratch.head_layout_of", lambda *shape, known=known: known)
        rig.add_auto()
    assert heads == [flowing, None]


def test_logits_that_are_not_finite_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN rows have the same arg max in every set, so that nothing else would tell them from logits that agree."""
    rig = rig_of(monkeypatch, "qwen3-8b", "float32", 2, 1, 5)
    spoil_cache(rig)
    with pytest.raises(ValueError, match="logits of 2 x 1 rows are not finite"):
        rig.difference()


def product_bench(monkeypatch: pytest.MonkeyPatch, name: str, rows: int) -> ProductBench:
    monkeypatch.setattr("runtime.bench_products._MOST_COPIES", 2)
    device: Any = VirtualDevice(CpuExecutor(), poison=True)
    device.facts = SimpleNamespace(compute_capability=(9, 0))  # asked for where heads of a GPU are chosen among
    rng = np.random.default_rng(1)

    def fill(array: Any, scale: float) -> None:
        device.upload(array, stored((rng.standard_normal(array.shape) * scale).astype(np.float32), "bfloat16"))

    product = Product("m", name, 48, 64)
    return ProductBench(device, device.stream("s"), product, rows, "bfloat16", fill)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", ["qkv", "out", "gate_up", "down", "head"])
def test_products_that_are_timed_are_right(monkeypatch: pytest.MonkeyPatch, name: str, rows: int) -> None:
    bench = product_bench(monkeypatch, name, rows)
    bench._check()
    bench.ours(bench.weights[0])
    bench.close()


def test_a_product_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = product_bench(monkeypatch, "qkv", 1)
    monkeypatch.setattr(bench, "ours", lambda weight: None)
    with pytest.raises(DeviceError, match=r"ours is off by 1\.0e\+00 of cuBLAS's result with 1 rows"):
        bench._check()


def test_products_are_those_of_a_decode_step() -> None:
    shapes = [(product.name, product.depth, product.outputs) for product in products_of("m", MODELS["smollm2-135m"])]
    expected = [("qkv", 576, 960), ("out", 576, 576), ("gate_up", 576, 3072), ("down", 1536, 576), ("head", 576, 49152)]
    assert shapes == expected


def test_a_line_of_products_says_how_much_faster() -> None:
    times = ProductTimes(Product("m", "out", 4, 8), 1, 64_000, {"ours": [2.0, 2.0, 2.2], "cublas": [3.0, 3.0, 3.0]})
    expected = "out     8x4          rows 1 ours    2.00 us +- 10%    32 GB/s | cublas    3.00 us +-  0%    21 GB/s | 1.50x cublas"
    assert str(times) == expected


def test_a_row_says_what_it_moves() -> None:
    row = Row("m", 1, 8, "qkv 576x960", 1_105_920, {"fused": 2.0, "cublas": 4.0})
    assert str(row) == "m             R=1 q=8 qkv 576x960         fused     2.00 us   553 GB/s | cublas     4.00 us   276 GB/s"


def test_models_are_those_of_the_records() -> None:
    spec = MODELS["qwen3-8b"]
    assert (spec.qkv_size, spec.q_size, spec.kv_size) == (6144, 4096, 1024)
    assert (MODELS["smollm2-135m"].qkv_size, MODELS["smollm2-135m"].q_size) == (960, 576)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_auto_is_fused_for_few_rows_where_nothing_was_measured(name: str, dtype: Any) -> None:
    device = VirtualDevice(CpuExecutor(), poison=True)
    table, said = build_ops(device, MODELS[name], StepSizes(2, 7, 64, 16, 16, 1), dtype, on_gpu=True)
    assert said == f"fused up to {AUTO_FUSED_ROWS} token rows, library products above"
    assert isinstance(table.for_rows(AUTO_FUSED_ROWS), FusedOps)
    assert isinstance(table.for_rows(AUTO_FUSED_ROWS + 1), PlainOps)
