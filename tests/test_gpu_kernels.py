"""Step kernels against their oracles on random steps, on a GPU. The fixed cases of every kernel run there too: see kernel_cases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernel_cases import Launch, cuda_launches
from tests.step_cases import Step, steps
from tests.step_launches import SHAPES, check_advance
from tests.test_kernels_accept import check_accept
from tests.test_kernels_combine import check_combine
from tests.test_kernels_slots import check_ngram
from tests.test_kernels_step import check_begin, check_end, check_prepare

pytestmark = pytest.mark.gpu

drawn = st.sampled_from(cuda_launches(*SHAPES))
quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
CHECKS: dict[str, Any] = {
    "prepare": check_prepare,
    "combine": lambda step, launch: check_combine(step, launch, 1),
    "combine without bonus": lambda step, launch: check_combine(step, launch, 0),
    "accept": lambda step, launch: check_accept(step, launch, 1),
    "advance": check_advance,
    "begin": check_begin,
    "end": check_end,
}


@pytest.mark.parametrize("check", list(CHECKS))
@quick
@given(steps(), drawn)
def test_step_kernels(check: str, step: Step, launch: Launch) -> None:
    CHECKS[check](step, launch)


@quick
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=24), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sets(st.integers(0, 3), max_size=1),
    drawn,
)
def test_ngram(histories: list[list[int]], k: int, min_n: int, more: int, idle: set[int], launch: Launch) -> None:
    check_ngram(launch, histories, k, min_n, min_n + more, idle, set())
