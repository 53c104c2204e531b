"""Times each operation of a decoder step on a GPU, ours and the libraries': `python -m runtime.bench_kernels`.

Weights are random and of a real model's shape; every layer has its own, so that a pass over all layers reads more than L2 holds.
Each operation is captured for all layers into a graph of its own and replayed; figures are medians. Then the whole step, and how
far the fused set is from the plain one in its logits: a fast kernel that is wrong shows here first. torch stands in the table where
it is installed; its F.linear is one product, without the norm, activation or addition that ours include.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.bench_products import TURNS, ProductBench, ProductTimes, products_of
from runtime.checkpoint.random import SHAPES
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.cli_usage import tool_exit_code
from runtime.device import open_device
from runtime.forward_rig import REPEATS, Rig, Row, fill_normal
from runtime.models.spec import ModelSpec
from runtime.output_path import refuse_unwritable, write_text

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice
    from runtime.cuda_stream import CudaStream

MODELS = {name: SHAPES[name] for name in ("smollm2-135m", "qwen3-8b")}


def torch_linear(dtype: WeightDtype) -> Callable[[int, int, int], float | None]:
    """Median microseconds of torch's F.linear(rows, outputs, depth) in a CUDA graph over weights beyond L2; None without torch."""
    try:
        import torch
    except ImportError:
        return lambda rows, outputs, depth: None
    known: dict[tuple[int, int, int], float] = {}
    kind = getattr(torch, dtype)

    def measure(rows: int, outputs: int, depth: int) -> float:
        copies = min(256, max(2, -(-400_000_000 // (outputs * depth * STORAGE[dtype].itemsize))))
        weights = [torch.randn(outputs, depth, device="cuda", dtype=kind) for _ in range(copies)]
        x = torch.randn(rows, depth, device="cuda", dtype=kind)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                torch.nn.functional.linear(x, weights[0])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for weight in weights:
                torch.nn.functional.linear(x, weight)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(REPEATS + 2):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / copies)
        return statistics.median(times[2:])

    def remember(rows: int, outputs: int, depth: int) -> float:
        key = (rows, outputs, depth)
        if key not in known:
            known[key] = measure(*key)
            torch.cuda.empty_cache()
        return known[key]

    return remember


def copy_bandwidth(device: CudaDevice, stream: CudaStream) -> float:
    """GB/s of a large copy on the device, read and written bytes: the ceiling of this card, in this run."""
    size = 1 << 30
    first, second = (device.array(name, (size,), np.uint8) for name in ("copy_from", "copy_to"))
    begin, end = (device.event(name, timing=True) for name in ("begin", "end"))
    times = []
    for _ in range(REPEATS):
        stream.record(begin)
        stream.copy(second, first)
        stream.record(end)
        end.synchronize()
        times.append(end.milliseconds_since(begin))
    device.free(first)
    device.free(second)
    return 2 * size / statistics.median(times) / 1e6


def _products(options: argparse.Namespace) -> int:
    found: list[ProductTimes] = []
    with open_device("cuda") as device:  # type: ignore[attr-defined]
        stream = device.stream("bench")
        ceiling = copy_bandwidth(device, stream)
        for name in options.model:
            print(f"{name}, {options.dtype}, us of one product, medians of {TURNS}")
            for product in products_of(name, MODELS[name]):
                for rows in (1, 8):
                    bench = ProductBench(device, stream, product, rows, options.dtype, fill_normal)
                    found.append(bench.run())
                    bench.close()
                    print(found[-1], flush=True)
    print(f"copy on this device {ceiling:.0f} GB/s")
    _write_json(options.json, {"copy_gb_s": ceiling, "products": [asdict(times) for times in found], "options": vars(options)})
    return 0


def _write_json(path: str | None, figures: dict[str, Any]) -> None:
    if path:
        write_text(f"--json {path}", path, json.dumps(figures, indent=1))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.bench_kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtype", choices=STORAGE, default="bfloat16")
    parser.add_argument("--steps", nargs="+", default=["1x1", "8x1", "1x8", "8x8"], help="requests x query length")
    parser.add_argument("--context", type=int, default=256, help="tokens in the cache before the step")
    parser.add_argument("--layers", type=int, default=None, help="fewer layers, for a quick look")
    parser.add_argument(
        "--products", action="store_true", help="the matrix products alone, at 1 and 8 rows, against cuBLAS and torch"
    )
    parser.add_argument("--whole", action="store_true", help="whole forward passes alone")
    parser.add_argument("--json", default=None, help="file for all figures")
    options = parser.parse_args(arguments)
    refuse_unwritable(f"--json {options.json}", options.json)
    if options.products:
        return _products(options)
    rows: list[Row] = []
    errors: list[dict[str, Any]] = []
    torch_times = torch_linear(options.dtype)
    ceiling = 0.0
    for name in options.model:
        spec = MODELS[name]
        if options.layers is not None:
            spec = ModelSpec(**{**vars(spec), "num_layers": options.layers})
        for step in options.steps:
            requests, query_len = (int(part) for part in step.split("x"))
            with open_device("cuda") as device:  # type: ignore[attr-defined]
                stream = device.stream("bench")
                ceiling = ceiling or copy_bandwidth(device, stream)
                rig = Rig(device, stream, spec, options.dtype, requests, query_len, options.context)
                print(f"{name:<13} R={requests} q={query_len} auto: {rig.add_auto()}", flush=True)
                error, agreement = rig.difference()
                if options.whole:
                    rig.sets.pop("plain", None)
                found = [rig.whole(name)] if options.whole else rig.rows(name, torch_times)
            for row in found:
                print(row, flush=True)
            print(f"{name:<13} R={requests} q={query_len} logits differ by {error:.1e}, arg max agrees {agreement:.0%}", flush=True)
            errors.append({"model": name, "step": step, "logits_error": error, "argmax_agreement": agreement})
            rows += found
    print(f"copy on this device {ceiling:.0f} GB/s; {options.dtype}, context {options.context}")
    figures = {"copy_gb_s": ceiling, "rows": [asdict(row) for row in rows], "errors": errors, "options": vars(options)}
    _write_json(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(tool_exit_code(main))
