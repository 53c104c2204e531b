"""Threads of the CPU device: what was asked for, or the cores that nobody needs."""

from __future__ import annotations

import threading

import numba
import pytest
import threadpoolctl

from graphs.cpu_matmul import use_threads
from runtime import cpu_threads
from runtime.cpu_threads import busy_elsewhere, resolve_threads


def test_no_more_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """More would wait for each other; that it was limited is told where `draftgraph info` tells the number."""
    monkeypatch.setattr(cpu_threads, "usable_cores", lambda: 4)
    assert [resolve_threads(count) for count in (1, 4)] == [(1, "asked for"), (4, "asked for")]
    assert resolve_threads(1000) == (4, "1000 asked for, limited to the cores that this process may run on")


@pytest.mark.parametrize(("cores", "busy", "threads"), [(2, 0, 2), (2, 1, 1), (2, 5, 1), (16, 4, 12)])
def test_auto_leaves_busy_cores_alone(monkeypatch: pytest.MonkeyPatch, cores: int, busy: int, threads: int) -> None:
    monkeypatch.setattr(cpu_threads, "usable_cores", lambda: cores)
    monkeypatch.setattr(cpu_threads, "busy_elsewhere", lambda: busy)
    assert resolve_threads("auto") == (threads, f"auto: {cores} cores, {busy} of them busy when the engine was opened")


def test_a_busy_thread_is_seen() -> None:
    """The interpreter lock lets our own second thread run while the first sleeps between samples."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    before = busy_elsewhere()
    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        assert busy_elsewhere() >= min(1, before + 1)
    finally:
        stop.set()
        spinner.join()


def test_blas_and_our_own_loop_take_the_number() -> None:
    blas = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")
    loop = numba.get_num_threads()
    try:
        use_threads(1)
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"} == {1}
        assert numba.get_num_threads() == 1
    finally:
        use_threads(blas)
        numba.set_num_threads(loop)
