"""Hazards that no other file shows: each test here was written because a mutant (tests/mutants) survived all the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from graphs.cpu_executor import CpuExecutor
from kernels import oracle_step as oracle
from kernels.combine import check_arguments, combine
from kernels.lang import SIMULATED
from kernels.publish import OUTCOME_FIELDS, publish
from runtime.gates.toy_engine import ToyEngine, ToyOptions, open_toy
from runtime.mirror_errors import StaleReadError
from runtime.plan import Admission, BlockWrite, ScheduledRow, StepPlan
from runtime.sampling import SamplingParams
from tests.kernel_cases import Launch, ints, launches, live, untouched
from tests.plan_executor import Loop, always

EXECUTOR = CpuExecutor()
every_launch = launches(*([(1, 1), (1, 3), (2, 32)] if SIMULATED else []))


# Kernels


@every_launch
def test_publish_is_its_oracle(launch: Launch) -> None:
    """Three live rows of four, slots in another order, one of them outside; the pad's outcome stays as it is. Of the ids that are
    none only emitted ones are reported, and replaced: not those behind them, nor those of the pad."""
    mapping = ints(2, 0, 5, 1)
    args = {
        "outcome": untouched(1, 4, OUTCOME_FIELDS + 3, dtype=np.int32),
        "sampled": ints([40, -1, -1], [41, -1, -1], [-1, -1, -1], [-1, 42, 43]),
        "num_sampled": ints(1, 3, 0, 2),
        "num_drafts": ints(3, 4, 5, 6),
        "finished": ints(0, 1, 2),
        "idx_mapping": mapping,
        "num_requests": live(3),
    }
    inputs = (args[name] for name in ("outcome", "sampled", "num_sampled", "num_drafts", "finished"))
    outcome, sampled = oracle.publish(*inputs, mapping[:3])
    assert outcome[0, :3].tolist() == [[1, 3, 2, 0, 40, -1, -1], [3, 4, 0, 2, 41, 0, 0], [0, 5, 0, 0, -1, -1, -1]]
    launch.check(publish, args, {"outcome": outcome, "sampled": sampled})


@every_launch
@pytest.mark.parametrize(
    ("seq_len", "written"), [(9, [200, 201, 202]), (10, [200, 41, 42]), (11, [200, 41, 42]), (12, [777, 41, 42])]
)
def test_combine_leaves_the_last_chunk_of_a_prompt_alone(launch: Launch, seq_len: int, written: list[int]) -> None:
    """A prompt of nine. A row that ends inside it, or just at its end, stays prompt even where it carries drafts."""
    args = {
        "input_ids": ints(200, 201, 202),
        "logits_indices": untouched(3, dtype=np.int32),
        "idx_mapping": ints(0),
        "last_sampled": ints(777),
        "query_start_loc": ints(0, 3),
        "seq_lens": ints(seq_len),
        "prefill_len": ints(9),
        "draft_tokens": ints([41, 42]),
        "cu_num_logits": ints(0, 3),
        "bonus": 1,
        "num_requests": live(1),
    }
    launch.check(combine, args, {"input_ids": ints(*written), "logits_indices": ints(0, 1, 2)})


@pytest.mark.parametrize("bonus", [-1, 2])
def test_a_bonus_that_is_neither_one_nor_zero_is_refused_as_such(bonus: int) -> None:
    """Two logits rows hold two of them: nothing else about the step is wrong."""
    with pytest.raises(ValueError, match=f"^bonus = {bonus}: a logits row holds"):
        check_arguments(cu_num_logits=[0, 2], query_start_loc=[0, 2], idx_mapping=[0], draft_shape=(1, 4), num_slots=1, bonus=bonus)


# The runner, over the toy target


@pytest.fixture
def toy() -> Iterator[ToyEngine]:
    """Two slots, three drafts, right now and then; work runs when somebody waits for it."""
    options = ToyOptions(
        num_slots=2, k=3, max_model_len=32, max_num_batched_tokens=16, num_blocks=16, script=((1, 1, 0, 1, 0),) * 2
    )
    opened = open_toy(options, EXECUTOR)
    yield opened
    assert opened.device.races == []
    opened.engine.close()


def prefill(step: int, slot: int, prompt: tuple[int, ...], blocks: tuple[int, ...], **limits: Any) -> StepPlan:
    """A plan that admits one request and runs its whole prompt."""
    params = SamplingParams(max_tokens=8, min_tokens=limits.get("min_tokens", 0))
    admission = Admission(f"r{step}", slot, step + 1, prompt, limits.get("prompt_len", len(prompt)), len(prompt) + 8, params)
    row = ScheduledRow(f"r{step}", step + 1, slot, len(prompt), 0, is_prefilling=True, samples=True, start_upper=0)
    writes = tuple(BlockWrite(slot, column, block) for column, block in enumerate(blocks))
    return StepPlan(step, (row,), (admission,), writes, len(prompt), None)


def test_the_outcome_travels_beside_the_drafts(toy: ToyEngine) -> None:
    """It is carried by the copy stream, and whoever collects it does not wait for the drafts that are proposed behind it."""
    outcome = toy.runner.launch(prefill(0, 0, (5, 6, 7), (3, 1)))
    carriers = {operation.origin.stream for operation in toy.device.queue._pending if "landing" in operation.origin.label}
    assert carriers == {"copy"}
    assert list(outcome.collect().num_sampled) == [1]
    left = [operation.origin.label for operation in toy.device.queue._pending]
    assert left
    assert all("propose" in label for label in left)


def test_a_slot_that_changes_hands_keeps_no_block(toy: ToyEngine) -> None:
    for plan in (prefill(0, 1, (5, 6, 7, 8, 9), (3, 1, 7)), prefill(1, 1, (9, 8), (2,))):
        toy.runner.launch(plan).collect()
    tables = toy.device.download(toy.runner.buffers.state.block_tables)
    assert tables[1].tolist() == [2] + [-1] * 7


def test_an_admission_counts_min_tokens_from_the_prompt(toy: ToyEngine) -> None:
    """After a preemption the tokens that were returned before are part of what is prefilled, and of min_tokens as well."""
    toy.runner.launch(prefill(0, 1, (5, 6, 7, 8, 9), (3, 1), prompt_len=2, min_tokens=4)).collect()
    assert toy.device.download(toy.runner.buffers.state.min_total_len)[1] == 6
    assert toy.device.download(toy.runner.buffers.state.prefill_len)[1] == 5


def test_a_plan_that_the_combine_cannot_refuse_is_not_staged(toy: ToyEngine) -> None:
    plan = prefill(0, 0, (5, 6, 7), (3, 1))
    row = ScheduledRow("r0", 1, 0, 3, num_drafts=3, is_prefilling=True, samples=True, start_upper=0)
    uploads = toy.runner.buffers.inputs.counters.uploads
    with pytest.raises(ValueError, match="row 0 asks for 4 logits rows of 3 tokens"):
        toy.runner.launch(StepPlan(0, (row,), plan.admissions, plan.block_writes, 3, None))
    assert toy.runner.buffers.inputs.counters.uploads == uploads


def test_a_step_graph_does_not_run_on_inputs_that_were_not_uploaded(toy: ToyEngine) -> None:
    toy.runner.launch(prefill(0, 0, (5, 6, 7), (3, 1))).collect()
    toy.runner.table["cu_num_logits"].write_host(0)
    key = next(key for key in toy.runner.library.graphs if key.query_len)
    with pytest.raises(StaleReadError, match=rf"cu_num_logits on the device by {key.family.value}.*upload\(stream\)"):
        toy.runner.library.launch(key)


@pytest.mark.parametrize("name", ["history", "num_computed", "total_len", "last_sampled", "draft_tokens", "input_token_ids"])
def test_the_host_cannot_read_what_a_step_has_overtaken(toy: ToyEngine, name: str) -> None:
    """Not even where it was up to date before the step: what it has is older by one version, and the error says who wrote."""
    toy.runner.table[name].download(toy.runner.compute).take()
    toy.runner.table[name].read_host()
    plan = prefill(0, 0, (5, 6, 7), (3, 1))
    toy.runner.launch(StepPlan(0, plan.rows, (), plan.block_writes, 3, None)).collect()
    writer = "propose" if name == "draft_tokens" else "mixed"
    with pytest.raises(StaleReadError, match=rf"stale read of {name} on the host.*written by {writer}"):
        toy.runner.table[name].read_host()


def test_every_array_by_slot_has_a_row_for_every_slot(toy: ToyEngine) -> None:
    """The pools are sized by slots, not by live rows: no length reaches a kernel that could refuse a slot beyond them."""
    state = toy.runner.buffers.state
    arrays = {**vars(state), **vars(state.sampling)}
    rows = {name: array.shape[0] for name, array in arrays.items() if name != "sampling"}
    assert rows == dict.fromkeys(rows, toy.options.num_slots)


def test_every_uniform_graph_holds_whole_rows(toy: ToyEngine) -> None:
    uniform = [key for key in toy.runner.library.graphs if key.query_len]
    assert [(key.num_requests, key.query_len, key.num_tokens) for key in uniform] == [(2, 4, 8), (1, 4, 4)]


# The scheduler


def test_rows_never_start_beyond_the_last_position() -> None:
    """Everything in flight may be accepted, but a request cannot outgrow its limit: no block is reserved behind that."""
    loop = Loop(k=3, block_size=1, script=always("A"))
    request = loop.add("a", [4, 5], max_tokens=12)
    while (plan := loop.launch()) is not None:
        assert plan.rows[0].start_upper <= 13
    assert request.num_scheduled > 14
    assert len(loop.scheduler.blocks.table("a")) <= 13 + 2 * 4
    loop.run()
