"""Every kernel of the fused decode path against its oracle: each executor and storage type, ragged requests, pads that show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphs.launch import Grid
from kernels import oracle_fused as oracle
from kernels.attend import attend_rows
from kernels.behind_product import add_squares, norm_swiglu
from kernels.embed_squares import embed_squares
from kernels.head import best_of_stripes, gather_norm, project_argmax
from kernels.lang import MAX_THREADS, SIMULATED, Kernel
from kernels.project import (
    norm_gate_up,
    norm_project,
    norm_project_two,
    project_residual,
    project_residual_two,
)
from kernels.project_tap import project_residual_tap, project_residual_two_tap
from kernels.rotate import norm_rotate_store, rotate_store
from tests.kernel_cases import Launch, floats, guarded, live, poisoned, untouched
from tests.storage_cases import STORAGES, TOLERANCE, dtype_of, stored, widened

EPS = 1e-5
STORAGE = pytest.mark.parametrize("storage", STORAGES)


def warps(*shapes: tuple[Grid, int]) -> pytest.MarkDecorator:
    """As tests.kernel_cases.launches, blocks counted in warps: one thread each on cpu and simulator, thirty-two on a GPU."""
    cases: list[Any] = [Launch("cpu")]
    if SIMULATED:
        cases += [Launch("simulator", grid, block) for grid, block in shapes]
    blocks = [(grid, min(32 * block, MAX_THREADS)) for grid, block in shapes]
    cases += [pytest.param(Launch("cuda", grid, block), marks=pytest.mark.gpu) for grid, block in blocks]
    return pytest.mark.parametrize("launch", cases, ids=str)


LAUNCHES = warps((2, 3), (1, 10))
BEHIND_LAUNCHES = warps(((2, 2), 1), ((1, 3), 2))


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


@BEHIND_LAUNCHES
@STORAGE
@pytest.mark.parametrize("width", [24, 13, 1304])
def test_embed_squares(launch: Launch, storage: str, width: int) -> None:
    args = {
        "residual": untouched(5, width),
        "normed": out_of(storage, 5, width),
        "squares": untouched(5, -(-width // 8)),
        "table": stored(floats(1, 11, width), storage),
        "gain": floats(2, width),
        "input_ids": poisoned(np.array([10, 0, -1, 11, 3], np.int32), 4),
        "num_tokens": live(4),
    }
    residual, normed, squares = oracle.embed_squares(**wide_args(args))
    expected = {"residual": residual, "squares": squares}
    check(launch, embed_squares, args, {"normed": normed}, storage, wide=expected)


def norm_case(
    storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> dict[str, Any]:
    """scaled: x is the norm itself, so that squares must not matter: they are NaN. Rows of x beyond `count` are NaN."""
    rows = floats(31, capacity, depth) * 3
    squares = oracle.squares_of(rows).astype(np.float32)
    return {
        "out": out_of(storage, capacity, outputs),
        "x": stored(poisoned(rows, count), storage),
        "squares": poisoned(np.full_like(squares, np.nan) if scaled else squares, count),
        "weight": stored(floats(33, outputs, depth), storage),
        "eps": EPS,
        "scaled": scaled,
        "parts": parts,
        "num_tokens": live(count),
    }


NORM_CASES = pytest.mark.parametrize(
    ("outputs", "depth", "count", "capacity", "parts", "slabs"),
    [
        (16, 32, 1, 3, 1, 1),
        (24, 72, 3, 3, 1, 2),
        (13, 40, 17, 18, 2, 2),
        (8, 200, 8, 9, 2, 1),
        (16, 456, 9, 9, 4, 1),
        (72, 136, 2, 8, 3, 2),
        (8, 40, 0, 2, 1, 1),
    ],
)
SCALED = pytest.mark.parametrize("scaled", [0, 1], ids=["squares", "scaled"])


@LAUNCHES
@STORAGE
@SCALED
@NORM_CASES
def test_norm_project(
    launch: Launch, storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> None:
    args = norm_case(storage, scaled, outputs, depth, count, capacity, parts, slabs)
    kernel = norm_project if slabs == 1 else norm_project_two
    check(launch, kernel, args, {"out": oracle.norm_project(**wide_args(args))}, storage)


@LAUNCHES
@STORAGE
@SCALED
@NORM_CASES
def test_norm_gate_up(
    launch: Launch, storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> None:
    args = norm_case(storage, scaled, 2 * outputs, depth, count, capacity, parts, slabs)
    args["out"] = out_of(storage, capacity, outputs)
    check(launch, norm_gate_up, args, {"out": oracle.norm_gate_up(**wide_args(args))}, storage)


def residual_case(storage: str, outputs: int, depth: int, count: int, capacity: int, parts: int) -> dict[str, Any]:
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


@LAUNCHES
@STORAGE
@NORM_CASES
def test_project_residual(
    launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> None:
    args = residual_case(storage, outputs, depth, count, capacity, parts)
    kernel = project_residual if slabs == 1 else project_residual_two
    residual, normed, squares = oracle.project_residual(**wide_args(args))
    check(launch, kernel, args, {"normed": normed}, storage, wide={"residual": residual, "squares": squares})


@LAUNCHES
@pytest.mark.parametrize(("storage", "slabs"), [("bfloat16", 1), ("float32", 2)])
def test_project_residual_to_a_tap(launch: Launch, storage: str, slabs: int) -> None:
    """As without; the columns beside those of the tap are another's."""
    args = {**residual_case(storage, 20, 24, 9, 10, 2), "features": out_of(storage, 10, 27), "column": 3}
    kernel = project_residual_tap if slabs == 1 else project_residual_two_tap
    residual, normed, squares, features = oracle.project_residual_tap(**wide_args(args))
    check(launch, kernel, args, {"normed": normed, "features": features}, storage, wide={"residual": residual, "squares": squares})


