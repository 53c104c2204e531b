"""Gates G1 and G2 on a GPU: the toy model's engine, its graphs replayed by CUDA, its tapes read when the run is over.

The order of work is CUDA's own, so what only a schedule of the virtual device can show (overlap, races) is not checked here.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from runtime.gates.case import AXES, Case
from runtime.gates.g1 import MUST_COVER
from runtime.gates.gates import run_gate
from runtime.gates.toy_engine import OnGpu
from runtime.gates.verdict import Verdict

pytestmark = pytest.mark.gpu


PAUSING = tuple(
    Case(speculator=speculator, k=3, event=event, lengths="changing", schedule="eager", seed=103)
    for speculator, event in (("dflash", "reuse"), ("dflash2", "cancel"))
)
"""A table with several steps in a row that draft nothing, so that rows wait for a drafter's context."""

DEALT = ("batch", "event", "stop", "prompt", "accept", "policy", "steps_in_flight", "mode")


def cases() -> list[Case]:
    """Few, because each opens an engine: every speculator with every k, the values of the other axes dealt out over them."""
    kinds = [(speculator, k) for speculator in AXES["speculator"] for k in AXES["k"] if (speculator == "none") == (k == 0)]
    kinds += [("scripted", 3), ("scripted", 7), ("ngram", 3), ("ngram", 7), ("scripted", 1), ("scripted", 5), ("none", 0)]
    dealt = {axis: _dealt(axis, len(kinds)) for axis in DEALT}
    chosen = [
        Case(
            speculator=speculator,
            k=k,
            lengths="changing" if k and number % 2 else "fixed",
            schedule="eager",
            seed=number,
            **{axis: values[number] for axis, values in dealt.items()},
        )
        for number, (speculator, k) in enumerate(kinds)
    ]
    return [*chosen, *PAUSING]


def _dealt(axis: str, count: int) -> list[Any]:
    """Every value of an axis about as often as the others, in an order of the axis's own."""
    values = [AXES[axis][number % len(AXES[axis])] for number in range(count)]
    random.Random(f"{axis} 0").shuffle(values)
    return values


@pytest.mark.parametrize("gate", ["G1", "G2"])
def test_gates_hold(gate: str, record_property: Any) -> None:
    report = run_gate(gate, OnGpu(), cases=cases())
    figures = report.figures
    record_property(f"{gate} on the GPU", f"{figures['cases']} cases, {figures['steps']} steps, {report.verdict.value}")
    assert report.verdict is Verdict.SATISFIED, report.findings
    assert gate != "G1" or not set(MUST_COVER) - set(figures["coverage"])


def test_the_cases_reach_every_value_of_every_axis() -> None:
    chosen = cases()
    for axis in (*DEALT, "speculator", "k", "lengths"):
        assert {getattr(case, axis) for case in chosen} == set(AXES[axis]), axis
