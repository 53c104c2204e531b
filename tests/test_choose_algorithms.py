"""Which algorithm of the library multiplies a product: what is chosen, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs.launch import Array
from runtime.models import choose_algorithms
from runtime.models.choose_algorithms import PRODUCTS, measured_algorithms, use_algorithms

WIDTHS = {"down": (64, 96), "gate_up": (192, 64), "out": (64, 64), "qkv": (96, 64), "head": (1000, 64)}


class Stream:
    """Notes which algorithm multiplies which product."""

    def __init__(self) -> None:
        self.algorithms: dict[str, bytes | None] = {}
        self.products: list[tuple[str, bytes | None]] = []

    def product_algorithms(self, out: Array, x: Array, weight: Any) -> list[bytes]:
        return [b"\x01" + weight.name.encode(), b"\x02"]

    def use_algorithm(self, out: Array, x: Array, weight: Any, algorithm: bytes | None) -> None:
        self.algorithms[weight.name] = algorithm

    def matmul(self, out: Array, x: Array, weight: Any, live: Array) -> None:
        assert out.shape == (4, weight.shape[0])
        assert x.shape == (4, weight.shape[1])
        self.products.append((weight.name, self.algorithms[weight.name]))


def a_pass(stream: Stream, nbytes: int) -> Any:
    """A step of four rows of a model with three layers, each weight of so many bytes."""
    weights = {name: SimpleNamespace(name=name, shape=shape, nbytes=nbytes) for name, shape in WIDTHS.items()}
    layer = SimpleNamespace(**weights)

    def rows(width: int) -> Any:
        return np.zeros((8, width), np.float32)

    scratch = SimpleNamespace(
        projected=rows(64), activated=rows(96), gate_up=rows(192), normed=rows(64), attention=rows(64), qkv=rows(96),
        logits=rows(1000), logit_rows=rows(64),
    )  # fmt: skip
    model = SimpleNamespace(layers=[layer] * 3, head=weights["head"])
    step = SimpleNamespace(inputs=SimpleNamespace(num_logits="logits rows"))
    return SimpleNamespace(launch=stream, scratch=scratch, model=model, step=step, num_tokens=4, live="tokens")


@pytest.mark.parametrize(("second", "chosen"), [(0.9, "02"), (0.99, ""), (1.2, "")])
def test_another_algorithm_must_be_faster_by_more_than_noise(monkeypatch: pytest.MonkeyPatch, second: float, chosen: str) -> None:
    stream = Stream()

    def measure(device: Any, stream: Any, records: dict[str, Callable[[], None]]) -> dict[str, float]:
        for record in records.values():
            record()
        return dict(zip(records, (1.0, 1.5, second), strict=True))

    monkeypatch.setattr(choose_algorithms, "measure_in_turn", measure)
    assert measured_algorithms(None, a_pass(stream, 200_000_000)) == dict.fromkeys(PRODUCTS, chosen)
    assert stream.products[:6] == [("down", algorithm) for algorithm in (None, b"\x01down", b"\x02") for _layer in range(2)]
    assert set(stream.algorithms.values()) == {None}  # nothing is chosen before all is said


def test_weights_that_a_cache_holds_are_not_measured() -> None:
    assert measured_algorithms(None, a_pass(Stream(), 40_000_000)) == dict.fromkeys(PRODUCTS, "")


def test_what_was_chosen_is_used() -> None:
    stream = Stream()
    use_algorithms(a_pass(stream, 1), dict.fromkeys(PRODUCTS, "") | {"out": "00ff"})
    assert stream.algorithms == dict.fromkeys(PRODUCTS) | {"out": b"\x00\xff"}


def test_rows_between_take_the_algorithm_of_the_next_more() -> None:
    shapes = pytest.importorskip("graphs.product_shape", reason="nvmath is not installed: pip install -e '.[cu12]' or '.[cu13]'")

    def of(rows: int, width: int = 64) -> tuple[Any, Any, Any]:
        half, full = np.dtype(np.uint16), np.dtype(np.float32)
        out, x = shapes.Matrix(0, rows, 96, 96, full), shapes.Matrix(0, rows, width, width, half)
        return out, x, shapes.Matrix(0, 96, width, width, half)

    known = shapes.ProductAlgorithms()
    known.put(*of(8), b"eight")
    known.put(*of(64), None)
    assert [known.get(*of(rows)) for rows in (1, 7, 8, 9, 64, 65)] == [b"eight", b"eight", b"eight", None, None, None]
    assert known.get(*of(8, 72)) is None
