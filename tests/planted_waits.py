"""Waits of the host in steady steps as a tracer sees them: of a sound engine, and of one in which a wait was planted.

`python -m tests.planted_waits FILE` runs all of it on a GPU, in a process of its own because CUPTI must be there before anything
else, and leaves each case's calls (runtime/profile/host_calls.py) in FILE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from runtime.config import RunConfig, load_config
from runtime.profile.collectors import Collector
from runtime.profile.host_calls import HostCalls
from runtime.profile.one_pass import collector_of, run_pass
from runtime.profile.trace import Mode
from runtime.profile.workload import Workload

WORKLOAD = Workload([[5, 6, 7, 8, 5, 6, 7], [40, 41, 42], [9, 9]], 4, 12)
SOUND: dict[str, dict[str, Any]] = {
    "ngram": {"speculator": {"method": "ngram", "num_speculative_tokens": 3}},
    "plain": {"speculator": {"method": "none"}},
    "dflash2": {
        "speculator": {"method": "dflash", "draft_source": "random:dflash2?block=8", "num_speculative_tokens": 3},
    },
    "sampled": {"speculator": {"method": "ngram", "num_speculative_tokens": 3}, "sampling": {"temperature": 0.8, "seed": 1}},
    "integrated": {"speculator": {"method": "none"}, "mirror": {"policy": "integrated"}},
}
SIZES = {"max_num_seqs": 4, "max_model_len": 256, "max_num_batched_tokens": 32, "block_size": 4}


def config_of(case: str) -> RunConfig:
    """Of a tiny random model on a GPU."""
    model = {"source": "random:tiny", "dtype": "bfloat16"}
    return load_config({"model": model, "device": "cuda", "scheduler": SIZES, "run": {"chat": False}, **SOUND[case]})


# ---- what is planted behind each launch of a step


def _stream(runner: Any) -> None:
    _cuda().streamSynchronize(runner.compute.pointer)


def _counted(runner: Any) -> None:
    runner.compute.synchronize()


def _device(runner: Any) -> None:
    _cuda().deviceSynchronize()


def _event(runner: Any) -> None:
    """Of the compute stream: the same call as the one that is allowed."""
    event = _event_of(runner.device)
    runner.compute.record(event)
    event.synchronize()


def _copy(runner: Any) -> None:
    _cuda().memcpy(HOST.ctypes.data, runner.buffers.outcomes.array.pointer, HOST.nbytes, _cuda().memcpyDeviceToHost)


def _pageable(runner: Any) -> None:
    """Asynchronous by its name alone."""
    source = runner.buffers.outcomes.array.pointer
    _cuda().memcpyAsync(HOST.ctypes.data, source, HOST.nbytes, _cuda().memcpyDefault, runner.copy.pointer)


def _driver(runner: Any) -> None:
    """Past CUDA's runtime."""
    from cuda.bindings import driver

    driver.cuStreamSynchronize(driver.CUstream(runner.compute.pointer))


def _memory(runner: Any) -> None:
    """Which CUDA waits for when it is given back."""
    import cupy

    cupy.cuda.Memory(64)


HOST = np.zeros(1, np.int32)
PLANTED: dict[str, tuple[Callable[[Any], None], str]] = {
    "stream": (_stream, r"cudaStreamSynchronize waits for stream compute"),
    "counted": (_counted, r"cudaStreamSynchronize waits for stream compute"),
    "device": (_device, r"cudaDeviceSynchronize waits for everything"),
    "event": (_event, r"cudaEventSynchronize for an event of compute; an event of copy is the one allowed"),
    "copy": (_copy, r"cudaMemcpy "),
    "pageable": (_pageable, r"cudaMemcpyAsync copies pageable memory"),
    "driver": (_driver, r"cuStreamSynchronize waits for stream compute"),
    "memory": (_memory, r"cudaMalloc is not known to return at once|cudaFree"),
}
"""What to run, and what is reported of it."""


@cache
def _event_of(device: Any) -> Any:
    return device.event("planted")


def _cuda() -> Any:
    from cupy.cuda import runtime

    return runtime


@contextmanager
def planted(runner: Any, fault: Callable[[Any], None]) -> Iterator[None]:
    """In here every step of `runner` has `fault` in it."""
    launch = runner.launch

    def launch_and_wait(plan: Any) -> Any:
        outcome = launch(plan)
        fault(runner)
        return outcome

    runner.launch = launch_and_wait
    try:
        yield
    finally:
        del runner.launch


def traced(config: RunConfig, collector: Collector, engine: Any) -> HostCalls:
    """The calls of WORKLOAD's window on an engine that is there already."""
    trace = run_pass(config, collector, WORKLOAD, lambda expects: nullcontext(engine))
    assert not trace.dropped
    assert trace.host_calls is not None
    return trace.host_calls


def main(file: str) -> None:
    from runtime.cli_session import open_engine

    collector, found = collector_of(Mode.CALLS), {}

    def keep(name: str, calls: HostCalls) -> None:
        found[name] = calls.as_dict()
        Path(file).write_text(json.dumps(found), encoding="utf-8")

    for case in SOUND:
        config = config_of(case)
        with open_engine(config, True, WORKLOAD.expects(config.speculator.k)) as engine:
            keep(case, traced(config, collector, engine))
            if case == "ngram":
                for name, (fault, _) in PLANTED.items():
                    with planted(engine.runner, fault):
                        keep(f"planted {name}", traced(config, collector, engine))
                keep("ngram again", traced(config, collector, engine))


if __name__ == "__main__":
    main(sys.argv[1])
