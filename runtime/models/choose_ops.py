"""Which set of operations, and which form of each of its products, records a step of so many rows: measured on the GPU that is
there, once, and remembered.

The layers of the model itself are run, as many as outgrow L2, in graphs that take turns: one product in each of its forms, the
others as they are best so far, because what a launch costs depends on its neighbours too. What was measured is kept in the user's
cache folder under GPU, driver, shape, type and sources: a second start with the same takes the same sets, and so do two processes
that share the folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphs.arrays import LayerArrays, ModelArrays, Scratch, SlotState, StepArrays, StepInputs
from graphs.compile_cache import kernel_cache_dir
from graphs.flow_ops import FlowLayout
from graphs.fused_ops import FusedOps, forms_of
from graphs.ops import ForwardPass, HeadOps, Ops, OpTable
from graphs.plain_ops import PlainOps
from graphs.wide_ops import WideLayout
from kernels.tile import TILE_TOKENS
from runtime.checkpoint.cache import cache_folder
from runtime.models import choose_algorithms
from runtime.models.choose_algorithms import measured_algorithms, use_algorithms
from runtime.models.measure_in_turn import measure_in_turn

logger = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Token rows that are measured; a step takes what was best for the next larger of them, one of more rows the library."""

_NAMES = {True: "fused", False: "library"}

PRODUCTS = ["down", "gate_up", "out", "qkv"]
"""The products of a layer; each may be laid out in more than one way, or be the library's (graphs/fused_ops.py)."""

_MOST_LAYOUTS = 64

_FEWEST_LAYERS = 6

_MUST_GAIN = 0.99
"""Of the time of whole layers with the usual form of a product: less is what measurements differ by, and other rows and lengths."""

_BYTES = 400_000_000
"""Weights that a graph reads at least, if the model has as many: several times L2."""


@dataclass(frozen=True)
class Measured:
    """Microseconds of all measured layers, and of the head with its argmax, by set, in the order of `rows`; and
    which of its forms (`forms_of`) each product was fastest in, and which algorithm the library's product is fastest by."""

    rows: list[int]
    fused_layers: list[float]
    library_layers: list[float]
    fused_head: list[float]
    library_head: list[float]
    layouts: list[dict[str, int]]
    algorithms: list[dict[str, str]]

    def fused_best(self) -> list[tuple[bool, bool]]:
        """For each row count: is the fused set faster in the layers, and in the head?"""
        layers = [ours < other for ours, other in zip(self.fused_layers, self.library_layers, strict=True)]
        heads = [ours < other for ours, other in zip(self.fused_head, self.library_head, strict=True)]
        return list(zip(layers, heads, strict=True))

    @classmethod
    def of(cls, values: Any) -> Measured | None:
        """From JSON; None where it is anything but what `asdict` wrote."""
        names = list(cls.__dataclass_fields__)
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            return None
        columns = list(values.values())
        if not all(isinstance(column, list) and len(column) == len(values["rows"]) > 0 for column in columns):
            return None
        numbers = [number for name in names[:-2] for number in values[name]]
        if not all(_are_algorithms(of_rows) for of_rows in values["algorithms"]):
            return None
        places = [place for layouts in values["layouts"] if isinstance(layouts, dict) for place in layouts.values()]
        if len([layouts for layouts in values["layouts"] if isinstance(layouts, dict) and sorted(layouts) == PRODUCTS]) != len(
            columns[0]
        ):
            return None
        if not all(isinstance(place, int) and not isinstance(place, bool) and 0 <= place < _MOST_LAYOUTS for place in places):
            return None
        if not all(isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < 1e9 for number in numbers):
            return None
        return cls(**values)


def _are_algorithms(values: Any) -> bool:
    """Is it what `measured_algorithms` returns?"""
    if not isinstance(values, dict) or sorted(values) != choose_algorithms.PRODUCTS:
        return False
    return all(isinstance(value, str) and re.fullmatch("([0-9a-f]{2})*", value) for value in values.values())


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


