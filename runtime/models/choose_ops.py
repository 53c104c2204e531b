"""Which set of operations, and which form of each of its products, records a step of so many rows: measured on the GPU that is
there, once, and remembered.

The layers of the model itself are run, as many as outgrow L2, in graphs that take turns, over the rows and requests that a step of
this engine has (runtime/models/choose_pass.py); runtime/models/choose_forms.py says which forms are tried together. What was
measured is kept in the user's cache folder, beside the kernels of the same sources, under GPU, driver, shape, type and step: a
second start with the same takes the same sets, and so do two processes that share the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from graphs.arrays import LayerArrays, ModelArrays, Scratch
from graphs.compile_cache import kernel_cache_dir
from graphs.flow_ops import FlowLayout
from graphs.fused_ops import FusedOps
from graphs.ops import ForwardPass, HeadOps, Ops, OpTable
from graphs.plain_ops import PlainOps
from graphs.product_forms import forms_of, has_own_form
from graphs.wide_ops import WideLayout
from kernels.tile import TILE_TOKENS
from runtime.models.choose_algorithms import measured_algorithms, use_algorithms
from runtime.models.choose_forms import Places, fastest_places
from runtime.models.choose_pass import measured_pass, requests_of
from runtime.models.measure_in_turn import TURNS, measure_in_turn, times_in_turn
from runtime.models.measured_ops import PRODUCTS, Measured, read_measured, write_measured
from runtime.step_buffers import StepSizes

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Token rows that are measured; a step takes what was best for the next larger of them, one of more rows the library."""

_NAMES = {True: "fused", False: "library"}

_FEWEST_LAYERS = 6

_BYTES = 400_000_000
"""Weights that a graph reads at least, if the model has as many: several times L2."""

_WHOLE_BYTES = 6_000_000_000
"""The same where close forms are told apart: about the half of an 8B model, and longer steps cost a start too much."""

_WHOLE_TURNS = 11


def laid_out(fused: FusedOps, layer: LayerArrays, places: dict[str, int]) -> FusedOps:
    """The set with the forms of these places among those of its products."""
    layouts = dict(fused.layouts)
    for name, place in places.items():
        known = forms_of(name, *getattr(layer, name).shape)
        layouts[name] = known[place] if place < len(known) else known[0]
    return replace(fused, layouts=layouts)


def table_of(measured: Measured, fused: FusedOps, library: PlainOps, layer: LayerArrays) -> tuple[OpTable, str]:
    """The sets that were fastest, and a line that says which."""
    our_head, library_head = replace(fused, stripes=None), replace(fused, stripes=library.stripes)
    few: list[tuple[int, Ops]] = []
    said = []
    for rows, (fused_layers, fused_head), places in zip(measured.rows, measured.fused_best(), measured.layouts, strict=True):
        head = our_head if fused_head else library_head
        own = laid_out(fused, layer, places)
        few.append((rows, HeadOps(own if fused_layers else library, head)))
        others = ", ".join(name for name, layout in own.layouts.items() if layout is None)
        but = f" but {others}" if fused_layers and others else ""
        said.append(f"{rows} {_NAMES[fused_layers]}{but} + {_NAMES[fused_head]}")
    return OpTable(library, tuple(few)), f"measured, layers + head up to so many rows: {'; '.join(said)}; library above"


def choice_file(key: dict[str, Any]) -> Path:
    """Where the choice under `key` is remembered: with what was compiled of the same sources, and for as long
    (graphs/cache_age.py)."""
    return kernel_cache_dir() / "choices" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.json"


