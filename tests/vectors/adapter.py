"""The adapter: reads files of vectors, runs each op through the product, compares only what is expected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphs.cpu_executor import CpuExecutor
from graphs.executor import Executor
from graphs.simulator_executor import SimulatorExecutor
from kernels.lang import Kernel
from runtime.errors import DeviceError
from tests.vectors.compare import difference
from tests.vectors.host_ops import HOST_OPS
from tests.vectors.sampling_ops import SAMPLING_OPS
from tests.vectors.step_ops import STEP_OPS, Launch

LAUNCHED_OPS = {**STEP_OPS, **SAMPLING_OPS}

Vector = Mapping[str, Any]


class UnusableInputError(Exception):
    """A file that holds no vectors, or an executor that cannot be opened here."""


@dataclass(frozen=True)
class Outcome:
    """Result of one vector: status is "pass", "FAIL" or "unsupported"."""

    id: str
    status: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.status} {self.id}" + (f": {self.detail}" if self.detail else "")


def read_vectors(path: Path) -> list[Vector]:
    """The vectors of a file.

    Raises:
        UnusableInputError: naming the file and what is wrong with it.
    """
    try:
        vectors = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableInputError(f"file = {path}: {error}") from error
    if not isinstance(vectors, list) or not all(isinstance(vector, dict) for vector in vectors):
        raise UnusableInputError(f"file = {path}: must be a list of objects with id, op, inputs and expect")
    for i, vector in enumerate(vectors):
        missing = [name for name in ("id", "op", "inputs") if name not in vector]
        if missing:
            raise UnusableInputError(f"file = {path}: entry {i} ({vector.get('id', 'no id')}) lacks {', '.join(missing)}")
    return vectors


def open_executor(name: str, *, grid: int = 1, block: int = 32) -> Launch:
    """`launch(kernel, *args)` on the named executor. Arrays are NumPy arrays and change in place; ints become int32.

    Raises:
        UnusableInputError: the executor cannot be opened here.
    """
    try:
        executor = _executor(name)
    except (RuntimeError, DeviceError) as error:
        raise UnusableInputError(f"executor = {name}: {error}") from error

    def launch(kernel: Kernel, *args: Any) -> None:
        executor.bind(kernel, grid, block, tuple(np.int32(arg) if isinstance(arg, int) else arg for arg in args))()

    return launch


def _executor(name: str) -> Executor:
    if name == "cuda":
        from tests.cuda_executor import CudaExecutor

        return CudaExecutor()
    return SimulatorExecutor() if name == "simulator" else CpuExecutor()


def run_vector(vector: Vector, launch: Launch) -> Outcome:
    """Run one vector and compare what it expects."""
    name, op = str(vector["id"]), vector["op"]
    if op not in LAUNCHED_OPS and op not in HOST_OPS:
        return Outcome(name, "unsupported", f"op = {op}: unknown; known are {', '.join([*LAUNCHED_OPS, *HOST_OPS])}")
    expect = vector.get("expect") or {}
    try:
        outputs = LAUNCHED_OPS[op](launch, vector["inputs"]) if op in LAUNCHED_OPS else HOST_OPS[op](vector["inputs"])
    except Exception as error:  # a vector that breaks the product is a failed vector: the others still run
        return Outcome(name, "FAIL", f"op = {op}: {type(error).__name__}: {error}")
    if op == "reject_rows":
        expect = _cut_tokens(expect, outputs)
    for field, expected in expect.items():
        if field not in outputs:
            return Outcome(name, "FAIL", f"op = {op} has no output {field}; it has {', '.join(outputs)}")
        found = difference(outputs[field], expected, field)
        if found:
            return Outcome(name, "FAIL", found)
    return Outcome(name, "pass")


def _cut_tokens(expect: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """What stands behind num_sampled is undefined: expected rows are cut there."""
    if expect.get("tokens") is None:
        return dict(expect)
    counts = expect.get("num_sampled") or outputs["num_sampled"]
    return {**expect, "tokens": [row[:n] for row, n in zip(expect["tokens"], counts, strict=True)]}