BEHIND = pytest.mark.parametrize(
    ("columns", "count", "capacity"), [(24, 2, 3), (13, 3, 3), (576, 1, 2), (1304, 5, 6), (8, 0, 2)], ids=str
)


@BEHIND_LAUNCHES
@STORAGE
@SCALED
@BEHIND
def test_norm_swiglu(launch: Launch, storage: str, scaled: int, columns: int, count: int, capacity: int) -> None:
    """The residual has another width than the activation: each has its own tail."""
    width = columns // 2 + 1
    squares = oracle.squares_of(floats(51, capacity, width) * 3).astype(np.float32)
    args = {
        "out": out_of(storage, capacity, columns),
        "gate_up": poisoned(floats(52, capacity, 2 * columns) * 4, count),
        "squares": poisoned(np.full_like(squares, np.nan) if scaled else squares, count),
        "width": width,
        "eps": EPS,
        "scaled": scaled,
        "num_tokens": live(count),
    }
    check(launch, norm_swiglu, args, {"out": oracle.norm_swiglu(**wide_args(args))}, storage)


@BEHIND_LAUNCHES
@STORAGE
@BEHIND
def test_add_squares(launch: Launch, storage: str, columns: int, count: int, capacity: int) -> None:
    args = {
        "residual": guarded(floats(53, capacity, columns), count),
        "normed": out_of(storage, capacity, columns),
        "squares": untouched(capacity, -(-columns // 8)),
        "x": poisoned(floats(54, capacity, columns), count),
        "gain": floats(55, columns),
        "num_tokens": live(count),
    }
    residual, normed, squares = oracle.add_squares(**wide_args(args))
    check(launch, add_squares, args, {"normed": normed}, storage, wide={"residual": residual, "squares": squares})


@warps((2, 4), (1, 10))
@STORAGE
@pytest.mark.parametrize("kernel", [norm_project, norm_project_two, norm_gate_up], ids=lambda kernel: kernel.name)
def test_a_row_of_a_product_does_not_depend_on_its_company(launch: Launch, kernel: Kernel, storage: str) -> None:
    """Bit for bit: alone, among eight, and as the ninth."""
    if launch.executor == "simulator":
        pytest.skip("slow in the simulator, which adds up as the CPU does")
    many = norm_case(storage, 0, 80, 456, 9, 9, 3, 1)
    many["out"] = out_of(storage, 9, 40) if kernel is norm_gate_up else many["out"]
    launch.run(kernel, *(many[name] for name in kernel.params))
    for row in (0, 3, 7, 8):
        alone = norm_case(storage, 0, 80, 456, 1, 1, 3, 2)
        alone["out"] = out_of(storage, 1, many["out"].shape[1])
        alone["x"], alone["squares"] = many["x"][row : row + 1].copy(), many["squares"][row : row + 1].copy()
        launch.run(kernel, *(alone[name] for name in kernel.params))
        assert alone["out"].tobytes() == many["out"][row].tobytes()


@pytest.mark.parametrize("kernel", [rotate_store, norm_rotate_store], ids=lambda k: k.name)
@warps(((2, 2), 3), ((1, 1), 10))
@STORAGE
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(3, 1, 4), (4, 2, 64)], ids=str)
def test_rotate_store(launch: Launch, kernel: Kernel, storage: str, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    angles = np.arange(20)[:, None] * 0.7 ** np.arange(head_dim // 2)
    cache = (4, 4, num_kv_heads, head_dim)
    args: dict[str, Any] = {
        "query": out_of(storage, 5, num_heads * head_dim),
        "k_cache": stored(floats(37, *cache), storage),
        "v_cache": stored(floats(38, *cache), storage),
        "qkv": poisoned(floats(39, 5, (num_heads + 2 * num_kv_heads) * head_dim), 4),
        "table": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        "positions": poisoned(np.array([19, 0, 7, 7, 1], np.int32), 4),
        "slot_mapping": np.array([11, -1, 0, 5, 6], np.int32),
        "num_heads": num_heads,
        "num_tokens": live(4),
    }
    if kernel is norm_rotate_store:
        args |= {"q_gain": floats(40, head_dim), "k_gain": floats(41, head_dim), "eps": EPS}
    wide = wide_args(args)
    wide["positions"] = np.maximum(wide["positions"], 0)
    query, keys, values = getattr(oracle, kernel.name)(**wide)
    check(launch, kernel, args, {"query": query, "k_cache": keys, "v_cache": values}, storage)


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
        "query_start_loc": np.array([*starts, starts[-1]], np.int32),
        "num_heads": num_heads,
        "scale": head_dim**-0.5,
        "num_requests": live(len(lengths)),
    }


def expected_attention(args: dict[str, Any]) -> np.ndarray:
    names = ("out", "query", "k_cache", "v_cache", "block_tables", "positions", "idx_mapping", "query_start_loc")
    wide = wide_args(args)
    scalars = {name: args[name] for name in ("num_heads", "scale", "num_requests")}
    return oracle.attend(**{name: wide[name] for name in names}, **scalars)


def rows_args(args: dict[str, Any]) -> dict[str, Any]:
    return {name: args[name] for name in attend_rows.params}


@warps(((2, 2, 2), 3), ((1, 1, 3), 10))
@STORAGE
@pytest.mark.parametrize(("starts", "lengths"), [([0, 3, 4], [11, 9]), ([0, 9, 9], [12, 0])], ids=["ragged", "empty"])
def test_attend_rows(launch: Launch, storage: str, starts: list[int], lengths: list[int]) -> None:
    args = attend_case(storage, 4, 2, 64 if launch.executor == "cuda" else 6, 4, starts, lengths)
    check(launch, attend_rows, rows_args(args), {"out": expected_attention(args)}, storage)


@warps(((3, 1, 2), 4))
@STORAGE
def test_attend_rows_across_chunks(launch: Launch, storage: str) -> None:
    """Scores that grow along the keys of one request and fall along those of the other, so that the maximum moves or never does."""
    if launch.executor == "simulator" and storage != "bfloat16":
        pytest.skip("seconds each in the simulator: one stands for all")
    head_dim = {"cuda": 128, "cpu": 66, "simulator": 4}[launch.executor]
    args = attend_case(storage, 8, 2, head_dim, 100, [0, 5, 6], [129, 300])
    for slot, direction in ((2, 20.0), (0, -20.0)):
        ramp = np.linspace(0, direction, 300, dtype=np.float32).reshape(3, 100, 1)
        args["k_cache"][TABLES[slot, :3], :, :, 0] = stored(ramp, storage)
    args["query"][:6, ::head_dim] = stored(np.ones(1, np.float32), storage)[0]
    finite = {name: stored(np.nan_to_num(widened(args[name])), storage) for name in ("k_cache", "v_cache")}
    check(launch, attend_rows, rows_args(args | finite), {"out": expected_attention(args | finite)}, storage)


@LAUNCHES
@STORAGE
@pytest.mark.parametrize("width", [8, 24, 13, 800])
def test_gather_norm(launch: Launch, storage: str, width: int) -> None:
    args = {
        "out": out_of(storage, 4, width),
        "residual": floats(45, 6, width),
        "gain": floats(46, width),
        "indices": np.array([5, 0, 5, 2], np.int32),
        "eps": EPS,
        "num_rows": live(3),
    }
    check(launch, gather_norm, args, {"out": oracle.gather_norm(**wide_args(args))}, storage)


def head_case(storage: str, count: int, vocab_size: int, padding: int, stripes: int) -> dict[str, Any]:
    weight = floats(47, vocab_size + padding, 64)
    weight[vocab_size:] *= 1000  # the padding would win
    weight[[3, vocab_size - 1]] = weight[3] * 4  # ties between columns of different stripes
    return {
        "logits": untouched(count + 1, vocab_size + padding),
        "best_value": untouched(stripes, count + 1),
        "best_column": untouched(stripes, count + 1, dtype=np.int32),
        "x": stored(poisoned(floats(48, count + 1, 64), count), storage),
        "weight": stored(weight, storage),
        "vocab_size": vocab_size,
        "num_rows": live(count),
    }


@LAUNCHES
@STORAGE
@pytest.mark.parametrize(("count", "vocab_size", "padding"), [(1, 21, 3), (3, 40, 0), (17, 13, 8), (9, 60, 4), (70, 30, 2)])
def test_head_and_argmax(launch: Launch, storage: str, count: int, vocab_size: int, padding: int) -> None:
    args = head_case(storage, count, vocab_size, padding, 3)
    wide = wide_args(args)
    logits = oracle.project_argmax(wide["logits"], wide["x"], wide["weight"], args["num_rows"])
    held = check(launch, project_argmax, args, {}, storage, wide={"logits": logits})
    out = untouched(count + 1, dtype=np.int32)
    launch.run(best_of_stripes, out, held["best_value"], held["best_column"], args["num_rows"])
    np.testing.assert_array_equal(out[:count], held["logits"][:count, :vocab_size].argmax(axis=1))
    assert out[count] == -7


@LAUNCHES
def test_best_of_stripes(launch: Launch) -> None:
    inf = np.inf
    values = np.array([[1, 5, -inf, inf], [2, 5, -inf, -inf], [0, 4, -inf, 1]], np.float32)
    columns = np.array([[4, 9, 2**31 - 1, 3], [7, 2, 2**31 - 1, 2**31 - 1], [1, 1, 2**31 - 1, 0]], np.int32)
    out = untouched(5, dtype=np.int32)
    values, columns = np.pad(values, ((0, 0), (0, 1))), np.pad(columns, ((0, 0), (0, 1)))
    expected = oracle.best_of_stripes(out, values, columns, live(4))
    args = {"out": out, "best_value": values, "best_column": columns, "num_rows": live(4)}
    launch.check(best_of_stripes, args, {"out": expected})
    assert expected.tolist() == [7, 2, 0, 3, -7]


def test_storage_of_a_kernel_is_that_of_its_arrays() -> None:
    assert [str(dtype_of(storage)) for storage in STORAGES] == ["float32", "float16", "uint16"]
