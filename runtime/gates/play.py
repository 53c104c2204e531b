"""Cases of a gate played and checked one after the other, or by several processes at a time; what they say is the same."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from runtime.errors import DraftgraphError
from runtime.gates import g1, g2
from runtime.gates.case import Case
from runtime.gates.case_run import run_case
from runtime.gates.toy_engine import Venue
from runtime.gates.verdict import Ledger
from runtime.runner import Runner

WORTH_A_PROCESS = 32
"""Cases that take longer than a process takes to start and load its kernels."""

CASES_AT_A_TIME = 4


@dataclass(frozen=True)
class Played:
    """What one case adds to its gate: checks, paths that were taken and steps. Can be sent from process to process."""

    ledger: Ledger = field(default_factory=Ledger)
    coverage: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)


def default_workers(num_cases: int) -> int:
    """Processes for so many cases on this machine; 1 = none beside this one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, num_cases // WORTH_A_PROCESS))


def play_case(gate: str, case: Case, executor: Venue, runner_type: type[Runner] = Runner) -> Played:
    """Run a case and check it. An error of the engine is a failure of the case, and the other cases still run."""
    played = Played()
    try:
        run = run_case(case, executor, tapes=gate == "G2", runner_type=runner_type)
        (g1.check_g1 if gate == "G1" else g2.check_g2)(run, played.ledger)
    except Exception as error:
        played.ledger.check("runs to its end", False, case, f"{type(error).__name__}: {error}")
        return played
    played.ledger.check("runs to its end", True, case, "")
    played.coverage.update(run.coverage)
    played.paths.update(late=run.paths.collected_late, at_once=run.paths.collected_at_once, steps=len(run.steps))
    return played


def play_apart(gate: str, cases: Sequence[Case], workers: int) -> Iterator[Played]:
    """The same on the virtual device in `workers` processes, in the order of `cases`. Raises DraftgraphError: one of them died."""
    # Started anew and not forked: this one has threads of Numba, of BLAS and of a progress bar.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            with _interrupts_ignored():
                played = pool.map(partial(_play_here, gate), cases, chunksize=CASES_AT_A_TIME)
            yield from played
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        except BrokenProcessPool as error:
            raise DraftgraphError(f"{gate}: a process that played cases has died; see where with --workers 1") from error
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that are started here leave Ctrl-C, which a terminal sends to all of them, to this one; from their first
    instruction on, since what is ignored stays so through exec."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_executors: list[Venue] = []


def _play_here(gate: str, case: Case) -> Played:
    """In a process of its own, which loads its kernels once."""
    if not _executors:
        from graphs.cpu_executor import CpuExecutor
        from graphs.cpu_matmul import use_threads

        use_threads(1)  # the products of a toy are small: threads of them would only wait for each other
        _executors.append(CpuExecutor())
    return play_case(gate, case, _executors[0])
