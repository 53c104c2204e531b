"""Run one kernel through one executor and compare every array it was given, pads and inputs included, with what it should hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from graphs.cpu_executor import CpuExecutor
from graphs.executor import Executor
from graphs.launch import Grid
from kernels.lang import SIMULATED, Kernel

EXECUTORS: dict[str, Executor] = {"cpu": CpuExecutor()}
if SIMULATED:
    from graphs.simulator_executor import SimulatorExecutor

    EXECUTORS["simulator"] = SimulatorExecutor(max_threads=64)


@dataclass(frozen=True)
class Launch:
    """How a case is launched. The `cpu` executor is always <<<1, 1>>>."""

    executor: str
    grid: Grid = 1
    block: int = 1

    def __str__(self) -> str:
        return f"{self.executor}-{self.grid}x{self.block}".replace(" ", "")

    def run(self, kernel: Kernel, *args: Any) -> None:
        """Run `kernel` to its end; NumPy arrays are changed in place, ints become int32, floats float32."""
        executor_named(self.executor).bind(kernel, self.grid, self.block, tuple(_scalar(arg) for arg in args))()

    def check(
        self,
        kernel: Kernel,
        args: Mapping[str, Any],
        expected: Mapping[str, npt.NDArray[Any]],
        *,
        rtol: float = 1e-5,
        atol: float = 1e-6,
    ) -> None:
        """Run on copies of `args` (named as the kernel's parameters, in any order).

        Arrays named in `expected` must match it (exactly, unless float); every other array must not have changed by a bit.
        """
        assert set(args) == set(kernel.params), f"{kernel.name}: {sorted(set(args) ^ set(kernel.params))} missing or unknown"
        assert set(expected) <= kernel.writes
        held = {name: arg.copy() if isinstance(arg, np.ndarray) else arg for name, arg in args.items()}
        self.run(kernel, *(held[name] for name in kernel.params))
        for name, now in held.items():
            if not isinstance(now, np.ndarray):
                continue
            message = f"{kernel.name} under {self}: {name}"
            if name not in expected:
                assert now.tobytes() == args[name].tobytes(), f"{message} was stored to"
            elif now.dtype.kind == "f":
                np.testing.assert_allclose(now, expected[name], rtol=rtol, atol=atol, equal_nan=True, err_msg=message)
            else:
                np.testing.assert_array_equal(now, expected[name], err_msg=message)


def executor_named(name: str) -> Executor:
    """cpu, simulator where this process has it, or cuda, which opens the GPU at its first use."""
    if name == "cuda" and name not in EXECUTORS:
        from tests.cuda_executor import CudaExecutor

        EXECUTORS[name] = CudaExecutor()
    return EXECUTORS[name]


def _scalar(arg: Any) -> Any:
    if isinstance(arg, int):
        return np.int32(arg)
    return np.float32(arg) if isinstance(arg, float) else arg


def launches(*shapes: tuple[Grid, int]) -> pytest.MarkDecorator:
    """Parametrize `launch`: the `cpu` executor once, the simulator (where this process has it) and the GPU (marked `gpu`) with
    each grid and block, the GPU with a block of several warps as well."""
    cases: list[Any] = [Launch("cpu")]
    if SIMULATED:
        cases += [Launch("simulator", grid, block) for grid, block in shapes]
    cases += [pytest.param(launch, marks=pytest.mark.gpu) for launch in cuda_launches(*shapes)]
    return pytest.mark.parametrize("launch", cases, ids=str)


def cuda_launches(*shapes: tuple[Grid, int]) -> list[Launch]:
    widest = [(shapes[-1][0], 128)] if shapes else []
    return [Launch("cuda", grid, block) for grid, block in (*shapes, *widest)]


def live(count: int) -> npt.NDArray[np.int32]:
    """A live count as kernels take it."""
    return np.array([count], np.int32)


def ints(*values: Any) -> npt.NDArray[np.int32]:
    """int32, as kernels take ids, lengths and places; lists for more dimensions."""
    return np.array(values, np.int32)


def floats(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Standard normal float32, the same for the same seed and shape."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def poisoned(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """A copy whose rows from `count` on are pads that nobody may read: NaN in floats, -7 in integers."""
    copy = array.copy()
    copy[count:] = np.nan if array.dtype.kind == "f" else -7
    return copy


def guarded(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """A copy whose rows from `count` on are pads that nobody may write: -7, since NaN computed from NaN would not show."""
    copy = array.copy()
    copy[count:] = -7
    return copy


def untouched(*shape: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """An output array before the kernel: nothing but -7."""
    return guarded(np.zeros(shape, dtype), 0)
