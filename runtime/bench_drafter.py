"""Times each launch of a proposal on a GPU: `python -m runtime.bench_drafter CONFIG [--requests N] [--step]`.

Requests are stopped in the middle of their answers, all of them still running: kernels leave at once for rows without a request,
and what the others take depends on their lengths. Then each launch of the propose graph is captured many times over into a graph of
its own; figures are medians of replays, the last line is the propose graph as it is. With --step the verify step in front of it is
measured too: both in one graph, and as the two graphs of the engine.
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
from kernels.lang import Kernel
from runtime.cli_usage import tool_exit_code
from runtime.config_file import merge, parse_override
from runtime.cuda_probe import cuda_unavailable
from runtime.engine import Engine
from runtime.errors import DeviceError
from runtime.output_path import refuse_unwritable, write_text
from runtime.sampling import SamplingParams

COPIES = 20
"""How often a launch stands in its graph: what a replay costs by itself is shared by so many."""

REPEATS = 9

VERIFIED_STEPS = 8
"""Verify steps of all requests before they are held."""

MOST_TOKENS = 128
"""Of an answer: more than the steps before and those of its neighbours' prompts can yield."""


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

    def fork(self) -> Collected:
        return self

    def join(self, beside: Any) -> None:
        """Nothing to time."""


class HeldStep:
    """Requests in the middle of their answers, and the verify step and the proposal that would come next.

    Args:
        engine: idle; `close` leaves it so again.
        requests: all in one step, each with its drafts to verify.
        prompt_tokens: of the first; each other has one more than the one before.

    Raises ValueError where the engine did not verify drafts of all of them in one step.
    """

    def __init__(self, engine: Engine, requests: int, prompt_tokens: int) -> None:
        runner: Any = engine.runner
        self._engine = engine
        queries = 1 + runner.sizes.num_speculative_tokens
        self.library, self.stream, self._device = runner.library, runner.compute, runner.device
        rows = runner.buckets.up(requests) or requests
        self.verify, self.propose = GraphKey.uniform(rows, queries), GraphKey.propose(rows, rows * queries)
        params = SamplingParams(max_tokens=MOST_TOKENS, ignore_eos=True)
        prompts = [[100 + i % 400 for i in range(prompt_tokens + row)] for row in range(requests)]
        self._request_ids = [engine.submit(prompt, params).request.request_id for prompt in prompts]
        last = self.library.launches[self.verify] + VERIFIED_STEPS
        while self.library.launches[self.verify] < last:
            if not engine.has_unfinished:
                raise ValueError(f"{requests} requests ended without {VERIFIED_STEPS} steps of {self.verify}")
            engine.step()
        engine.drain()
        moved = [runner.buffers.table[name].device_array for name in runner.buffers.ADMITTED_DEVICE]
        self._kept = [(array, runner.device.array(f"held.{array.name}", array.shape, array.dtype)) for array in moved]
        for array, kept in self._kept:
            self.stream.copy(kept, array)

    def restore(self) -> None:
        """Queue what a verify step moves back to where the requests were held."""
        for array, kept in self._kept:
            self.stream.copy(array, kept)

    def close(self) -> None:
        """Cancel the requests, and free what was kept of them."""
        for request_id in self._request_ids:
            self._engine.cancel(request_id)
        for _, kept in self._kept:
            self._device.free(kept)

    def record_verify(self, launcher: Any) -> None:
        self.library.record(launcher, self.verify)

    def record_propose(self, launcher: Any) -> None:
        self.library.record(launcher, self.propose)

    def record_both(self, launcher: Any) -> None:
        self.record_verify(launcher)
        self.record_propose(launcher)

    def launch_engine_graphs(self) -> None:
        """The two graphs that the engine replays."""
        for key in (self.verify, self.propose):
            self.library.graphs[key].executable.launch(self.stream)

    def one_graph(self, record: Callable[[Any], None], copies: int = 1) -> Callable[[], None]:
        """A replay of so many recordings in a graph."""
        with self.stream.capture("bench") as captured:
            for _ in range(copies):
                record(self.stream)
        graph = captured.graph
        return lambda: graph.launch(self.stream)

    def microseconds(self, replay: Callable[[], None]) -> float:
        """Median time of a replay. It is queued behind others, so that no launch of the host's is in it."""
        begin, end = (self._device.event(f"bench.{which}", timing=True) for which in ("begin", "end"))
        times = []
        for _ in range(REPEATS + 2):
            self.restore()
            replay()
            replay()
            self.restore()
            self.stream.record(begin)
            replay()
            self.stream.record(end)
            end.synchronize()
            times.append(end.milliseconds_since(begin) * 1e3)
        return statistics.median(times[2:])


@dataclass(frozen=True)
class Row:
    """Launches that differ by their layer alone. Microseconds of one of them by itself, the median over them."""

    launch: str
    count: int
    microseconds: float


def measure(engine: Engine, requests: int, prompt_tokens: int, *, step: bool = False) -> list[Row]:
    """The launches of the propose graph behind a verify step of `requests` rows; all of them one by one, and as one graph, last.

    step: those of the verify step in front of them, and the time of both.
    """
    held = HeldStep(engine, requests, prompt_tokens)
    rows = one_graph(held, held.propose, held.record_propose)
    if step:
        rows += one_graph(held, held.verify, held.record_verify)
        rows.append(Row("both in one graph", 1, held.microseconds(held.one_graph(held.record_both))))
        rows.append(Row("both as the engine's two graphs", 1, held.microseconds(held.launch_engine_graphs)))
    held.close()
    return rows


def one_graph(held: HeldStep, key: GraphKey, record: Callable[[Any], None]) -> list[Row]:
    """Each launch by itself, their sum, and the graph of them all."""
    collected = Collected()
    record(collected)
    times: dict[str, list[float]] = {}
    for name, launch in collected.launches:
        one = held.microseconds(held.one_graph(launch, COPIES)) / COPIES
        times.setdefault(re.sub(r"layers\.\d+\.", "layers.*.", name), []).append(one)
    rows = [Row(name, len(values), statistics.median(values)) for name, values in times.items()]
    count = len(collected.launches)
    rows.append(Row("each launch by itself", count, sum(map(sum, times.values()))))
    return [*rows, Row(f"{key} as one graph", count, held.microseconds(held.one_graph(record)))]


def main(argv: list[str] | None = None) -> int:
    """Entry of `python -m runtime.bench_drafter`."""
    parser = argparse.ArgumentParser(prog="python -m runtime.bench_drafter", description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=168, help="of the first request")
    parser.add_argument("--step", action="store_true", help="the verify step in front of the proposal as well")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="a key of the configuration")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    refuse_unwritable(f"--json {options.json}", options.json)
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
        write_text(f"--json {options.json}", options.json, json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(tool_exit_code(main))
