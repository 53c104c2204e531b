"""Hazards that no other file shows: each test here was written because a mutant (tests/mutants) survived all the others."""

from __future__ import annotations

import numpy as np

from kernels import oracle_step as oracle
from kernels.lang import SIMULATED
from kernels.publish import OUTCOME_FIELDS, publish
from tests.kernel_cases import Launch, launches, live, untouched

every_launch = launches(*([(1, 1), (1, 3), (2, 32)] if SIMULATED else []))


@every_launch
def test_publish_is_its_oracle(launch: Launch) -> None:
    """Three live rows of four, slots in another order, one of them outside; the pad's outcome stays as it is."""
    mapping = np.array([2, 0, 5, 1], np.int32)
    args = {
        "outcome": untouched(1, 4, OUTCOME_FIELDS + 2, dtype=np.int32),
        "sampled": np.arange(8, dtype=np.int32).reshape(4, 2) + 40,
        "num_sampled": np.array([1, 2, 0, 2], np.int32),
        "num_drafts": np.array([3, 4, 5, 6], np.int32),
        "finished": np.array([0, 1, 2], np.int32),
        "idx_mapping": mapping,
        "num_requests": live(3),
    }
    inputs = (args[name] for name in ("outcome", "sampled", "num_sampled", "num_drafts", "finished"))
    launch.check(publish, args, {"outcome": oracle.publish(*inputs, mapping[:3])})
