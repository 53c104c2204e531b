"""Times what a sampled step adds behind the logits, by the product's recorders: `python -m runtime.bench_sampling`.

Processing, the race or the verification, and the walk, as one graph; logits are normal random numbers, drafts are drawn by chance.
On a GPU alone; elsewhere it runs once and says no time. Where PyTorch is there, the same draw by its own kernels stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphs.key import GraphKey
from graphs.sampled_step import Sampler, Verification
from graphs.sampling_state import DraftDistribution
from graphs.step import record_walk
from runtime.cli_usage import tool_exit_code
from runtime.device import DeviceKind, open_device
from runtime.mirror_policy import resolve_policy
from runtime.mirror_table import MirrorTable
from runtime.models.sampling_scratch import build_sampler
from runtime.step_buffers import StepBuffers, StepSizes

COPIES, REPEATS = 20, 9
CANDIDATES = 16

OFF = {
    "temperature": 0.8, "top_k": 0, "top_p": 1, "min_p": 0, "repetition": 1, "presence": 0, "frequency": 0,
    "num_logprobs": -1, "num_bias": 0, "num_bad": 0, "restricted": 0,
}  # fmt: skip
PARAMETERS: dict[str, dict[str, float]] = {
    "temperature": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "greedy rows": {"temperature": 0},
}


@dataclass(frozen=True)
class Row:
    """One measured graph: microseconds of a launch, None where the device has no clock."""

    requests: int
    what: str
    microseconds: float | None

    def __str__(self) -> str:
        time = "not measured" if self.microseconds is None else f"{self.microseconds:.1f} us"
        return f"{self.requests} requests, {self.what}: {time}"


class Bench:
    """Arrays of a verify step of `requests` rows with k drafts each, over a vocabulary."""

    def __init__(self, kind: DeviceKind, requests: int, k: int, vocab_size: int) -> None:
        self.device, self.timed = open_device(kind), kind == "cuda"
        self.stream = self.device.stream("compute")
        self.requests, self.k = requests, k
        sizes = StepSizes(requests, k, 256, requests * (1 + k), 16, 1)
        policy = resolve_policy("auto", self.device)
        buffers = StepBuffers(MirrorTable(self.device, policy, self.stream, steps_in_flight=1), sizes)
        buffers.initialise(self.stream)
        self.stream.synchronize()
        self.state, self.step, self.rows = buffers.state, buffers.step, sizes.num_logits
        self.key = GraphKey.uniform(requests, 1 + k)
        rng = np.random.default_rng(0)
        self.logits = self._array("bench_logits", (2.5 * rng.standard_normal((self.rows, vocab_size))).astype(np.float32))
        ids = np.stack([rng.choice(vocab_size, (k, CANDIDATES), replace=False) for _ in range(requests)]).astype(np.int32)
        probs = rng.dirichlet(np.ones(CANDIDATES), (requests, k)).astype(np.float32)
        self.drafts = DraftDistribution(self._array("bench_q_ids", ids), self._array("bench_q_probs", probs))
        self._fill_step(ids[:, :, 0])
        self.sizes, self.vocab_size = sizes, vocab_size

    def _array(self, name: str, values: npt.NDArray[Any]) -> Any:
        array = self.device.array(name, values.shape, values.dtype)
        self.device.upload(array, values)
        return array

    def _fill_step(self, drafts: npt.NDArray[np.int32]) -> None:
        width, rows = 1 + self.k, np.arange(self.rows)
        fed = np.zeros((self.requests, width), np.int32)
        fed[:, 1:] = drafts
        starts = np.arange(self.requests + 1) * width
        inputs, step = self.step.inputs, self.step
        for array, content in (
            (inputs.live, [self.rows, self.requests, self.rows]),
            (inputs.idx_mapping, np.arange(self.requests)),
            (inputs.query_start_loc, starts),
            (inputs.cu_num_logits, starts),
            (step.token_slot, rows // width),
            (step.positions, 100 + rows % width),
            (step.logits_indices, rows),
            (step.input_token_ids, fed.reshape(-1)),
        ):
            self.device.upload(array, np.asarray(content, np.int32))

    def set_parameters(self, **changes: float) -> None:
        """The same sampling parameters for every request."""
        for name, value in (OFF | changes).items():
            array = getattr(self.state.sampling, name)
            self.device.upload(array, np.full(array.shape, value, array.dtype))
        self.device.upload(self.state.sampling.seed, np.arange(2 * self.requests, dtype=np.int32).reshape(-1, 2))

    def time(self, record: Callable[[], None]) -> float | None:
        """Median microseconds of what `record` launches, in a graph of many copies."""
        record()  # compiles
        self.stream.synchronize()
        if not self.timed:
            return None
        with self.stream.capture("bench") as captured:
            for _ in range(COPIES):
                record()
        begin, end = (self.device.event(name, timing=True) for name in ("begin", "end"))  # type: ignore[call-arg]
        times = []
        for _ in range(REPEATS):
            self.stream.record(begin)
            captured.graph.launch(self.stream)
            self.stream.record(end)
            end.synchronize()
            times.append(end.milliseconds_since(begin) * 1e3 / COPIES)  # type: ignore[attr-defined]
        return statistics.median(times)


def measure(kind: DeviceKind, requests: int, k: int, vocab_size: int) -> Iterator[Row]:
    """Certain drafts with every kind of parameters, then drafts with a distribution."""
    ways: tuple[Verification | None, ...] = (None, "standard", "block")
    for verification in ways:
        bench = Bench(kind, requests, k, vocab_size)
        try:
            yield from _measure(bench, verification)
        finally:
            bench.device.close()


def _measure(bench: Bench, verification: Verification | None) -> Iterator[Row]:
    drafts = None if verification is None else bench.drafts
    sampler = build_sampler(bench.device, bench.logits, bench.sizes, bench.vocab_size, drafts, verification or "standard")
    bench.device.upload(sampler.lists.counts, np.zeros(sampler.lists.counts.shape, np.int32))
    record = _certain(bench, sampler) if verification is None else _distributed(bench, sampler)
    for name, changes in PARAMETERS.items():
        if verification is None or not changes:
            bench.set_parameters(**changes)
            what = "certain drafts" if verification is None else f"{CANDIDATES} candidates, {verification}"
            yield Row(bench.requests, f"{what}, {name}", bench.time(record))


def _certain(bench: Bench, sampler: Sampler) -> Callable[[], None]:
    def record() -> None:
        tokens = sampler.record_tokens(bench.stream, bench.key, bench.state, bench.step, bench.rows)
        record_walk(bench.stream, bench.key, tokens, bench.step, None)
        sampler.record_end(bench.stream, bench.key, bench.step)

    return record


def _distributed(bench: Bench, sampler: Sampler) -> Callable[[], None]:
    def record() -> None:
        sampler.record_verification(bench.stream, bench.key, bench.state, bench.step, bench.rows)
        sampler.record_end(bench.stream, bench.key, bench.step)

    return record


def torch_race(rows: int, vocab_size: int) -> float:
    """Microseconds of division, softmax and exponential race by PyTorch on the GPU. ImportError without it."""
    import torch

    logits = torch.randn(rows, vocab_size, device="cuda")
    noise = torch.empty_like(logits)

    def draw() -> None:
        noise.exponential_()
        (logits.div(0.8).softmax(-1) / noise).argmax(-1)

    for _ in range(3):
        draw()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(COPIES):
        draw()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / COPIES


def main(argv: list[str] | None = None) -> int:
    """Entry of `python -m runtime.bench_sampling`."""
    parser = argparse.ArgumentParser(prog="python -m runtime.bench_sampling", description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--drafts", type=int, default=7, help="k (7)")
    parser.add_argument("--vocab-size", type=int, default=151_936, help="V (151936)")
    parser.add_argument("--device", choices=("cuda", "cpu", "simulator"), default="cuda")
    options = parser.parse_args(argv)
    for requests in options.requests:
        for row in measure(options.device, requests, options.drafts, options.vocab_size):
            print(row, flush=True)
        if options.device == "cuda":
            try:
                time = torch_race(requests * (1 + options.drafts), options.vocab_size)
            except ImportError:
                continue
            print(f"{requests} requests, PyTorch's softmax and exponential race of as many rows: {time:.1f} us", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(tool_exit_code(main))
