"""What the tests of the fused kernels share: launches in warps, arrays of a storage type, attention over pages, and a check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphs.launch import Grid
from kernels.lang import MAX_THREADS, SIMULATED, Kernel
from tests.kernel_cases import Launch, floats, guarded, live, poisoned, untouched
from tests.storage_cases import STORAGES, TOLERANCE, stored, widened

EPS = 1e-5
STORAGE = pytest.mark.parametrize("storage", STORAGES)


def warps(*shapes: tuple[Grid, int]) -> pytest.MarkDecorator:
    """As tests.kernel_cases.launches, blocks counted in warps: one thread each on cpu and simulator, thirty-two on a GPU."""
    here, on_gpu = _launches(*shapes)
    return pytest.mark.parametrize("launch", [*here, *(pytest.param(launch, marks=pytest.mark.gpu) for launch in on_gpu)], ids=str)


def forms(*shapes: tuple[Grid, int]) -> pytest.MarkDecorator:
    """Parametrize `storage` and `launch`: each storage type under each of `warps`, but float16 not in the simulator, where it is
    NumPy's own and slow, and on a CPU only among slow tests: no model runs there in 16 bits, a third of what these tests compile
    would be of it, and bfloat16 takes the same paths. A GPU runs it."""
    here, on_gpu = _launches(*shapes)
    cases: list[Any] = []
    for launch in here:
        cases += [pytest.param(storage, launch) for storage in ("float32", "bfloat16")]
        if launch.executor == "cpu":
            cases.append(pytest.param("float16", launch, marks=pytest.mark.slow))
    cases += [pytest.param(storage, launch, marks=pytest.mark.gpu) for launch in on_gpu for storage in STORAGES]
    named = [pytest.param(*case.values, marks=case.marks, id="-".join(map(str, case.values))) for case in cases]
    return pytest.mark.parametrize(("storage", "launch"), named)


def _launches(*shapes: tuple[Grid, int]) -> tuple[list[Launch], list[Launch]]:
    """Of this process, and of one with a GPU."""
    here = [Launch("cpu"), *(Launch("simulator", grid, block) for grid, block in shapes if SIMULATED)]
    return here, [Launch("cuda", grid, min(32 * block, MAX_THREADS)) for grid, block in shapes]


SHAPES: tuple[tuple[Grid, int], ...] = ((2, 3), (1, 10))
LAUNCHES, FORMS = warps(*SHAPES), forms(*SHAPES)


def out_of(storage: str, *shape: int) -> np.ndarray:
    """An output before the kernel: -7 everywhere, in any storage type."""
    return stored(untouched(*shape), storage)


def check(
    launch: Launch,
    kernel: Kernel,
    args: dict[str, Any],
    expected: dict[str, np.ndarray],
    storage: str,
    wide: dict[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Run on copies, which are returned. Outputs in `expected` (float32) within the storage type's tolerance, those in `wide`,
    which are float32 whatever it is, within float32's; every other array unchanged."""
    if launch.executor == "simulator" and storage == "float16":
        pytest.skip("slow in the simulator, where float16 is NumPy's own: bfloat16 and float32 stand for it")
    held = {name: arg.copy() if isinstance(arg, np.ndarray) else arg for name, arg in args.items()}
    launch.run(kernel, *(held[name] for name in kernel.params))
    outputs = {name: (value, TOLERANCE[storage]) for name, value in expected.items()}
    outputs |= {name: (value, TOLERANCE["float32"]) for name, value in (wide or {}).items()}
    for name, now in held.items():
        if name in outputs:
            values, tolerance = outputs[name]
            found = widened(now) if now.dtype.kind == "f" or now.dtype == np.uint16 else now
            scale = np.nanmax(np.abs(values), initial=1.0, where=np.isfinite(values))
            message = f"{kernel.name}: {name}"
            np.testing.assert_allclose(found, values, rtol=tolerance, atol=tolerance * scale, err_msg=message)
        elif isinstance(now, np.ndarray) and name not in kernel.writes:
            assert now.tobytes() == args[name].tobytes(), f"{kernel.name} stored to {name}"
    return held


def wide_args(args: dict[str, Any]) -> dict[str, Any]:
    return {
        name: widened(arg) if isinstance(arg, np.ndarray) and arg.dtype.kind in "fu" else arg for name, arg in args.items()
    }


def residual_case(storage: str, outputs: int, depth: int, count: int, capacity: int, parts: int) -> dict[str, Any]:
    """What a product that adds to the residual takes, but for what its own form asks: `parts` warps share a tile."""
    return {
        "residual": guarded(floats(34, capacity, outputs), count),
        "normed": out_of(storage, capacity, outputs),
        "squares": untouched(capacity, -(-outputs // 8)),
        "x": stored(poisoned(floats(35, capacity, depth), count), storage),
        "weight": stored(floats(36, outputs, depth), storage),
        "gain": floats(37, outputs),
        "parts": parts,
        "num_tokens": live(count),
    }


TABLES = np.array([[7, 2, 9, -1], [-1, -1, -1, -1], [0, 8, 3, 5]], np.int32)


def attend_case(
    storage: str, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, starts: list[int], lengths: list[int]
) -> dict[str, Any]:
    """Requests on slots 2 and 0: row offsets `starts`, positions that end at `lengths` - 1; a third request is a pad."""
    rows = starts[-1]
    spans = zip(starts[:-1], starts[1:], lengths, strict=True)
    positions = np.concatenate([np.arange(length - (end - begin), length) for begin, end, length in spans])
    cache = (10, block_size, num_kv_heads, head_dim)
    k_cache, v_cache = floats(42, *cache), floats(43, *cache)
    for unused in (1, 4, 6):  # blocks of no slot: reading one shows
        k_cache[unused], v_cache[unused] = np.nan, np.nan
    for slot, length in zip((2, 0), lengths, strict=False):
        seen, behind = divmod(length, block_size)
        if behind:  # entries of the last block that were never written
            k_cache[TABLES[slot, seen], behind:], v_cache[TABLES[slot, seen], behind:] = np.nan, np.nan
    return {
        "out": out_of(storage, rows + 1, num_heads * head_dim),
        "query": stored(poisoned(floats(44, rows + 1, num_heads * head_dim), rows), storage),
        "k_cache": stored(k_cache, storage),
        "v_cache": stored(v_cache, storage),
        "block_tables": TABLES,
        "positions": np.append(positions, -7).astype(np.int32),
        "idx_mapping": np.array([2, 0, -1], np.int32),
        "query_start_loc": np.array([*starts, *[starts[-1]] * (4 - len(starts))], np.int32),  # a row more than idx_mapping
        "num_heads": num_heads,
        "scale": head_dim**-0.5,
        "num_requests": live(len(lengths)),
    }
