"""An even share of blocks on each multiprocessor (graphs/direct_launch.py), as CUDA's own occupancy calculator counts them."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.lang import float32, int32
from kernels.project import norm_project_two
from runtime.device import open_device

pytestmark = pytest.mark.gpu

THREADS = 192


def test_no_multiprocessor_has_room_for_more_than_its_share() -> None:
    from cuda.bindings import driver

    from graphs.direct_launch import even_share

    def asked(result: tuple[object, ...]) -> int:
        assert result[0] == driver.CUresult.CUDA_SUCCESS
        return int(str(result[1]))

    with open_device("cuda") as device:  # type: ignore[attr-defined]
        rows, weights, live = (
            device.array(name, shape, np.float32) for name, shape in (("x", (1, 64)), ("w", (64, 64)), ("s", (1, 8)))
        )
        count = device.array("live", (1,), np.int32)
        arrays = [array.numba._numba_type_ for array in (rows, rows, live, weights)]
        types = (*arrays, float32, int32, int32, count.numba._numba_type_)
        handle = device.compile(norm_project_two, types, THREADS)
        processors = asked(
            driver.cuDeviceGetAttribute(
                driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, driver.cuCtxGetDevice()[1]
            )
        )
        for share in (1, 2, 3):
            idle = even_share(handle, share * processors - 5)
            fit = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(driver.CUfunction(handle), THREADS, idle)
            assert asked(fit) == share, f"{idle} bytes"
        assert even_share(handle, 100 * processors) == 0
