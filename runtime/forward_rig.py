"""Rig: a model of random weights and one step of it, recorded by every set of operations: what `runtime.bench_kernels` times."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.arrays import LayerArrays, ModelArrays, SlotState, StepArrays, StepInputs
from graphs.fused_ops import FusedOps
from graphs.ops import ForwardPass, Ops
from graphs.plain_ops import PagedAttention, PlainOps
from graphs.transformer import record_forward
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.models.choose_ops import OpsChooser
from runtime.models.measure_in_turn import measure_in_turn
from runtime.models.rope import rope_table
from runtime.models.scratch import allocate_scratch, build_ops, with_fast_heads
from runtime.models.spec import ModelSpec
from runtime.models.upload import decoder_shape
from runtime.step_buffers import StepSizes

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice
    from runtime.cuda_stream import CudaStream

REPEATS = 9
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Row:
    """One line of the table. Microseconds are of one layer, or of the whole step where `operation` says so."""

    model: str
    requests: int
    query_len: int
    operation: str
    weight_bytes: int
    microseconds: dict[str, float]

    def __str__(self) -> str:
        cells = []
        for name, time in self.microseconds.items():
            rate = f" {self.weight_bytes / time / 1e3:5.0f} GB/s" if self.weight_bytes else ""
            cells.append(f"{name} {time:8.2f} us{rate}")
        return f"{self.model:<13} R={self.requests} q={self.query_len} {self.operation:<19} " + " | ".join(cells)


class Rig:
    """A model of random weights on the GPU, in a decode or verify step in the middle of a sequence.

    Args:
        device, stream: CUDA.
        spec: sizes.
        dtype: storage type.
        requests, query_len: rows of the step: requests * query_len tokens, each with a logits row.
        context: tokens in the cache before the step.
    """

    def __init__(
        self,
        device: CudaDevice,
        stream: CudaStream,
        spec: ModelSpec,
        dtype: WeightDtype,
        requests: int,
        query_len: int,
        context: int,
    ) -> None:
        self.device, self.stream, self.spec, self.dtype = device, stream, spec, dtype
        self.requests, self.query_len = requests, query_len
        self.tokens = requests * query_len
        length = context + query_len
        self.sizes = StepSizes(requests, query_len - 1, -(-length // BLOCK_SIZE) * BLOCK_SIZE, self.tokens, BLOCK_SIZE, 1)
        blocks = self.sizes.blocks_per_slot * requests
        self.model = random_model(device, spec, dtype, blocks, self.sizes.max_model_len)
        self.scratch = allocate_scratch(device, spec, self.sizes, dtype)
        self.state, self.step = step_arrays(device, spec, self.sizes, context, query_len)
        self.step = self.step.of_requests(requests, query_len)
        self.run = ForwardPass(stream, self.model, self.scratch, self.state, self.step, self.tokens)
        table, _ = build_ops(device, spec, self.sizes, dtype, on_gpu=True, choice="fused")
        fused, library = table.for_rows(1), table.many
        assert isinstance(fused, FusedOps)
        assert isinstance(library, PlainOps)
        self.fused, self.library = fused, library
        self.mixed = replace(fused, stripes=library.stripes)
        self.sets: dict[str, Ops] = {"fused": self.fused, "mixed": self.mixed, "library": self.library}
        if self.tokens <= 8:
            self.sets["plain"] = PlainOps(PagedAttention())

    def rows(self, name: str, torch_times: Callable[[int, int, int], float | None]) -> list[Row]:
        """The table of this rig: each product, attention, the head, and everything together."""
        fused, library, layers = self.fused, self.library, self.model.layers
        norm = self.model.final_norm
        ours: dict[str, Callable[[LayerArrays], None]] = {
            "qkv": partial(fused.attention_inputs, self.run),
            "out": partial(_with_norm, fused.attention_output, self.run, norm),
            "gate_up": partial(fused.gate_up, self.run),
            "down": partial(_with_norm, fused.down, self.run, norm),
        }
        found = []
        for product, record in ours.items():
            times = {"fused": self._per_layer(record), "cublas": self._per_layer(self._product(product))}
            found.append(self._row(name, product, getattr(layers[0], product), times, torch_times))
        times = {which: self._per_layer(partial(ops.attention, self.run)) for which, ops in self.sets.items()}
        found.append(self._row(name, "attention", None, times, torch_times))
        times = {"library": self._per_layer(lambda layer: library.add_and_norm(self.run, norm))}
        found.append(self._row(name, "add_rms_norm", None, times, torch_times))
        times = {
            which: self._per_layer(partial(_with_norm, ops.feed_forward, self.run, norm))
            for which, ops in self.sets.items()
            if which in ("fused", "library")
        }
        found.append(self._row(name, "feed_forward", None, times, torch_times))
        times = {which: self.time(partial(self._logits, ops), 2) for which, ops in self.sets.items()}
        found.append(self._row(name, "logits", self.model.head, times, torch_times))
        return [*found, self.whole(name)]

    def whole(self, name: str) -> Row:
        """The whole forward pass by every set, in turn."""
        records: dict[str, Callable[[], None]] = {which: partial(self._whole, ops) for which, ops in self.sets.items()}
        times = measure_in_turn(self.device, self.stream, records, turns=REPEATS, replays=2)
        return Row(name, self.requests, self.query_len, "whole forward", 0, times)

    def add_auto(self) -> str:
        """Add the set that `graphs.ops: auto` takes for these rows, and say what was chosen for all.

        Choosing runs layers on activations that nobody wrote: the keys and values that this leaves in the cache, NaN perhaps, are
        written over.
        """
        fused = with_fast_heads(self.fused, self.spec, self.device)
        table, said = OpsChooser(self.device, self.model, self.scratch)(fused, self.library, self.sizes)
        self.stream.synchronize()
        for layer in self.model.layers:
            fill_normal(layer.k_cache, 1.0)
            fill_normal(layer.v_cache, 1.0)
        self.sets["auto"] = table.for_rows(self.tokens)
        return said

    def _row(
        self,
        name: str,
        operation: str,
        weight: Any,
        times: dict[str, float],
        torch_times: Callable[[int, int, int], float | None],
    ) -> Row:
        if weight is None:
            return Row(name, self.requests, self.query_len, operation, 0, times)
        torch = torch_times(self.tokens, *weight.shape)
        times = times if torch is None else times | {"torch": torch}
        return Row(name, self.requests, self.query_len, f"{operation} {weight.shape[1]}x{weight.shape[0]}", weight.nbytes, times)

    def difference(self) -> tuple[float, float]:
        """(||x - library|| / ||library|| of the logits, share of rows with the same arg max), from the same cache; the worst x.

        Raises ValueError where a set's logits are not finite: nothing could be said of them.
        """
        logits, best = [], []
        for ops in (self.library, *(ops for which, ops in self.sets.items() if which not in ("library", "plain"))):
            self._whole(ops)
            self.stream.synchronize()
            logits.append(self.device.download(self.scratch.logits).astype(np.float64))
            best.append(self.device.download(self.scratch.row_argmax))
        if not all(np.isfinite(found).all() for found in logits):
            raise ValueError(f"logits of {self.requests} x {self.query_len} rows are not finite: its weights or cache are not")
        errors = [float(np.linalg.norm(other - logits[0]) / np.linalg.norm(logits[0])) for other in logits[1:]]
        return max(errors), min(float((best[0] == other).mean()) for other in best[1:])

    def time(self, record: Callable[[], None], count: int) -> float:
        """Median microseconds of one of the `count` operations that `record` records."""
        record()  # compiles, and warms cuBLAS, outside the capture
        self.stream.synchronize()
        with self.stream.capture("bench") as captured:
            record()
        graph = captured.graph
        for _ in range(3):
            graph.launch(self.stream)
        begin, end = (self.device.event(name, timing=True) for name in ("begin", "end"))
        times = []
        for _ in range(REPEATS):
            self.stream.record(begin)
            graph.launch(self.stream)
            graph.launch(self.stream)
            self.stream.record(end)
            end.synchronize()
            times.append(end.milliseconds_since(begin) * 500 / count)
        return statistics.median(times)

    def _per_layer(self, record: Callable[[LayerArrays], None]) -> float:
        def record_all() -> None:
            for layer in self.model.layers:
                record(layer)

        return self.time(record_all, len(self.model.layers))

    def _product(self, name: str) -> Callable[[LayerArrays], None]:
        """The same product by cuBLAS, alone."""
        scratch, tokens = self.scratch, self.tokens
        out, x = {
            "qkv": (scratch.qkv, scratch.normed),
            "out": (scratch.projected, scratch.attention),
            "gate_up": (scratch.gate_up, scratch.normed),
            "down": (scratch.projected, scratch.activated),
        }[name]
        return lambda layer: self.stream.matmul(out[:tokens], x[:tokens], getattr(layer, name), self.run.live)

    def _logits(self, ops: Ops) -> None:
        for _ in range(2):
            ops.logits(self.run, self.tokens)

    def _whole(self, ops: Ops) -> None:
        record_forward(self.run, ops)
        ops.logits(self.run, self.tokens)


def _with_norm(operation: Callable[[ForwardPass, LayerArrays, Any], None], run: ForwardPass, norm: Any, layer: LayerArrays) -> None:
    """`operation` of a layer, with the layer last, so that it can be bound."""
    operation(run, layer, norm)


def random_model(device: CudaDevice, spec: ModelSpec, dtype: WeightDtype, blocks: int, max_model_len: int) -> ModelArrays:
    """Normal weights of 1 / sqrt(columns), gains near 1, a cache of unit normals: generated on the GPU."""
    storage = STORAGE[dtype]

    def matrix(name: str, *shape: int, scale: float | None = None) -> Any:
        array = device.array(name, shape, storage)
        fill_normal(array, scale or shape[-1] ** -0.5)
        return array

    def gain(name: str, size: int) -> Any:
        return device.constant(name, (1 + 0.1 * np.random.default_rng(size).standard_normal(size)).astype(np.float32))

    pages = (blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim)
    hidden, inter = spec.hidden_size, spec.intermediate_size
    layers = tuple(
        LayerArrays(
            input_norm=gain(f"{i}.input_norm", hidden),
            qkv=matrix(f"{i}.qkv", spec.qkv_size, hidden),
            qkv_bias=None,
            q_norm=gain(f"{i}.q_norm", spec.head_dim) if spec.qk_norm else None,
            k_norm=gain(f"{i}.k_norm", spec.head_dim) if spec.qk_norm else None,
            out=matrix(f"{i}.out", hidden, spec.q_size),
            post_norm=gain(f"{i}.post_norm", hidden),
            gate_up=matrix(f"{i}.gate_up", 2 * inter, hidden),
            down=matrix(f"{i}.down", hidden, inter),
            k_cache=matrix(f"{i}.k_cache", *pages, scale=1.0),
            v_cache=matrix(f"{i}.v_cache", *pages, scale=1.0),
        )
        for i in range(spec.num_layers)
    )
    embed = matrix("embed", spec.vocab_size, hidden, scale=1.0)
    head = embed if spec.tied_embeddings else matrix("head", spec.vocab_size, hidden)
    table = device.constant("rope", rope_table(spec.rope, spec.head_dim, max_model_len))
    return ModelArrays(decoder_shape(spec), embed, layers, gain("final_norm", hidden), head, table)


def fill_normal(array: Any, scale: float) -> None:
    """Random normals, in pieces so that float32 scratch stays small; bfloat16 by rounding towards zero."""
    import cupy

    flat = cupy.asarray(array).reshape(-1)
    for start in range(0, flat.size, 1 << 26):
        piece = cupy.random.standard_normal(min(1 << 26, flat.size - start), dtype=cupy.float32) * cupy.float32(scale)
        stored = (piece.view(cupy.uint32) >> 16).astype(cupy.uint16) if flat.dtype == np.uint16 else piece.astype(flat.dtype)
        flat[start : start + stored.size] = stored
    cupy.cuda.runtime.deviceSynchronize()


def step_arrays(
    device: CudaDevice, spec: ModelSpec, sizes: StepSizes, context: int, query_len: int
) -> tuple[SlotState, StepArrays]:
    """`requests` slots with `context` tokens each, `query_len` more in this step; blocks scattered over the cache."""
    requests, tokens, rng = sizes.max_num_seqs, sizes.max_num_batched_tokens, np.random.default_rng(0)
    tables = rng.permutation(requests * sizes.blocks_per_slot).reshape(requests, -1)
    offsets = np.tile(np.arange(query_len), requests)
    slots = np.repeat(np.arange(requests), query_len)
    positions = context + offsets
    entries = tables[slots, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

    def integers(name: str, values: Any) -> Any:
        array = device.array(name, np.shape(values), np.int32)
        device.upload(array, np.asarray(values, np.int32))
        return array

    unused = integers("unused", [0])
    inputs = StepInputs(
        live=integers("live", [tokens, requests, tokens]),
        idx_mapping=integers("idx_mapping", np.arange(requests)),
        query_start_loc=integers("query_start_loc", np.arange(requests + 1) * query_len),
        cu_num_logits=integers("cu_num_logits", np.arange(requests + 1) * query_len),
        num_block_writes=unused,
        block_writes=unused,
    )
    others = {name: unused for name in SlotState.__dataclass_fields__ if name != "block_tables"}
    state = SlotState(**others, block_tables=integers("block_tables", tables))
    known = {
        "input_token_ids": rng.integers(0, spec.vocab_size, tokens),
        "positions": positions,
        "token_slot": slots,
        "slot_mapping": entries,
        "logits_indices": np.arange(tokens),
    }
    arrays = {name: integers(name, values) for name, values in known.items()}
    rest = {name: unused for name in StepArrays.__dataclass_fields__ if name not in {"inputs", *known}}
    return state, StepArrays(inputs=inputs, **arrays, **rest)
