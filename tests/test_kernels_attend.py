"""Attention of a step from the projection on, against its oracle: each executor and storage type, ragged requests, visible pads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_attend
from kernels.attend_few import attend_few, norm_attend_few
from kernels.attend_step import attend_step, norm_attend_step
from kernels.lang import Kernel
from tests.fused_cases import EPS, STORAGE, TABLES, attend_case, check, warps, wide_args
from tests.kernel_cases import Launch, floats, poisoned
from tests.storage_cases import LIMIT, stored

STEPS = pytest.mark.parametrize("kernel", [attend_step, norm_attend_step, attend_few, norm_attend_few], ids=lambda k: k.name)


def expected_of(kernel: Kernel, wide: dict[str, Any], storage: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out, k_cache, v_cache) afterwards, by the oracle: both families of kernels have the same."""
    oracle = getattr(oracle_attend, kernel.name.replace("few", "step"))
    out, keys, values = oracle(**{name: wide[name] for name in kernel.params}, limit=LIMIT[storage])
    return out, keys, values


def step_case(
    kernel: Kernel, case: dict[str, Any], storage: str, *, stored_before: bool = False, bad: tuple[int, float] | None = None
) -> dict[str, Any]:
    """A case of `attend_case` whose own rows still stand in qkv, and, unless `stored_before`, NaN in their cells of the cache.
    bad: a row, and what its last value is."""
    k_cache, starts, positions = case["k_cache"], case["query_start_loc"], case["positions"]
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    heads, rows = case["num_heads"], int(starts[case["num_requests"][0]])
    angles = np.arange(4 * block_size)[:, None] * 0.7 ** np.arange(head_dim // 2)
    slots = np.full(rows + 1, -1, np.int32)
    for request in range(case["num_requests"][0]):
        for row in range(starts[request], starts[request + 1]):
            block, offset = divmod(int(positions[row]), block_size)
            slots[row] = TABLES[case["idx_mapping"][request], block] * block_size + offset
    args = {name: case[name] for name in ("out", "k_cache", "v_cache", "block_tables", "idx_mapping", "query_start_loc")}
    args |= {
        "qkv": poisoned(floats(46, rows + 1, (heads + 2 * num_kv_heads) * head_dim), rows),
        "table": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        "positions": positions,
        "slot_mapping": slots,
        "num_heads": heads,
        "scale": case["scale"],
        "stored": int(stored_before),
        "num_requests": case["num_requests"],
    }
    if bad is not None:
        args["qkv"][bad[0], -1] = bad[1]
    if kernel in (norm_attend_step, norm_attend_few):
        args |= {"q_gain": floats(40, head_dim), "k_gain": floats(41, head_dim), "eps": EPS}
    args["k_cache"], args["v_cache"] = k_cache.copy(), case["v_cache"].copy()
    for cache in (args["k_cache"], args["v_cache"]):
        cache.reshape(-1, num_kv_heads, head_dim)[slots[:rows]] = stored(np.full(1, np.nan, np.float32), storage)[0]
    if stored_before:
        wide = wide_args(args)
        _, keys, values = expected_of(kernel, wide, storage)
        args["k_cache"], args["v_cache"] = stored(keys.astype(np.float32), storage), stored(values.astype(np.float32), storage)
    return args


def check_step(launch: Launch, kernel: Kernel, args: dict[str, Any], storage: str) -> None:
    wide = wide_args(args)
    wide["positions"] = np.maximum(wide["positions"], 0)
    wide["out"] = wide["out"].astype(np.float64)
    expected = expected_of(kernel, wide, storage)
    check(launch, kernel, args, dict(zip(("out", "k_cache", "v_cache"), expected, strict=True)), storage)


@STEPS
@warps(((2, 2, 2), 3), ((1, 1, 3), 4))
@STORAGE
@pytest.mark.parametrize(
    ("starts", "lengths"), [([0, 1, 2], [5, 1]), ([0, 3, 4], [11, 9]), ([0, 7, 7], [12, 0])], ids=["decode", "verify", "empty"]
)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size"), [(3, 1, 4, 3), (4, 2, 6, 16)], ids=str)
def test_attend_step(
    launch: Launch,
    kernel: Kernel,
    storage: str,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    starts: list[int],
    lengths: list[int],
) -> None:
    if launch.executor == "cuda":
        head_dim = 64  # what the 16-bit form takes
    case = attend_case(storage, num_heads, num_kv_heads, head_dim, block_size, starts, lengths)
    check_step(launch, kernel, step_case(kernel, case, storage), storage)


@STEPS
@warps(((3, 1, 2), 4))
@STORAGE
@pytest.mark.parametrize("stored_before", [False, True], ids=["from-qkv", "from-cache"])
@pytest.mark.parametrize(("length", "head_dim"), [(127, 128), (128, 64), (129, 128), (300, 128), (399, 64)], ids=str)
def test_attend_step_over_many_tiles(
    launch: Launch, kernel: Kernel, storage: str, stored_before: bool, length: int, head_dim: int
) -> None:
    """The verify rows of a request straddle tiles of keys; more than 16 pairs; pages that are no multiples of a tile."""
    if launch.executor == "simulator" and (storage, length) not in {("bfloat16", 129), ("float32", 300)}:
        pytest.skip("seconds each in the simulator: two stand for all")
    head_dim = {"cuda": head_dim, "cpu": 66, "simulator": 4}[launch.executor]
    case = attend_case(storage, 8, 2, head_dim, 100, [0, 5, 6], [length, max(length - 130, 1)])
    check_step(launch, kernel, step_case(kernel, case, storage, stored_before=stored_before), storage)


@STEPS
@warps(((2, 2, 2), 4))
@STORAGE
@pytest.mark.parametrize("stored_before", [False, True], ids=["from-qkv", "from-cache"])
@pytest.mark.parametrize("value", [np.nan, np.inf, None], ids=["nan", "inf", "too-large"])
def test_a_draft_without_a_number_is_nobodys_who_does_not_see_it(
    launch: Launch, kernel: Kernel, storage: str, stored_before: bool, value: float | None
) -> None:
    """The last of three rows of a request has such a value, and is about to be rejected; the rows before it are not. None: one
    that only its storage type takes for infinity."""
    if launch.executor == "simulator" and (storage == "float32" or value == np.inf):
        pytest.skip("seconds each in the simulator: bfloat16 stands for all")
    head_dim = 64 if launch.executor == "cuda" else 4
    case = attend_case(storage, 4, 2, head_dim, 16, [0, 3, 4], [11, 9])
    bad = (2, LIMIT[storage] if value is None else value)
    check_step(launch, kernel, step_case(kernel, case, storage, stored_before=stored_before, bad=bad), storage)


@STEPS
@pytest.mark.parametrize("launch", [Launch("cpu"), pytest.param(Launch("cuda", (2, 2, 2), 128), marks=pytest.mark.gpu)], ids=str)
@STORAGE
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_row_does_not_depend_on_its_company(launch: Launch, kernel: Kernel, storage: str, head_dim: int) -> None:
    """Bit for bit: a row of a verify step is the row of a decode step at its position, and so it is behind `rotate_store`."""
    case = attend_case(storage, 8, 2, head_dim, 100, [0, 6, 9], [131, 260])
    many = step_case(kernel, case, storage)
    before = {name: many[name].copy() for name in ("k_cache", "v_cache")}
    launch.run(kernel, *(many[name] for name in kernel.params))
    again = {**many, "out": many["out"].copy() * 0, "stored": 1}
    launch.run(kernel, *(again[name] for name in kernel.params))
    assert again["out"][:9].tobytes() == many["out"][:9].tobytes()
    for row, length in ((0, 126), (2, 128), (3, 129), (5, 131)):
        alone = step_case(kernel, attend_case(storage, 8, 2, head_dim, 100, [0, 1], [length]), storage)
        alone |= {name: cache.copy() for name, cache in before.items()}
        cells = many["slot_mapping"][:row]
        for name in before:  # what decode steps before it have stored
            shape = (-1, *many[name].shape[2:])
            alone[name].reshape(shape)[cells] = many[name].reshape(shape)[cells]
        alone["qkv"][0] = many["qkv"][row]
        launch.run(kernel, *(alone[name] for name in kernel.params))
        assert alone["out"][0].tobytes() == many["out"][row].tobytes()