class OpsChooser:
    """Measures, or remembers. CUDA only.

    Args:
        device: a CUDA device.
        model: its weights, on the device.
        scratch: activations of the largest step; their contents are lost.
    """

    def __init__(self, device: Any, model: ModelArrays, scratch: Scratch) -> None:
        self.device, self.model, self.scratch = device, model, scratch

    def __call__(self, fused: FusedOps, library: PlainOps) -> tuple[OpTable, str]:
        key = self._key()
        path = cache_folder() / "choices" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.json"
        measured = read_measured(path, key)
        if measured is None:
            measured = self._measure(fused, library)
            write_measured(path, key, measured)
        else:
            self._use_algorithms(measured)
        return table_of(measured, fused, library, self.model.layers[0])

    def _rows(self) -> list[int]:
        most = min(self.scratch.residual.shape[0], self.scratch.logits.shape[0])
        return [rows for rows in ROWS if rows <= most] or [1]

    def _key(self) -> dict[str, Any]:
        """Everything that a measurement depends on. The folder of compiled kernels is named after their sources."""
        shape, layer = self.model.shape, self.model.layers[0]
        return {
            "device": self.device.description,
            "shape": asdict(shape),
            "layers": len(self.model.layers),
            "dtype": str(self.model.head.dtype),
            "rows": self._rows(),
            "overlap": self.device.overlaps,
            "layouts": {name: [str(form) for form in forms_of(name, *getattr(layer, name).shape)] for name in PRODUCTS},
            "sources": kernel_cache_dir().name,
        }

    def _measure(self, fused: FusedOps, library: PlainOps) -> Measured:
        heads = {"fused_head": replace(fused, stripes=None), "library_head": replace(fused, stripes=library.stripes)}
        found: dict[str, list[float]] = {name: [] for name in ("fused_layers", "library_layers", *heads)}
        layouts: list[dict[str, int]] = []
        algorithms: list[dict[str, str]] = []
        stream = self.device.stream("choose_ops")
        borrowed: list[Any] = []
        rows = self._rows()
        for count in rows:
            run = self._pass(stream, count, borrowed)
            algorithms.append(measured_algorithms(self.device, run))
            use_algorithms(run, algorithms[-1])
            places = dict.fromkeys(PRODUCTS, 0)
            for name in (*PRODUCTS, *PRODUCTS):  # once more between neighbours that have been chosen
                places[name] = self._fastest_form(run, fused, name, places)
            layouts.append(places)
            own = laid_out(fused, self.model.layers[0], places)
            records: dict[str, Callable[[], None]] = {
                "fused_layers": lambda run=run, own=own: self._layers(run, own),  # type: ignore[misc]
                "library_layers": lambda run=run: self._layers(run, library),  # type: ignore[misc]
            }
            for name, ops in heads.items():
                records[name] = lambda run=run, ops=ops, count=count: ops.logits(run, count)  # type: ignore[misc]
            for name, time in measure_in_turn(self.device, stream, records).items():
                found[name].append(time)
        stream.synchronize()
        for array in borrowed:
            self.device.free(array)
        return Measured(rows, **found, layouts=layouts, algorithms=algorithms)

    def _use_algorithms(self, measured: Measured) -> None:
        stream = self.device.stream("choose_ops")
        borrowed: list[Any] = []
        for rows, chosen in zip(measured.rows, measured.algorithms, strict=True):
            use_algorithms(self._pass(stream, rows, borrowed), chosen)
        for array in borrowed:
            self.device.free(array)

    def _pass(self, stream: Any, rows: int, borrowed: list[Any]) -> ForwardPass:
        """A step of one request with so many rows, all of them live, at the beginning of its sequence."""

        def integers(name: str, values: Any) -> Any:
            array = self.device.array(f"choose_ops.{name}.{rows}", np.shape(values), np.int32)
            self.device.upload(array, np.asarray(values, np.int32))
            borrowed.append(array)
            return array

        blocks, block_size = self.model.layers[0].k_cache.shape[:2]
        entries = np.arange(rows) % (blocks * block_size)
        live, indices = integers("live", [rows, 1, rows]), integers("indices", np.arange(rows))
        requests, starts = integers("requests", [0]), integers("starts", [0, rows])
        inputs = StepInputs(live, requests, starts, starts, requests, requests, query_len=rows)
        known = {"inputs": inputs, "slot_mapping": integers("slot_mapping", entries)}
        step = StepArrays(**(dict.fromkeys(StepArrays.__dataclass_fields__, indices) | known))
        tables = integers("block_tables", np.arange(-(-rows // block_size))[None] % blocks)
        state = SlotState(**(dict.fromkeys(SlotState.__dataclass_fields__, indices) | {"block_tables": tables}))
        return ForwardPass(stream, self.model, self.scratch, state, step, rows)

    def _measured_layers(self) -> Sequence[LayerArrays]:
        """As many layers as outgrow L2, and more than a graph's own launch shows in."""
        layers = self.model.layers
        layer_bytes = sum(getattr(layers[0], name).nbytes for name in PRODUCTS)
        return layers[: max(_FEWEST_LAYERS, -(-_BYTES // layer_bytes))]

    def _fastest_form(self, run: ForwardPass, fused: FusedOps, name: str, places: dict[str, int]) -> int:
        """Place of the fastest among the forms of a product, between the others in the forms of `places`; the usual one where no
        other gains what counts."""
        records: dict[str, Callable[[], None]] = {}
        for place, form in enumerate(forms_of(name, *getattr(self.model.layers[0], name).shape)):
            if isinstance(form, FlowLayout) and run.num_tokens > TILE_TOKENS:
                continue  # it would read the weights once more for every eight rows
            if isinstance(form, WideLayout) and run.num_tokens <= TILE_TOKENS:
                continue  # for more rows than the others read the weights once for
            ops = laid_out(fused, self.model.layers[0], places | {name: place})
            records[f"{name} {place}"] = lambda ops=ops: self._layers(run, ops)  # type: ignore[misc]
        times = measure_in_turn(self.device, run.launch, records)
        best = min(times, key=times.__getitem__)
        return int(best.split()[1]) if times[best] < _MUST_GAIN * times[f"{name} 0"] else 0

    def _layers(self, run: ForwardPass, ops: Ops) -> None:
        for layer in self._measured_layers():
            ops.attention_inputs(run, layer)
            ops.attention(run, layer)
            ops.attention_output(run, layer, layer.post_norm)
            ops.feed_forward(run, layer, layer.input_norm)


def read_measured(path: Path, key: dict[str, Any]) -> Measured | None:
    """What was remembered under this key; None, with a log line, where the file is not what `write_measured` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("choice of operations %s cannot be read (%s): measured anew", path, error)
        return None
    measured = Measured.of(content.get("measured")) if isinstance(content, dict) and content.get("key") == key else None
    if measured is None or measured.rows != key["rows"]:
        logger.warning("choice of operations %s is not of this model, device and version: measured anew", path)
        return None
    return measured


def write_measured(path: Path, key: dict[str, Any], measured: Measured) -> None:
    """Remember, whole or not at all; a folder that cannot be written costs the next start the measurement."""
    own = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps({"key": key, "measured": asdict(measured)}, indent=1), encoding="utf-8")
        own.replace(path)
    except OSError as error:
        logger.warning("choice of operations %s cannot be kept (%s): the next start measures again", path, error)
