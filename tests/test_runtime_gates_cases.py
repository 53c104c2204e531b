"""Cases of the gates: their texts, the matrix, the emission that is computed beforehand."""

from __future__ import annotations

import itertools

import pytest

from runtime.errors import ConfigError, DraftgraphError
from runtime.gates.case import AXES, Case
from runtime.gates.emit_budget import computed_emission, emission_cases, measure_emission
from runtime.gates.gates import default_cases
from runtime.gates.matrix import full, pairs_of, pairwise, sampled
from runtime.gates.tapes import read_tape
from runtime.gates.toy_engine import open_toy
from runtime.sampling import SamplingParams
from tests.gate_reports import EXECUTOR, SPECULATIVE


def test_the_text_of_a_case_reproduces_it() -> None:
    for case in (*sampled(50), SPECULATIVE):
        assert Case.parse(str(case)) == case


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k=2", "case: k = 2: must be one of 0, 1, 3, 5, 7"),
        ("size=2", "case: size = 2: unknown name; names are speculator"),
        ("q=3", "case: q = 3: unknown name; names are speculator, k,"),
        ("batches=3", "case: batches = 3: unknown name; did you mean batch?"),
        ("speculator", "case: speculator: must be name=value, as in k=3"),
        ("k=3 batch=4 k=5", "case: k is given twice; leave one of them out"),
        ("seed=-1", "case: seed = -1: must be a whole number, 0 or above"),
        ("seed=x", "case: seed = x: must be a whole number"),
        ("speculator=none k=3", "case: speculator = none with k = 3"),
    ],
)
def test_cases_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Case.parse(text)
    assert message in str(error.value)


def test_pairwise_holds_every_possible_pair() -> None:
    covered = {pair for case in pairwise() for pair in pairs_of(case)}
    for (left, lefts), (right, rights) in itertools.combinations(AXES.items(), 2):
        for a, b in itertools.product(lefts, rights):
            values = {left: a, right: b}
            possible = values.keys() != {"speculator", "k"} or Case(**values).is_possible
            # Without drafts there is no number of them that could change.
            without_drafts = values.get("speculator") == "none" or values.get("k") == 0
            possible = possible and not (without_drafts and values.get("lengths") == "changing")
            assert ((left, a, right, b) in covered) == possible, (left, a, right, b)
    assert len(pairwise()) < 80


def test_the_full_matrix_is_thousands_and_has_no_twins() -> None:
    cases = list(full())
    assert len(cases) == len(set(cases)) > 5000
    assert all(case.is_possible for case in cases)
    assert {case.prompt for case in cases} == set(AXES["prompt"])


def test_the_default_is_the_same_every_time_and_has_twenty_random_schedules() -> None:
    assert default_cases("G1") == default_cases("G1")
    assert sum(case.schedule == "random" and case.seed < 20 for case in default_cases("G2")) >= 20


# --- emit counts ---------------------------------------------------------------------------------------------------------------


def test_computed_emission_by_hand() -> None:
    # prompt of 2, then drafts at positions 3, 4, 5...: right right wrong | right right wrong ...
    script = [0, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    assert computed_emission(script, 2, 3, steps=1) == 1
    assert computed_emission(script, 2, 3, steps=2) == 1 + 3
    assert computed_emission(script, 2, 3, steps=3) == 1 + 3 + 3
    assert computed_emission(script, 2, 1, steps=3) == 1 + 2 + 1
    assert computed_emission([1], 5, 4, steps=3) == 1 + 5 + 5


@pytest.mark.parametrize("case", emission_cases()[::7], ids=str)
def test_emission_is_what_the_script_says(case: Case) -> None:
    emission = measure_emission(case, EXECUTOR)
    assert emission.emitted == emission.computed > 0


# --- tapes ---------------------------------------------------------------------------------------------------------------------


def test_a_tape_that_ran_over_is_refused() -> None:
    toy = open_toy(SPECULATIVE.options(tape_steps=2), EXECUTOR)
    toy.engine.generate([[1, 2, 3]], SamplingParams(max_tokens=20))
    assert toy.tapes is not None
    with pytest.raises(DraftgraphError, match=r"tape_fed: .* records on a tape of 2"):
        read_tape(toy.device, toy.tapes.fed)
    toy.engine.close()


def test_without_tapes_a_step_has_no_node_more() -> None:
    plain, taped = (open_toy(SPECULATIVE.options(tape_steps=steps), EXECUTOR) for steps in (0, 8))
    for key, graph in plain.runner.library.graphs.items():
        extra = 1 if key.family.value == "propose" else 2
        assert taped.runner.library.graphs[key].num_nodes == graph.num_nodes + extra
    plain.engine.close()
    taped.engine.close()