class OpsChooser:
    """Measures, or remembers. CUDA only.

    Args:
        device: a CUDA device.
        model: its weights, on the device.
        scratch: activations of the largest step; their contents are lost.
    """

    def __init__(self, device: Any, model: ModelArrays, scratch: Scratch) -> None:
        self.device, self.model, self.scratch = device, model, scratch

    def __call__(self, fused: FusedOps, library: PlainOps, sizes: StepSizes) -> tuple[OpTable, str]:
        key = self._key(sizes)
        path = choice_file(key)
        measured = read_measured(path, key)
        if measured is None:
            measured = self._measure(fused, library, sizes)
            write_measured(path, key, measured)
        else:
            self._use_algorithms(measured, sizes)
        return table_of(measured, fused, library, self.model.layers[0])

    def _rows(self) -> list[int]:
        most = min(self.scratch.residual.shape[0], self.scratch.logits.shape[0])
        return [rows for rows in ROWS if rows <= most] or [1]

    def _key(self, sizes: StepSizes) -> dict[str, Any]:
        """Everything that a measurement depends on. The folder of compiled kernels is named after their sources."""
        shape, layer = self.model.shape, self.model.layers[0]
        return {
            "device": self.device.description,
            "shape": asdict(shape),
            "layers": len(self.model.layers),
            "dtype": str(self.model.head.dtype),
            "rows": self._rows(),
            "requests": [requests_of(rows, sizes) for rows in self._rows()],
            "overlap": self.device.overlaps,
            "layouts": {name: [str(form) for form in forms_of(name, *getattr(layer, name).shape)] for name in PRODUCTS},
            "sources": kernel_cache_dir().name,
        }

    def _measure(self, fused: FusedOps, library: PlainOps, sizes: StepSizes) -> Measured:
        heads = {"fused_head": replace(fused, stripes=None), "library_head": replace(fused, stripes=library.stripes)}
        found: dict[str, list[float]] = {name: [] for name in ("fused_layers", "library_layers", *heads)}
        layouts: list[Places] = []
        algorithms: list[dict[str, str]] = []
        stream = self.device.stream("choose_ops")
        borrowed: list[Any] = []
        rows, few = self._rows(), self._first_layers(_BYTES)
        for count in rows:
            run = measured_pass(self.device, stream, self.model, self.scratch, sizes, count, borrowed)
            algorithms.append(measured_algorithms(self.device, run))
            use_algorithms(run, algorithms[-1])
            layouts.append(self._fastest_forms(run, fused))
            own = laid_out(fused, self.model.layers[0], layouts[-1])
            records: dict[str, Callable[[], None]] = {}
            for name, ops in (("fused", own), ("library", library)):  # before each head layers, or it would find weights in L2
                records[f"{name}_layers"] = lambda run=run, ops=ops: _record_layers(run, ops, few)  # type: ignore[misc]
                head = heads[f"{name}_head"]
                records[f"{name}_head"] = lambda run=run, head=head, count=count: head.logits(run, count)  # type: ignore[misc]
            for name, time in measure_in_turn(self.device, stream, records).items():
                found[name].append(time)
        stream.synchronize()
        for array in borrowed:
            self.device.free(array)
        return Measured(rows, **found, layouts=layouts, algorithms=algorithms)

    def _use_algorithms(self, measured: Measured, sizes: StepSizes) -> None:
        stream = self.device.stream("choose_ops")
        borrowed: list[Any] = []
        for rows, chosen in zip(measured.rows, measured.algorithms, strict=True):
            use_algorithms(measured_pass(self.device, stream, self.model, self.scratch, sizes, rows, borrowed), chosen)
        for array in borrowed:
            self.device.free(array)

    def _first_layers(self, nbytes: int) -> Sequence[LayerArrays]:
        """As many layers as have so many bytes of weights, and no fewer than a graph's own launch shows in."""
        layers = self.model.layers
        layer_bytes = sum(getattr(layers[0], name).nbytes for name in PRODUCTS)
        return layers[: max(_FEWEST_LAYERS, -(-nbytes // layer_bytes))]

    def _fastest_forms(self, run: ForwardPass, fused: FusedOps) -> Places:
        """Between the others' usual forms at first; between the library's where our tiles would read the weights more than once."""
        few_rows, layer = run.num_tokens <= TILE_TOKENS, self.model.layers[0]
        known = {name: forms_of(name, *getattr(layer, name).shape) for name in PRODUCTS}
        # The others would read the weights once for every eight rows, or are for more rows than that.
        unfit, capability = WideLayout if few_rows else FlowLayout, self.device.facts.compute_capability
        tried = {
            name: [i for i, form in enumerate(forms) if not isinstance(form, unfit) and has_own_form(form, capability)]
            for name, forms in known.items()
        }

        def measure(sets: Sequence[Places], *, whole: bool) -> list[list[float]]:
            layers = self._first_layers(_WHOLE_BYTES if whole else _BYTES)
            records: dict[str, Callable[[], None]] = {
                f"{number} {places}": lambda places=places: _record_layers(run, laid_out(fused, layer, places), layers)  # type: ignore[misc]
                for number, places in enumerate(sets)
            }
            return list(times_in_turn(self.device, run.launch, records, turns=_WHOLE_TURNS if whole else TURNS).values())

        return fastest_places(tried, {name: places[0 if few_rows else -1] for name, places in tried.items()}, measure)


def _record_layers(run: ForwardPass, ops: Ops, layers: Sequence[LayerArrays]) -> None:
    for layer in layers:
        ops.attention_inputs(run, layer)
        ops.attention(run, layer)
        ops.attention_output(run, layer, layer.post_norm)
        ops.feed_forward(run, layer, layer.input_norm)
