"""One pass of a profile: an engine under a collector, from its opening to the trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from runtime.config import RunConfig
from runtime.copy_bandwidth import copy_bandwidth
from runtime.intake import Expects
from runtime.machine import describe
from runtime.phase_clock import NO_PHASES, Phase, PhaseClock
from runtime.profile.call_collector import CallCollector
from runtime.profile.collectors import Collector, EventCollector, QueueCollector, ReplayLog
from runtime.profile.cupti_collector import CuptiCollector
from runtime.profile.graph_facts import bytes_read, families_of
from runtime.profile.trace import Mode, Trace
from runtime.profile.workload import Workload

MARKS = 1 << 17
Open: TypeAlias = "Callable[[Expects], AbstractContextManager[Any]]"
"""Opens an engine, which is told first what it will be asked."""


def collector_of(mode: Mode, *, inside: bool = False) -> Collector:
    """Made before the engine: see runtime.profile.cupti_collector. inside: of a host pass, the nodes in place of each replay.

    Raises DeviceError when CUPTI is missing.
    """
    if mode is Mode.EVENTS:
        return EventCollector()
    if mode is Mode.HOST:
        return QueueCollector(inside=inside)
    if mode is Mode.CALLS:
        return CallCollector()
    return CuptiCollector(mode)


def run_pass(config: RunConfig, collector: Collector, workload: Workload, open_engine: Open) -> Trace:
    """Open an engine, play the workload under a collector, close the engine.

    The workload is played once unseen before: what is only slow the first time is no part of a profile.

    Raises:
        ConfigError: the workload does not fit; others of the engine.
    """
    params = config.sampling.params_to_time()
    with open_engine(workload.expects(config.speculator.k)) as engine:
        library = engine.runner.library
        Workload(workload.prompts, 1, 1).run(engine, _watched(library, ReplayLog(Collector())), params)
        log, clock = _watched(library, ReplayLog(collector)), PhaseClock(MARKS)
        before = library.launches.copy()
        collector.begin(engine)
        engine.trace_phases(clock)
        try:
            window = workload.run(engine, log, params)
        finally:
            clock.mark(Phase.OUTSIDE)  # ends the last phase
            engine.trace_phases(NO_PHASES)
            library.watch = None
        activities, dropped = collector.end(engine)
        facts = describe(engine) | {"concurrency": len(workload.prompts), "steps": workload.steps}
        if collector.mode is Mode.EVENTS:
            facts["copy_bytes_per_s"] = copy_bandwidth(engine.runner.device)
        return Trace(
            collector.mode,
            activities,
            log.replays(),
            window.replays,
            {str(key): count for key, count in (library.launches - before).items()},
            clock.spans(),
            dropped,
            clock.lost,
            window.tokens,
            bytes_read(library, window.context * _cache_bytes(engine)),
            families_of(library),
            facts,
            collector.host_calls(window.replays, workload.steps),
        )


def _watched(library: Any, log: ReplayLog) -> ReplayLog:
    library.watch = log
    return log


def _cache_bytes(engine: Any) -> int:
    """Keys and values of one token in all layers."""
    scheduler = engine.info()["scheduler"]
    return int(scheduler["kv_cache_bytes"]) // (int(scheduler["num_blocks"]) * int(scheduler["block_size"]))
