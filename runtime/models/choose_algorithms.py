"""Which of the library's algorithms multiplies each product of a step: measured on the GPU that is there, with cold weights.

The library's own first choice is kept unless another takes less by more than measurements differ. Sums are float32 in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphs.launch import Array
from graphs.ops import ForwardPass
from runtime.models.measure_in_turn import measure_in_turn

PRODUCTS = ["down", "gate_up", "head", "out", "qkv"]

FIRST = ""
"""Stands for the library's first algorithm, others for themselves in hexadecimal."""

_BYTES = 400_000_000
"""Weights that a graph reads at least, if the model has as many."""

_FEWEST_BYTES = 150_000_000
"""Weights below which L2 would answer for memory: nothing is measured."""

_MUST_GAIN = 0.985
"""Of the time of the library's first."""


def product_arrays(run: ForwardPass) -> dict[str, tuple[Array, Array, Sequence[Array], Array]]:
    """Of each product: out, x, the weights of all layers, live rows."""
    scratch, tokens, layers = run.scratch, run.num_tokens, run.model.layers

    def of_layers(name: str, out: Array, x: Array) -> tuple[Array, Array, Sequence[Array], Array]:
        return out[:tokens], x[:tokens], [getattr(layer, name) for layer in layers], run.live

    logits, rows = scratch.logits[:tokens], scratch.logit_rows[:tokens]
    return {
        "down": of_layers("down", scratch.projected, scratch.activated),
        "gate_up": of_layers("gate_up", scratch.gate_up, scratch.normed),
        "head": (logits, rows, [run.model.head], run.step.inputs.num_logits),
        "out": of_layers("out", scratch.projected, scratch.attention),
        "qkv": of_layers("qkv", scratch.qkv, scratch.normed),
    }


def measured_algorithms(device: Any, run: ForwardPass) -> dict[str, str]:
    """The fastest algorithm of each product for as many rows as `run` has; CUDA only."""
    return {name: fastest_algorithm(device, run.launch, name, *arrays) for name, arrays in product_arrays(run).items()}


def use_algorithms(run: ForwardPass, chosen: Mapping[str, str]) -> None:
    """Let the library's products of as many rows as `run` has be multiplied by these from now on."""
    stream: Any = run.launch
    for name, (out, x, weights, _) in product_arrays(run).items():
        stream.use_algorithm(out, x, weights[0], bytes_of(chosen[name]))


def bytes_of(algorithm: str) -> bytes | None:
    """As the stream takes it; None for the library's first."""
    return bytes.fromhex(algorithm) or None


def fastest_algorithm(device: Any, stream: Any, name: str, out: Array, x: Array, weights: Sequence[Array], live: Array) -> str:
    """Of out = x @ weight.T over all weights, one after the other. `name` is for reports."""
    weights = weights[: -(-_BYTES // weights[0].nbytes)]
    if sum(weight.nbytes for weight in weights) < _FEWEST_BYTES:
        return FIRST
    known = [FIRST, *(algorithm.hex() for algorithm in stream.product_algorithms(out, x, weights[0]))]

    def record(algorithm: str) -> None:
        stream.use_algorithm(out, x, weights[0], bytes_of(algorithm))
        for weight in weights:
            stream.matmul(out, x, weight, live)

    records: dict[str, Callable[[], None]] = {
        f"{name} {place}": lambda algorithm=algorithm: record(algorithm)  # type: ignore[misc]
        for place, algorithm in enumerate(known)
    }
    times = list(measure_in_turn(device, stream, records).values())
    stream.use_algorithm(out, x, weights[0], None)
    return known[times.index(min(times))] if min(times) < _MUST_GAIN * times[0] else FIRST
