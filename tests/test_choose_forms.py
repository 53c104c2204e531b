"""Which forms are chosen by a clock that is off now and then: what is clearly faster always, what is not never by luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from graphs.flow_ops import FlowLayout
from graphs.product_forms import forms_of, has_own_form
from graphs.wide_ops import WideLayout
from runtime.models.choose_forms import CLOSE, MOST_SETS, Places, close_sets, fastest_places, first_of_fastest

FIRST = {"down": 0, "gate_up": 0}
FORMS = {"down": [0, 1, 2], "gate_up": [0, 1]}


class Clock:
    """Microseconds of a step by `cost`, by which few layers are off by `bias`, and each turn by as much noise as `noise`.

    Attributes:
        asked: how many sets were measured, of few layers and of many.
    """

    def __init__(self, cost: Callable[[Places], float], noise: float, seed: int, bias: Callable[[Places], float]) -> None:
        self.cost, self.noise, self.bias = cost, noise, bias
        self.rng = np.random.default_rng(seed)
        self.asked = [0, 0]

    def __call__(self, sets: Sequence[Places], *, whole: bool) -> list[list[float]]:
        self.asked[whole] += len(sets)
        turns = 11 if whole else 5
        speed = 1 + 0.05 * self.rng.standard_normal(turns)  # of the GPU, which all sets of a turn see
        found = []
        for places in sets:
            time = self.cost(places) * (1.0 if whole else 1 + self.bias(places))
            found.append(list(time * speed * (1 + self.noise * self.rng.standard_normal(turns))))
        return found


def chosen(
    cost: Callable[[Places], float],
    seed: int = 0,
    *,
    noise: float = 0.002,
    bias: Callable[[Places], float] = lambda places: 0.0,
) -> Places:
    return fastest_places(FORMS, FIRST, Clock(cost, noise, seed, bias))


@pytest.mark.parametrize("seed", range(30))
def test_the_faster_is_found_though_few_layers_say_otherwise(seed: int) -> None:
    """One in a hundred behind in few layers, two in a hundred ahead in a step."""
    found = chosen(lambda places: 98.0 if places["down"] == 1 else 100.0, seed, bias=lambda places: 0.03 * (places["down"] == 1))
    assert found == {"down": 1, "gate_up": 0}


@pytest.mark.parametrize("seed", range(30))
def test_of_equal_forms_the_first_is_taken(seed: int) -> None:
    """However the clock falls: two starts are to come to the same step."""
    assert chosen(lambda places: 100.0, seed) == FIRST


def test_forms_that_gain_together_alone_are_found() -> None:
    def cost(places: Places) -> float:
        changed = (places["down"] == 2) + (places["gate_up"] == 1)
        return {0: 100.0, 1: 101.0, 2: 97.0}[changed]

    assert chosen(cost) == {"down": 2, "gate_up": 1}


def test_what_is_clearly_slower_is_not_measured_again() -> None:
    clock = Clock(lambda places: 100.0 * (1 + places["down"]) * (1 + places["gate_up"]), 0.001, 1, lambda places: 0.0)
    assert fastest_places(FORMS, FIRST, clock) == FIRST
    assert clock.asked == [len(FORMS["down"]) + len(FORMS["gate_up"]) + 2, 0]


def test_close_forms_in_all_combinations_as_far_as_they_promise() -> None:
    shares = {"a": {0: 0.02, 1: 0.0, 3: CLOSE + 0.001}, "b": {2: 0.0, 4: 0.01}, "c": {0: 0.0, 1: 0.001}}
    sets = close_sets(shares)
    assert len(sets) == MOST_SETS
    assert sets[0] == {"a": 0, "b": 2, "c": 0}
    assert {"a": 1, "b": 2, "c": 0} in sets
    assert {"a": 1, "b": 4, "c": 1} in sets
    assert {"a": 0, "b": 4, "c": 1} not in sets
    assert all(places["a"] != 3 for places in sets)
    assert sets == sorted(sets, key=lambda places: list(places.values()))
    assert close_sets({"a": {0: 0.2, 1: 0.0}}) == [{"a": 1}]


def test_the_floor_is_what_equal_sets_differ_by() -> None:
    """A gain of 0.4 % in each turn is below what the twins differ by, 0.5 %; one of 1 % is above."""
    base = [100.0, 110.0, 90.0]
    twin = [time * 1.005 for time in base]
    noise, gain = [time * 0.996 for time in base], [time * 0.99 for time in base]
    assert first_of_fastest(twin, base, noise) == 0
    assert first_of_fastest(twin, base, noise, gain) == 2
    assert first_of_fastest(base, base, noise) == 1


def test_the_floor_is_no_less_than_what_turns_are_off_by() -> None:
    """Twins that are equal by luck, while each turn is off by 0.5 %."""
    off = [0.995, 1.0, 1.005]
    assert first_of_fastest(off, [1.0] * 3, [share * 0.992 for share in off]) == 0
    assert first_of_fastest(off, [1.0] * 3, [share * 0.98 for share in off]) == 1


@pytest.mark.parametrize(
    ("capability", "flow", "wide"),
    [((8, 0), False, False), ((8, 9), False, False), ((9, 0), True, True), ((10, 0), True, False), ((12, 0), False, False)],
)
def test_forms_are_for_gpus_that_have_what_they_need(capability: tuple[int, int], flow: bool, wide: bool) -> None:
    """Instructions, and from capability 12 on shared memory: a block has less than half of Hopper's there."""
    forms = forms_of("gate_up", 24576, 4096)
    assert {type(form) for form in forms} > {FlowLayout, WideLayout}
    for form in forms:
        wanted = {FlowLayout: flow, WideLayout: wide}.get(type(form), True)
        assert has_own_form(form, capability) is wanted, form
