"""What the tests of the step kernels share: launches, all shapes or one that hypothesis draws, and random states of slots."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from kernels import oracle_step as oracle
from kernels.advance import advance
from kernels.lang import SIMULATED
from kernels.slots import admit
from tests.kernel_cases import Launch, launches, untouched
from tests.step_cases import Ints, Step, partly_accepted

SHAPES = [(1, 1), (1, 3), (2, 32), (3, 2)]
SIMULATED_LAUNCHES = [Launch("simulator", grid, block) for grid, block in SHAPES] if SIMULATED else [Launch("cpu")]
every_launch = launches(*SHAPES)
launch_drawn = st.sampled_from([Launch("cpu"), *SIMULATED_LAUNCHES])
quick = settings(max_examples=40, deadline=None, derandomize=True)


def out(*shape: int) -> Ints:
    return untouched(*shape, dtype=np.int32)


def fed_step(step: Step) -> tuple[Ints, Ints, Ints]:
    """(input_ids, logits_indices, row_argmax) of a step after its combine, by the oracle."""
    mapping, query_start_loc, seq_lens, cu = step.live_rows("idx_mapping", "query_start_loc", "seq_lens", "cu_num_logits")
    slots = step.slots
    ids, indices = oracle.combine(
        step.input_ids(),
        out(step.logits_capacity),
        mapping,
        slots["last_sampled"],
        query_start_loc,
        seq_lens,
        slots["prefill_len"],
        slots["draft_tokens"],
        cu,
        1,
    )
    return ids, indices, partly_accepted(step, ids, indices)


ADVANCE_STATE = ("num_computed", "total_len", "last_sampled", "history", "finished")
ADVANCE_LIMITS = ("max_total_len", "min_total_len", "stop_ids")


def random_limits(step: Step, sampled: Ints, counts: Ints) -> None:
    """Stops and limits, of which many fall inside the emitted block."""
    slots, rng = step.slots, step.rng
    for row, slot in enumerate(step.live_rows("idx_mapping")[0]):
        emitted, total = sampled[row, : counts[row]], int(slots["total_len"][slot])
        ids = emitted[emitted >= 0]
        if len(ids) and rng.random() < 0.5:
            stops = rng.choice(ids, rng.integers(1, 4))
            slots["stop_ids"][slot, : len(stops)] = stops
        if rng.random() < 0.3:
            slots["max_total_len"][slot] = total + rng.integers(0, step.k + 2)
        if rng.random() < 0.3:
            slots["min_total_len"][slot] = total + rng.integers(0, step.k + 2)


def check_advance(step: Step, launch: Launch) -> dict[str, Ints]:
    """Returns the expected state."""
    ids, indices, argmax = fed_step(step)
    slots = step.slots
    mapping, query_start_loc, seq_lens, cu = step.live_rows("idx_mapping", "query_start_loc", "seq_lens", "cu_num_logits")
    sampled_live, walked, _ = oracle.accept_greedy(step.k + 1, argmax, ids, indices, cu, step.num_requests)
    num_sampled_live, num_rejected_live = oracle.sampled_rejected(walked, seq_lens, cu, mapping, slots["prefill_len"])
    random_limits(step, sampled_live, num_sampled_live)
    rows = len(step.rows["idx_mapping"])
    sampled, num_sampled, num_rejected = out(rows, step.k + 1), out(rows), out(rows)
    live_rows = slice(step.num_requests)
    sampled[live_rows], num_sampled[live_rows], num_rejected[live_rows] = sampled_live, num_sampled_live, num_rejected_live
    names = (*ADVANCE_STATE, *ADVANCE_LIMITS, "idx_mapping", "query_start_loc", "num_requests")
    args = {"sampled": sampled, "num_sampled": num_sampled, "num_rejected": num_rejected, **step.arguments(*names)}
    expected = oracle.advance(
        *(slots[name] for name in ADVANCE_STATE),
        sampled,
        num_sampled,
        num_rejected,
        mapping,
        query_start_loc,
        *(slots[name] for name in ADVANCE_LIMITS),
    )
    launch.check(advance, args, expected)
    for row, slot in enumerate(mapping):
        if num_sampled_live[row] and not slots["finished"][slot]:
            assert expected["num_computed"][slot] == expected["total_len"][slot] - 1
    return expected


ADMITTED = sorted(admit.writes)


def poisoned_state() -> dict[str, Ints]:
    widths = {"draft_tokens": 3, "stop_ids": 2, "history": 9}
    return {name: out(4, widths[name]) if name in widths else out(4) for name in ADMITTED}
