"""Matrix products by cuBLAS against NumPy, over dtypes, shapes and strides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime.device import open_device
from runtime.errors import DeviceError

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice

pytestmark = pytest.mark.gpu

SHAPES = [(1, 576, 960), (8, 576, 3072), (3, 1536, 576), (5, 17, 33), (64, 64, 1), (1, 1, 1), (37, 576, 49152)]
DTYPES = ["float32 float32", "float16 float16", "float16 float32", "bfloat16 bfloat16", "bfloat16 float32"]  # stored, out
# Relative to the size of a sum of k products of unit normals; sums are float32, so only what is stored is rounded.
STORED_ERROR = {"float32": 5e-6, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with open_device("cuda", poison=True) as device:  # type: ignore[attr-defined]
        yield device


def stored(values: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[Any]:
    """As the device holds them: bfloat16 as its bits, rounded to nearest even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def loaded(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(device: CudaDevice, shape: tuple[int, int, int], dtypes: str) -> None:
    (rows, inner, columns), (dtype, out_dtype) = shape, dtypes.split()
    rng = np.random.default_rng([rows, inner, columns])
    x = stored(rng.standard_normal((rows, inner)), dtype)
    weight = stored(rng.standard_normal((columns, inner)), dtype)
    stream = device.stream("s")
    dx, dw = device.array("x", x.shape, x.dtype), device.constant("w", weight)
    out = device.array("out", (rows, columns), stored(np.zeros(1), out_dtype).dtype)
    live = device.constant("rows", np.array([rows], np.int32))
    device.upload(dx, x)
    stream.matmul(out, dx, dw, live)
    found, expected = loaded(device.download(out)), loaded(x) @ loaded(weight).T
    for array in (dx, dw, out, live):
        device.free(array)
    np.testing.assert_allclose(found, expected, rtol=STORED_ERROR[out_dtype], atol=STORED_ERROR[out_dtype] * 2 * inner**0.5)


def test_views_of_rows(device: CudaDevice) -> None:
    rng, stream = np.random.default_rng(1), device.stream("s")
    x, weight = rng.standard_normal((6, 10)).astype(np.float32), rng.standard_normal((7, 4)).astype(np.float32)
    dx, dw = device.array("vx", x.shape, np.float32), device.constant("vw", weight)
    out, live = device.array("vout", (6, 9), np.float32), device.constant("vrows", np.array([2], np.int32))
    device.upload(dx, x)
    device.upload(out, np.zeros((6, 9), np.float32))
    stream.matmul(out[1:4, 1:8], dx[2:5, 3:7], dw, live)
    expected = np.zeros((6, 9), np.float32)
    expected[1:4, 1:8] = x[2:5, 3:7] @ weight.T
    np.testing.assert_allclose(device.download(out), expected, rtol=1e-5, atol=1e-5)


def test_what_cublas_cannot_multiply_is_refused(device: CudaDevice) -> None:
    stream, live = device.stream("s"), device.constant("rrows", np.array([2], np.int32))
    x, half = device.array("rx", (2, 4), np.float32), device.array("rhalf", (3, 4), np.float16)
    out = device.array("rout", (2, 3), np.float32)
    with pytest.raises(DeviceError, match="x and weight must have one type"):
        stream.matmul(out, x, half, live)
    with pytest.raises(DeviceError, match="do not fit"):
        stream.matmul(out, x, x, live)


def test_float32_is_not_rounded_to_tf32(device: CudaDevice) -> None:
    """1 + 2^-12 survives a product with 1: TF32 keeps ten bits."""
    stream, live = device.stream("s"), device.constant("trows", np.array([16], np.int32))
    x, w = device.array("tx", (16, 16), np.float32), device.constant("tw", np.eye(16, dtype=np.float32))
    out = device.array("tout", (16, 16), np.float32)
    device.upload(x, np.full((16, 16), 1 + 2**-12, np.float32))
    stream.matmul(out, x, w, live)
    assert (device.download(out) == np.float32(1 + 2**-12)).all()


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_each_algorithm_multiplies_the_same(device: CudaDevice, rows: int) -> None:
    """Split sums among them; captured, and by its own choice again once nothing is chosen."""
    rng, stream = np.random.default_rng(rows), device.stream("s")
    x, weight = (stored(rng.standard_normal(shape), "bfloat16") for shape in ((rows, 4096), (512, 4096)))
    dx, dw = device.array("x", x.shape, x.dtype), device.constant("w", weight)
    out, live = device.array("out", (rows, 512), np.float32), device.constant("rows", np.array([rows], np.int32))
    device.upload(dx, x)
    algorithms = stream.product_algorithms(out, dx, dw)
    assert len(set(algorithms)) == len(algorithms) > 1
    for algorithm in (*algorithms, None):
        stream.use_algorithm(out, dx, dw, algorithm)
        with stream.capture("product") as captured:
            stream.matmul(out, dx, dw, live)
        device.upload(out, np.full(out.shape, np.nan, np.float32))
        captured.graph.launch(stream)
        stream.synchronize()
        np.testing.assert_allclose(device.download(out), loaded(x) @ loaded(weight).T, atol=2e-3)
    for array in (dx, dw, out, live):
        device.free(array)
