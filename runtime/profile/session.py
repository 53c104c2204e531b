"""A whole profile: which passes, each in its own process where a GPU is traced, and the files that come of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.blueprint import draw_up
from runtime.config import RunConfig
from runtime.console import ProgressBars
from runtime.device import refuse_absent_gpu, resolve_kind
from runtime.errors import ConfigError, DeviceError
from runtime.machine import ROOT
from runtime.profile.analysis import Analysis
from runtime.profile.checks import check_trace
from runtime.profile.chrome_trace import chrome_trace
from runtime.profile.cupti_collector import missing_cupti
from runtime.profile.one_pass import Open, collector_of, run_pass
from runtime.profile.page import render_page
from runtime.profile.picture import NoPictureError, draw
from runtime.profile.profile import Profile
from runtime.profile.trace import Mode, Trace, TraceRefusedError
from runtime.profile.workload import Workload
from runtime.prompts import Prompt

GPU_STEPS, CPU_STEPS, NODE_STEPS, WARMUP_STEPS, CPU_WARMUP_STEPS = 200, 16, 30, 10, 2
PASS_TIMEOUT_S = 900
FILES = ("profile.json", "trace.json", "profile.html", "timeline.png")
PASSES = {Mode.GRAPH: (Mode.EVENTS, Mode.GRAPH), Mode.NODE: (Mode.EVENTS, Mode.GRAPH, Mode.NODE)}


def profile(
    config: RunConfig,
    prompts: Sequence[Prompt],
    trace: Mode,
    open_engine: Open,
    *,
    steps: int | None = None,
    calls: bool = False,
    quiet: bool = False,
) -> Profile:
    """Run the passes that `trace` needs.

    Args:
        prompts: one a request; all run at the same time.
        trace: Mode.GRAPH: untraced and graph pass; Mode.NODE: the node pass as well. On a CPU: replays as a whole, or node by node.
        open_engine: for a pass in this process, which needs no tracing library.
        steps: of the window; the node pass takes NODE_STEPS at most, because its records are many.
        calls: of a GPU, another pass: which calls the host waited in, and for what.

    Raises:
        ConfigError, DeviceError: the workload does not fit, CUPTI is missing, a pass ended by a crash.
        TraceRefusedError: a trace contradicts our own counters, or lacks records.
    """
    refuse_unprofiled(config)
    kind, _ = resolve_kind(config.device)
    if kind != "cuda":
        workload = Workload(prompts, CPU_WARMUP_STEPS, steps or CPU_STEPS)
        collector = collector_of(Mode.HOST, inside=trace is Mode.NODE)
        return Profile({Mode.HOST: Analysis(run_pass(config, collector, workload, open_engine))})
    passes = {}
    for mode in PASSES[trace]:
        passes[mode] = Analysis(pass_in_child(config, mode, _workload(mode, prompts, steps or GPU_STEPS), quiet=quiet))
    if not calls:
        return Profile(passes)
    called = pass_in_child(config, Mode.CALLS, _workload(Mode.CALLS, prompts, steps or GPU_STEPS), quiet=quiet)
    check_trace(called)
    return Profile(passes, called.host_calls)


def default_steps(config: RunConfig, prompts: Sequence[Prompt], bars: ProgressBars) -> tuple[int, int]:
    """Steps of a window whose length nobody chose: what fits beside the prompts, and what is taken where there is room.

    Raises:
        DraftgraphError: as `refuse_unprofiled`; the model or a prompt cannot be used.
    """
    refuse_unprofiled(config)
    on_gpu = resolve_kind(config.device)[0] == "cuda"
    usual = GPU_STEPS if on_gpu else CPU_STEPS
    workload = Workload(prompts, WARMUP_STEPS if on_gpu else CPU_WARMUP_STEPS, usual)
    return workload.steps_that_fit(draw_up(config, bars).intake, config.speculator.k), usual


def refuse_unprofiled(config: RunConfig) -> None:
    """What a later pass lacks is told before the first, which takes as long as a model takes to load.

    Raises:
        ConfigError: nothing is replayed. DeviceError: a GPU is to be traced, and it or CUPTI is missing.
    """
    refuse_absent_gpu(config.device)
    if config.graphs.mode != "graph":
        raise ConfigError(f"graphs.mode = {config.graphs.mode}: nothing is replayed, so there is nothing to see; set it to graph")
    if resolve_kind(config.device)[0] == "cuda" and (reason := missing_cupti()) is not None:
        raise DeviceError(reason)


def _workload(mode: Mode, prompts: Sequence[Prompt], steps: int) -> Workload:
    """The window of a pass of many records is the middle of the others', so that requests are as long, and attention as dear."""
    if mode not in (Mode.NODE, Mode.CALLS) or steps <= NODE_STEPS:
        return Workload(prompts, WARMUP_STEPS, steps)
    return Workload(prompts, WARMUP_STEPS + (steps - NODE_STEPS) // 2, NODE_STEPS)


def pass_in_child(config: RunConfig, mode: Mode, workload: Workload, *, quiet: bool) -> Trace:
    """One pass in a fresh process: CUPTI is there before anything else, and what it does to a process ends with it.

    Raises:
        TraceRefusedError, DeviceError: as the child reports; DeviceError as well when it crashes or does not end.
    """
    with tempfile.TemporaryDirectory(prefix="draftgraph-profile-") as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(
            json.dumps(
                {
                    "config": config.as_dict(),
                    "mode": mode.value,
                    "prompts": list(workload.prompts),
                    "warmup_steps": workload.warmup_steps,
                    "steps": workload.steps,
                    "quiet": quiet,
                    "answer": str(answer),
                }
            ),
            encoding="utf-8",
        )
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        try:
            done = subprocess.run(
                [sys.executable, "-m", "runtime.profile.child", str(request)],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                timeout=PASS_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeviceError(f"{mode.value} pass: no end after {PASS_TIMEOUT_S} s; profile fewer steps (--steps)") from error
        if not answer.exists():
            raise DeviceError(f"{mode.value} pass: its process ended with code {done.returncode} and no trace; see its stderr")
        result = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in result:
        raise {"TraceRefusedError": TraceRefusedError, "ConfigError": ConfigError}.get(result["kind"], DeviceError)(result["error"])
    return Trace.from_dict(result["trace"])


def write_files(profile: Profile, record: dict[str, Any], folder: Path) -> tuple[list[Path], str | None]:
    """Everything a profile leaves: record, trace file, page and picture. Returns the files, and why there is no picture.

    Raises ConfigError: the folder cannot be written.
    """
    *files, picture = (folder / name for name in FILES)
    texts = [json.dumps(record, indent=2), json.dumps(chrome_trace(profile.passes)), render_page(profile.passes, record)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in zip(files, texts, strict=True):
            file.write_text(text, encoding="utf-8")
        draw(profile.passes, record, picture)
    except NoPictureError as error:
        return files, str(error)
    except OSError as error:
        raise ConfigError(f"--out {error.filename or folder}: cannot be written: {error.strerror}") from error
    return [*files, picture], None


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
