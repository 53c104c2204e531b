"""Times each launch of a proposal on a GPU: `python -m runtime.bench_drafter CONFIG [--requests N] [--step]`.

A few prompts are answered first, so that caches and lengths hold what they hold in a run. Then each launch of the propose graph is
captured many times over into a graph of its own; figures are medians of replays, the last line is the propose graph as it is. With
--step the verify step in front of it is measured too, and both in turn.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from graphs.key import GraphKey
from graphs.launch import Array, Grid
from graphs.step import record_step
from kernels.lang import Kernel
from runtime.cli_usage import tool_exit_code
from runtime.config_file import merge, parse_override
from runtime.cuda_probe import cuda_unavailable
from runtime.engine import Engine
from runtime.errors import DeviceError
from runtime.sampling import SamplingParams

COPIES = 20
"""How often a launch stands in its graph: what a replay costs by itself is shared by so many."""

REPEATS = 9


class Collected:
    """A Launcher that keeps each launch by itself instead of issuing it."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, Callable[[Any], None]]] = []

    def launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> None:
        self.launches.append((f"{kernel.name} {grid} x {block}", lambda stream: stream.launch(kernel, grid, block, *args)))

    def matmul(self, out: Array, x: Array, weight: Array, rows: Array) -> None:
        name = f"matmul {weight.name} {list(x.shape)} x {list(weight.shape)}"
        self.launches.append((name, lambda stream: stream.matmul(out, x, weight, rows)))

    def copy(self, dst: Array, src: Array) -> None:
        self.launches.append((f"copy {dst.name}", lambda stream: stream.copy(dst, src)))

    def fill(self, dst: Array, value: int | float) -> None:
        self.launches.append((f"fill {dst.name}", lambda stream: stream.fill(dst, value)))

    def record(self, event: Any) -> None:
        """Nothing to time."""

    def wait(self, event: Any) -> None:
        """Nothing to time."""


def replay_microseconds(stream: Any, record: Callable[[Any], None], copies: int) -> float:
    """Median time of one recording among `copies` in a graph."""
    import cupy

    with stream.capture("bench") as captured:
        for _ in range(copies):
            record(stream)
    queue = cupy.cuda.ExternalStream(stream.pointer)
    times = []
    for _ in range(REPEATS + 2):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(queue)
        captured.graph.launch(stream)
        end.record(queue)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3 / copies)
    return statistics.median(times[2:])


@dataclass(frozen=True)
class Row:
    """Launches that differ by their layer alone. Microseconds of one of them by itself, the median over them."""

    launch: str
    count: int
    microseconds: float


def measure(engine: Engine, requests: int, prompt_tokens: int, *, step: bool = False) -> list[Row]:
    """The launches of the propose graph behind a verify step of `requests` rows; all of them one by one, and as one graph, last.

    step: those of the verify step in front of them, and the time of both graphs in turn.
    """
    params = SamplingParams(max_tokens=32, ignore_eos=True)
    engine.generate([[100 + i % 400 for i in range(prompt_tokens + row)] for row in range(requests)], params)
    runner: Any = engine.runner
    stream, queries = runner.compute, 1 + runner.sizes.num_speculative_tokens
    propose, verify = GraphKey.propose(requests, requests * queries), GraphKey.uniform(requests, queries)

    def record_propose(launcher: Any) -> None:
        runner._proposer.record(launcher, propose, runner._state, runner._step)

    def record_verify(launcher: Any) -> None:
        record_step(
            launcher,
            verify,
            runner._target,
            runner._state,
            runner._step,
            block_size=runner.sizes.block_size,
            max_model_len=runner.sizes.max_model_len,
            num_logits=requests * queries,
        )

    def both(launcher: Any) -> None:
        record_verify(launcher)
        record_propose(launcher)

    rows = one_graph(stream, propose, record_propose)
    if step:
        rows += one_graph(stream, verify, record_verify)
        rows.append(Row("both in one graph", 1, replay_microseconds(stream, both, 1)))
    return rows


def one_graph(stream: Any, key: GraphKey, record: Callable[[Any], None]) -> list[Row]:
    """Each launch by itself, their sum, and the graph of them all."""
    collected = Collected()
    record(collected)
    times: dict[str, list[float]] = {}
    for name, launch in collected.launches:
        times.setdefault(re.sub(r"layers\.\d+\.", "layers.*.", name), []).append(replay_microseconds(stream, launch, COPIES))
    rows = [Row(name, len(values), statistics.median(values)) for name, values in times.items()]
    count = len(collected.launches)
    rows.append(Row("each launch by itself", count, sum(map(sum, times.values()))))
    return [*rows, Row(f"{key} as one graph", count, replay_microseconds(stream, record, 1))]


def main(argv: list[str] | None = None) -> int:
    """Entry of `python -m runtime.bench_drafter`."""
    parser = argparse.ArgumentParser(prog="python -m runtime.bench_drafter", description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=224)
    parser.add_argument("--step", action="store_true", help="the verify step in front of the proposal as well")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="a key of the configuration")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    if (reason := cuda_unavailable()) is not None:
        raise DeviceError(f"a proposal is timed on a GPU alone: {reason}")
    settings: dict[str, Any] = {}
    for pair in options.set:
        settings = merge(settings, parse_override(pair))
    with Engine.from_config(options.config, **settings) as engine:
        rows = measure(engine, options.requests, options.prompt_tokens, step=options.step)
    for row in rows:
        print(f"{row.count:3} x {row.microseconds:8.2f} us  {row.launch}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(tool_exit_code(main))
