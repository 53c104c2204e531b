"""Each product of a decode step alone: ours, cuBLAS's by its first and by its fastest algorithm, and torch's, on the same weights,
in turns, in graphs.

Weights of one shape are laid out more often than L2 holds, and a graph reads each copy once, so that every product comes from
memory. The graphs of all contestants are replayed in turn: a clock that drifts drifts for all of them. Each is replayed once more
in front of what is measured: the device is busy while the host queues the rest, or the time between an event and a graph, which is
the host's and differs between ours and torch's, would count as the product's. Ours does more than the others, who only multiply:
the scale of the norm, SwiGLU, the residual with what the next norm needs, or the best columns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.flow_ops import FlowLayout, flow_layouts_of
from graphs.held_ops import HeldLayout, head_layout_of
from graphs.tile_layouts import HEAD_THREADS, Layout, layouts_of, stripes_of
from kernels.flow_head import flow_argmax
from kernels.flow_project import flow_project
from kernels.flow_residual import flow_residual
from kernels.head import project_argmax
from kernels.held_head import held_argmax
from kernels.project import norm_gate_up, norm_project, norm_project_two, project_residual, project_residual_two
from kernels.tile import TILE_ROWS
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.errors import DeviceError
from runtime.models.choose_algorithms import bytes_of, fastest_algorithm

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice
    from runtime.cuda_stream import CudaStream
    from runtime.models.spec import ModelSpec

TURNS = 9
"""Replays of each graph that count."""

_BYTES = 2_400_000_000
"""Weights that a graph reads: many times L2, and half a millisecond of launches, so that the launch of the graph does not show in
the time of a product."""

_FEWEST_COPIES, _MOST_COPIES = 6, 300


ProductLayout = Layout | FlowLayout | HeldLayout


@dataclass(frozen=True)
class Product:
    """A product of a decode step. `name`: qkv, out, gate_up, down or head."""

    model: str
    name: str
    outputs: int
    depth: int


@dataclass(frozen=True)
class ProductTimes:
    """Microseconds of one product, by contestant: one figure a turn."""

    product: Product
    rows: int
    weight_bytes: int
    times: dict[str, list[float]]
    layout: ProductLayout | None = None

    def median(self, which: str) -> float:
        return statistics.median(self.times[which])

    def ratio(self, other: str) -> float | None:
        """How many times as long the other takes; None: it did not take part."""
        return self.median(other) / self.median("ours") if other in self.times else None

    def __str__(self) -> str:
        cells = []
        for which, times in self.times.items():
            median = self.median(which)
            spread = (max(times) - min(times)) / median
            cells.append(f"{which} {median:7.2f} us +-{spread:4.0%} {self.weight_bytes / median / 1e3:5.0f} GB/s")
        ratios = [f"{ratio:.2f}x {other}" for other in ("cublas", "fastest", "torch") if (ratio := self.ratio(other)) is not None]
        shape = f"{self.product.depth}x{self.product.outputs}"
        layout = f" ({self.layout})" if self.layout else ""
        return f"{self.product.name:<8}{shape:<12} rows {self.rows} " + " | ".join(cells) + " | " + ", ".join(ratios) + layout


def products_of(model: str, spec: ModelSpec) -> list[Product]:
    hidden, inter = spec.hidden_size, spec.intermediate_size
    return [
        Product(model, "qkv", spec.qkv_size, hidden),
        Product(model, "out", hidden, spec.q_size),
        Product(model, "gate_up", 2 * inter, hidden),
        Product(model, "down", hidden, inter),
        Product(model, "head", spec.vocab_size, hidden),
    ]


def layouts_of_product(product: Product) -> list[ProductLayout | None]:
    """What ours is chosen among; None: the usual head."""
    shape = product.name, product.outputs, product.depth
    if product.name != "head":
        return [*layouts_of(*shape), *flow_layouts_of(*shape)]
    head = head_layout_of(product.outputs, product.depth)
    return [None, head] if head else [None]


class ProductBench:
    """The arrays of one product, and its contestants.

    Args:
        device, stream: CUDA.
        product, rows: what is multiplied.
        dtype: storage type, of 16 bits.
        fill: fills a device array with normals of a given scale.
    """

    def __init__(
        self,
        device: CudaDevice,
        stream: CudaStream,
        product: Product,
        rows: int,
        dtype: WeightDtype,
        fill: Callable[[Any, float], None],
    ) -> None:
        self.device, self.stream, self.product, self.rows, self.dtype = device, stream, product, rows, dtype
        self._arrays: list[Any] = []
        outputs, depth, storage = product.outputs, product.depth, STORAGE[dtype]
        self.copies = min(_MOST_COPIES, max(_FEWEST_COPIES, -(-_BYTES // (outputs * depth * storage.itemsize))))
        self.all_weights = self._array("weights", (self.copies * outputs, depth), storage)
        self.weights = [self.all_weights[i * outputs : (i + 1) * outputs] for i in range(self.copies)]
        self.x, self.out = self._array("x", (rows, depth), storage), self._array("out", (rows, outputs), np.float32)
        fill(self.all_weights, depth**-0.5)
        fill(self.x, 1.0)
        self.live = self._array("live", (1,), np.int32)
        device.upload(self.live, np.array([rows], np.int32))
        self._build = {"qkv": self._qkv, "gate_up": self._gate_up, "head": self._head}.get(product.name, self._residual)()
        self.layouts = layouts_of_product(product)
        self.layout = self.layouts[0]

    def close(self) -> None:
        self.stream.synchronize()
        for array in self._arrays:
            self.device.free(array)

    def run(self) -> ProductTimes:
        """Every contestant's graph in turn, `TURNS` times after a first that does not count.

        Raises:
            DeviceError: ours yields something else than cuBLAS.
        """
        self._choose_layout()
        self._check()
        replays = {"ours": self._replay("ours", self.ours), "cublas": self._replay("cublas", self._cublas)}
        if (fastest := self._fastest_replay()) is not None:
            replays["fastest"] = fastest
        if (torch_replay := self._torch_replay()) is not None:
            replays["torch"] = torch_replay
        times: dict[str, list[float]] = {which: [] for which in replays}
        for turn in range(TURNS + 1):
            for which, replay in replays.items():
                microseconds = replay() / self.copies
                if turn > 0:
                    times[which].append(microseconds)
        return ProductTimes(self.product, self.rows, self.weights[0].nbytes, times, self.layout)

    def ours(self, weight: Any) -> None:
        self._build(weight, self.layout)

    def _choose_layout(self) -> None:
        """The fastest layout, as `graphs.ops: auto` takes it."""
        if len(self.layouts) == 1:
            return
        best: list[tuple[float, int]] = []
        for place, layout in enumerate(self.layouts):
            self.layout = layout
            self.ours(self.weights[0])
            replay = self._replay(f"ours.{place}", self.ours)
            best.append((statistics.median([replay() for _ in range(4)][1:]), place))
        self.layout = self.layouts[min(best)[1]]

    def _check(self) -> None:
        """Of every product but gate_up both leave the sums in `out`."""
        if self.product.name == "gate_up":
            return
        results = []
        for multiply in (self._cublas, self.ours):
            self.device.upload(self.out, np.zeros(self.out.shape, np.float32))
            multiply(self.weights[-1])
            results.append(self.device.download(self.out).astype(np.float64))
        error = float(np.linalg.norm(results[1] - results[0]) / np.linalg.norm(results[0]))
        if not error < 1e-3:
            raise DeviceError(f"{self.product}: ours is off by {error:.1e} of cuBLAS's result with {self.rows} rows")

    def _array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        array = self.device.array(f"product.{name}", shape, dtype)
        self._arrays.append(array)
        return array

    def _floats(self, name: str, shape: tuple[int, ...], value: float) -> Any:
        array = self._array(name, shape, np.float32)
        self.device.upload(array, np.full(shape, value, np.float32))
        return array

    def _qkv(self) -> Callable[[Any, Any], None]:
        squares = self._floats("squares", (self.rows, -(-self.product.depth // TILE_ROWS)), TILE_ROWS)  # of a row whose rms is 1

        def multiply(weight: Any, layout: Any) -> None:
            arguments = (self.out, self.x, squares, weight, 0.0, 0, layout.parts, self.live)
            if isinstance(layout, FlowLayout):
                self.stream.launch(flow_project, layout.grid, 32 * layout.warps, *arguments)
                return
            kernel = norm_project if layout.slabs == 1 else norm_project_two
            self.stream.launch(layout.kernel(kernel), layout.grid, 32 * (layout.warps + 1), *arguments)

        return multiply

    def _gate_up(self) -> Callable[[Any, Any], None]:
        squares = self._floats("squares", (self.rows, -(-self.product.depth // TILE_ROWS)), TILE_ROWS)
        activated = self._array("activated", (self.rows, self.product.outputs // 2), STORAGE[self.dtype])

        def multiply(weight: Any, layout: Any) -> None:
            arguments = (activated, self.x, squares, weight, 0.0, 0, layout.parts, self.live)
            if isinstance(layout, FlowLayout):
                self.stream.launch(layout.gate_up_kernel, layout.grid, 32 * layout.warps, *arguments)
                return
            self.stream.launch(layout.kernel(norm_gate_up), layout.grid, 32 * (layout.warps + 1), *arguments)

        return multiply

    def _residual(self) -> Callable[[Any, Any], None]:
        squares = self._floats("squares", (self.rows, -(-self.product.outputs // TILE_ROWS)), 0.0)
        normed = self._array("normed", (self.rows, self.product.outputs), STORAGE[self.dtype])
        gain = self._floats("gain", (self.product.outputs,), 1.0)

        def multiply(weight: Any, layout: Any) -> None:
            arguments = (self.out, normed, squares, self.x, weight, gain, layout.parts, self.live)
            if isinstance(layout, FlowLayout):
                self.stream.launch(flow_residual, layout.grid, 32 * layout.warps, *arguments)
                return
            kernel = project_residual if layout.slabs == 1 else project_residual_two
            self.stream.launch(layout.kernel(kernel), layout.grid, 32 * layout.warps, *arguments)

        return multiply

    def _head(self) -> Callable[[Any, Any], None]:
        outputs, stripes = self.product.outputs, stripes_of(self.product.outputs)
        value = self._array("best_value", (stripes, self.rows), np.float32)
        column = self._array("best_column", (stripes, self.rows), np.int32)

        def multiply(weight: Any, layout: Any) -> None:
            if layout is None:
                arguments = (self.out, value, column, self.x, weight, outputs, self.live)
                self.stream.launch(project_argmax, stripes, HEAD_THREADS, *arguments)
                return
            best, threads = (value[: layout.grid], column[: layout.grid]), 32 * layout.warps
            if isinstance(layout, HeldLayout):
                self.stream.launch(held_argmax, best[0].shape[0], threads, self.out, *best, self.x, weight, outputs, self.live)
                return
            flowing = (self.out, *best, self.x, weight, outputs, layout.parts, self.live)
            self.stream.launch(flow_argmax, best[0].shape[0], threads, *flowing)

        return multiply

    def _cublas(self, weight: Any) -> None:
        self.stream.matmul(self.out, self.x, weight, self.live)

    def _replay(self, name: str, multiply: Callable[[Any], None]) -> Callable[[], float]:
        """Microseconds of a replay of the graph of all copies, the second of two."""
        with self.stream.capture(f"product.{name}") as captured:
            for weight in self.weights:
                multiply(weight)
        begin, end = (self.device.event(f"product.{name}.{which}", timing=True) for which in ("begin", "end"))

        def replay() -> float:
            captured.graph.launch(self.stream)
            self.stream.record(begin)
            captured.graph.launch(self.stream)
            self.stream.record(end)
            end.synchronize()
            return end.milliseconds_since(begin) * 1e3

        return replay

    def _fastest_replay(self) -> Callable[[], float] | None:
        """cuBLAS by its fastest algorithm; None: that is its first."""
        arrays = self.out, self.x, self.weights
        algorithm = bytes_of(fastest_algorithm(self.device, self.stream, self.product.name, *arrays, self.live))
        if algorithm is None:
            return None
        self.stream.use_algorithm(self.out, self.x, self.weights[0], algorithm)
        replay = self._replay("fastest", self._cublas)
        self.stream.use_algorithm(self.out, self.x, self.weights[0], None)
        return replay

    def _torch_replay(self) -> Callable[[], float] | None:
        """The same of torch's F.linear on the same memory; None without torch."""
        try:
            import cupy
            import torch
        except ImportError:
            return None
        kind, outputs = getattr(torch, self.dtype), self.product.outputs
        weights, x = (
            torch.as_tensor(cupy.asarray(array).view(cupy.int16), device="cuda").view(kind) for array in (self.all_weights, self.x)
        )
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                torch.nn.functional.linear(x, weights[:outputs])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(self.copies):
                torch.nn.functional.linear(x, weights[i * outputs : (i + 1) * outputs])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def replay() -> float:
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e3

        return replay
