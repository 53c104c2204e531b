"""Runner: which graph a step takes, what is staged for it, and what an admission leaves of a slot's former owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.key import Family, GraphKey
from runtime.engine import Engine
from runtime.runner import Runner
from runtime.sampling import SamplingParams
from tests.tiny_engine import EOS, LOOPING, open_tiny, tiny_reference

OPEN = SamplingParams(max_tokens=12, ignore_eos=True)
PROMPT = [5, 6, 7, 5, 6, 7, 5]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reference(tmp_path_factory.mktemp("looping"), LOOPING).model.path


@pytest.fixture
def opened(model: Path) -> Iterator[Callable[..., tuple[Engine, Runner]]]:
    engines: list[Engine] = []

    def open_one(**settings: Any) -> tuple[Engine, Runner]:
        engine = open_tiny(model, **({"runner__async": False} | settings))
        engines.append(engine)
        assert isinstance(engine.runner, Runner)
        return engine, engine.runner

    yield open_one
    for engine in engines:
        engine.close()


def launched(runner: Runner) -> list[GraphKey]:
    """Every key from now on, in the order of its launch."""
    keys: list[GraphKey] = []
    launch = runner.library.launch

    def note(key: GraphKey) -> None:
        keys.append(key)
        launch(key)

    runner.library.launch = note  # type: ignore[method-assign]
    return keys


# ---- graphs -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_captured_sizes_are_whole_requests_and_each_once(opened: Callable[..., tuple[Engine, Runner]], k: int) -> None:
    """B14."""
    _, runner = opened(k=k, scheduler__max_num_seqs=8, graphs__buckets=[1, 2, 4, 8, 2, 64])
    keys = runner.keys()
    assert len(keys) == len(set(keys))
    # Who asks for nothing but greedy decoding does not wait for graphs that draw.
    assert set(runner.library.graphs) == {key for key in keys if not key.on_demand}
    runner.capture()
    assert set(runner.library.graphs) == set(keys)
    of_steps = {key for key in keys if key.family in (Family.MIXED, Family.DECODE, Family.VERIFY)}
    assert {replace(key, sampled=True) for key in of_steps} <= of_steps
    assert [key.num_requests for key in keys if key.family is Family.LOGPROBS] == [1, 2, 4, 8]
    uniform = [key for key in keys if key.family in (Family.DECODE, Family.VERIFY) and not key.sampled]
    assert [(key.num_requests, key.num_tokens) for key in uniform] == [(rows, rows * (1 + k)) for rows in (1, 2, 4, 8)]
    proposals = [key.num_requests for key in keys if key.family is Family.PROPOSE]
    assert proposals == ([1, 2, 4, 8] if k else [])
    # B16: what is captured has the nodes of a fresh recording, whatever was captured before it.
    for key, graph in runner.library.graphs.items():
        assert graph.num_nodes == len(runner.library.traces[key].nodes) == graph.executable.num_nodes  # type: ignore[union-attr]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 12, 16, 28])
def test_a_step_that_prefills_never_takes_the_graph_of_verify_rows(
    opened: Callable[..., tuple[Engine, Runner]], length: int
) -> None:
    """B13: a prompt of exactly 1 + k = 4 tokens, or a last chunk of 4, has the shape of a verify row."""
    engine, runner = opened(k=3, scheduler__max_num_batched_tokens=12)
    keys = launched(runner)
    engine.generate([3 + i % 20 for i in range(length)], OPEN)
    targets = [key for key in keys if key.family is not Family.PROPOSE]
    chunks = -(-length // 12)
    assert [key.family for key in targets[:chunks]] == [Family.MIXED] * chunks
    assert {key.family for key in targets[chunks:]} == {Family.VERIFY}
    # Every step proposes, the one that ends a prefill too.
    assert [key.family is Family.PROPOSE for key in keys] == [False, True] * len(targets)


def test_the_first_decode_step_verifies_drafts(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    """Every likely id stands in the prompt, so that the first token, whatever it is, has an earlier occurrence."""
    engine, runner = opened(k=3)
    generation = engine.submit([*range(24), 3, 4, 5], OPEN)
    engine.step()
    first = generation.request.output_token_ids[0]
    assert runner.device.download(runner._state.draft_tokens)[0, 0] == first + 1
    engine.step()
    assert generation.request.acceptance.num_drafts == 1


def test_a_short_batch_takes_the_smallest_bucket_that_holds_it(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    engine, runner = opened(k=1, scheduler__max_num_seqs=8, graphs__buckets=[2, 5])
    keys = launched(runner)
    for prompt in ([5], [6, 7], [8]):
        engine.submit(prompt, OPEN)
    while engine.has_unfinished:
        engine.step()
    assert {key.num_requests for key in keys if key.family is Family.VERIFY} <= {2, 5}
    assert GraphKey.uniform(5, 2) in keys


# ---- staging ------------------------------------------------------------------------------------------------------------------


def test_every_element_is_staged_at_every_step(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    """Rows of an earlier, larger batch must not show behind a smaller one: pads are slot -1 and empty."""
    engine, runner = opened(k=1, scheduler__max_num_seqs=4, poison=True)
    first = [engine.submit([5 + i], OPEN) for i in range(4)]
    engine.step()
    engine.step()
    for generation in first[1:]:
        engine.cancel(generation.request.request_id)
    engine.step()
    inputs = runner._step.inputs
    slot = first[0].request.slot
    assert runner.device.download(inputs.live).tolist() == [2, 1, 2]
    assert runner.device.download(inputs.idx_mapping).tolist() == [slot, -1, -1, -1]
    assert runner.device.download(inputs.query_start_loc).tolist() == [0, 2, 2, 2, 2]
    assert runner.device.download(inputs.cu_num_logits).tolist() == [0, 2, 2, 2, 2]


def test_an_admission_writes_every_field_of_its_slot_and_of_no_other(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    """B1: whatever the slot held. -7 stands for the former owner."""
    engine, runner = opened(k=3, scheduler__max_num_batched_tokens=4, scheduler__max_num_seqs=2)
    state, device = runner._state, runner.device
    arrays = {**vars(state), **vars(state.sampling)}
    names = [name for name in arrays if name not in ("block_tables", "sampling")]
    for name in names:
        array = arrays[name]
        device.upload(array, np.full(array.shape, -7, array.dtype))
    prompt = [3 + i for i in range(9)]
    engine.submit(prompt, SamplingParams(max_tokens=10, min_tokens=2, stop_token_ids=(20, EOS)))
    engine.step()  # four of nine tokens: nothing is emitted yet
    held = {name: device.download(arrays[name]) for name in names}
    expected: dict[str, Any] = {
        "num_computed": 4,
        "total_len": 9,
        "last_sampled": 0,
        "num_draft": 0,
        "finished": 0,
        "prefill_len": 9,
        "max_total_len": 19,
        "min_total_len": 11,
        "draft_tokens": [-1, -1, -1],
        "history": [*prompt, *[-1] * (64 - 9)],
        "stop_ids": [20, EOS, *[-1] * (held["stop_ids"].shape[1] - 2)],
        "temperature": 0.0,
        "seed": [0, 0],
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition": 1.0,
        "presence": 0.0,
        "frequency": 0.0,
        "num_logprobs": -1,
        "num_bias": 0,
        "num_bad": 0,
        "restricted": 0,
    }
    assert set(expected) == set(names)
    for name, values in held.items():
        assert values[0].tolist() == expected[name], name
        assert np.all(values[1] == -7), name


def test_a_slot_that_changes_hands_keeps_no_block_of_its_former_owner(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    engine, runner = opened(k=1, scheduler__max_num_seqs=1, scheduler__num_blocks=16)
    engine.generate([[5] * 40], SamplingParams(max_tokens=4, ignore_eos=True))
    tables = runner.device.download(runner._state.block_tables)
    assert np.count_nonzero(tables >= 0) >= 10
    generation = engine.submit([6], SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    tables = runner.device.download(runner._state.block_tables)
    table = engine.scheduler.blocks.table(generation.request.request_id)
    assert tables[0].tolist() == [*table, *[-1] * (16 - len(table))]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), [EOS]),
        (SamplingParams(ignore_eos=True), []),
        (SamplingParams(stop_token_ids=(9, 9, 4)), [9, 4, EOS]),
        (SamplingParams(stop_token_ids=(EOS, 9), ignore_eos=True), [EOS, 9]),
        (SamplingParams(stop_token_ids=tuple(range(100, 164))), [*range(100, 164), EOS]),
    ],
)
def test_stop_ids_of_a_request(opened: Callable[..., tuple[Engine, Runner]], params: SamplingParams, expected: list[int]) -> None:
    engine, runner = opened()
    engine.submit(PROMPT, params)
    engine.step()
    row = runner.device.download(runner._state.stop_ids)[0].tolist()
    assert row == [*expected, *[-1] * (len(row) - len(expected))]


# ---- life ---------------------------------------------------------------------------------------------------------------------


def test_an_outcome_is_collected_once(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    engine, runner = opened()
    engine.submit(PROMPT, OPEN)
    plan = engine.scheduler.schedule()
    assert plan is not None
    outcome = runner.launch(plan)
    result = outcome.collect()
    assert (len(result.sampled), list(result.num_sampled)) == (1, [1])
    with pytest.raises(Exception, match="collected before"):
        outcome.collect()
    engine.scheduler.update(plan, result)


def test_info_and_close(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    _, runner = opened(mirror__policy="integrated")
    info = runner.info()
    assert info["mirror_policy"].startswith("integrated")
    keys = runner.keys()
    assert len(info["graphs"]["captured"]) == sum(not key.on_demand for key in keys)
    assert info["memory_bytes"]["device"] > 0
    runner.close()
    runner.close()
    assert sum(runner.device.allocated_bytes().values()) == 0


def test_a_step_uploads_what_it_uses_and_not_room_for_every_block(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    """A pack of 4 slots and 16 blocks each has room for 64 writes; a decode step writes one at most for each row."""
    engine, runner = opened(scheduler__max_num_seqs=4)
    fixed = 4 * (3 + 4 + 5 + 5 + 1)
    assert runner.buffers.inputs.array.nbytes == fixed + 4 * 3 * 64
    for prompt in (PROMPT, PROMPT[:3]):
        engine.submit(prompt, OPEN)
    engine.step()
    while engine.has_unfinished:
        before = runner.buffers.inputs.counters.uploaded_bytes
        engine.step()
        assert runner.buffers.inputs.counters.uploaded_bytes - before <= fixed + 4 * 3 * 2


def test_an_admission_uploads_its_prompt_and_not_room_for_the_longest(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    engine, runner = opened()
    before = runner.buffers.admission.counters.uploaded_bytes
    engine.submit(PROMPT, OPEN)
    engine.step()
    admission = runner.buffers.admission
    assert len(PROMPT) == 7, "moved as eight: lengths are powers of two"
    assert admission.counters.uploaded_bytes - before == admission.array.nbytes - 4 * (64 - 8)


def test_a_step_like_the_one_before_uploads_nothing(opened: Callable[..., tuple[Engine, Runner]]) -> None:
    """The same rows, and no block to write: the device has it all, and the tags say so. Anything else is staged whole."""
    # Of four blocks two stay free, so that none is taken before a row needs it.
    engine, runner = opened(
        scheduler__max_num_seqs=2, scheduler__block_size=16, scheduler__num_blocks=4, speculator__method="none"
    )
    counters, tables = runner.buffers.inputs.counters, runner.table["block_tables"]
    alone, uploads = engine.submit(PROMPT, SamplingParams(max_tokens=40, ignore_eos=True)), []
    for step in range(14):
        if step == 12:
            engine.submit(PROMPT[:2], OPEN)
        before = counters.uploads
        engine.step()
        uploads.append(counters.uploads - before)
        assert runner.buffers.inputs["live"].state != "host newer"
        assert tables.num_diffs == 0
    # The prompt; the first decode row; the row that enters the second block, and the one behind it; the second prompt, its rows.
    assert [step for step, count in enumerate(uploads) if count] == [0, 1, 10, 11, 12, 13]
    assert alone.output is None
