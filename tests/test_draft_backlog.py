"""Rows that wait until a drafter's context is brought up to date: drafts are those of a context that keeps up with every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs import cpu_matmul
from graphs.key import Family, GraphKey
from graphs.library import StepGraph
from runtime.context_backlog import ContextBacklog
from runtime.draft_lengths import ScriptedLengths
from runtime.engine import Engine
from runtime.mirror_errors import StaleReadError
from runtime.sampling import SamplingParams
from runtime.speculators import dflash_upload, proposers
from runtime.speculators.dflash_weights import DraftCheckpoint
from runtime.step_buffers import StepSizes
from runtime.virtual_device import VirtualDevice
from tests.dflash_tapes import SURE, DraftLog, DraftOracle, check_drafts, taped_engine, texts_of
from tests.tiny_checkpoint import TinyShape
from tests.tiny_drafter import DrafterShape, TinyDrafter, write_tiny_drafter
from tests.tiny_engine import EXECUTOR, Arrival, Reference, check_outputs, drive, tiny_reference

K = 3
SLOTS = 4
CAPTURED = {1: K, 2: 2, 3: 0}
"""Lengths that have graphs; which of them a step takes is a table's choice."""

TARGET = TinyShape(seed=3, num_layers=3, attention_scale=0.3, num_likely_ids=5)
DRAFTERS = {
    "v1": DrafterShape(taps=(1, 0), layer_types=("sliding_attention", "full_attention"), sliding_window=6, is_causal=None, seed=1),
    "v2": DrafterShape(version=2, taps=(0, 1), seed=2),
}
NOW_AND_THEN = [K, 0, 0, 0, 2, K, 0, 0, K, 0, 0, 0, 0, 0, 2]
TABLES = {
    "seldom": ([0, 0, 0, 0, 0, 0, 0, K], 64),
    "with-room-for-three": (NOW_AND_THEN, 3),
    "with-room-for-one": ([0, 0, 0, K], 1),
}
"""Drafts of step 0, 1, 2, ... and again from the start, and how many decode steps may wait."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("target"), TARGET)


@pytest.fixture(scope="module")
def drafters(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TinyDrafter, DraftOracle]]:
    folder: Path = tmp_path_factory.mktemp("drafters")
    written = {name: write_tiny_drafter(folder / name, TARGET, shape) for name, shape in DRAFTERS.items()}
    return {name: (drafter, DraftOracle(reference.model, drafter)) for name, drafter in written.items()}


Opened = Callable[..., Any]


@pytest.fixture
def opened(reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], monkeypatch: pytest.MonkeyPatch) -> Opened:
    """An engine whose steps verify as many drafts as `table` says, and the log of what it drafts.

    depth: decode steps that may wait; 0: none, every step moves the context on.
    """

    @contextmanager
    def open_engine(name: str, table: Sequence[int], *, depth: int, **settings: Any) -> Iterator[tuple[Engine, DraftLog]]:
        monkeypatch.setattr(dflash_upload, "BACKLOG_ROWS", depth * settings.get("scheduler__max_num_seqs", SLOTS))
        allocate = dflash_upload.allocate_backlog if depth else lambda *arguments: None
        monkeypatch.setattr(proposers, "allocate_backlog", allocate)
        with taped_engine(
            reference.model, drafters[name][0], k=K, speculator__num_speculative_tokens=CAPTURED, **settings
        ) as (engine, log):
            engine.scheduler.lengths = ScriptedLengths(table)
            yield engine, log

    return open_engine


def arrivals_of(seed: int, count: int, longest: int) -> tuple[Arrival, ...]:
    """Prompts of ragged lengths, more of them than slots, some while others run, some of which end at a token."""
    rng = random.Random(seed)
    return tuple(
        Arrival(
            [rng.randrange(3, 24) for _ in range(rng.randint(1, longest))],
            SamplingParams(
                max_tokens=rng.choice([1, 14, 25, 40]),
                ignore_eos=True,
                stop_token_ids=tuple(rng.sample(range(5), rng.choice([0, 0, 1]))),
            ),
            step=rng.choice([0, 0, 3, rng.randrange(25)]),
        )
        for _ in range(count)
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "async": {},
    "sync": {"runner__async": False, "mirror__policy": "integrated"},
    "three-in-flight": {"runner__steps_in_flight": 3, "schedule": "random", "seed": 4, "graphs__mode": "eager"},
    "preempted": {"scheduler__num_blocks": 18, "schedule": "eager"},
    "rows-skip-steps": {"scheduler__max_num_batched_tokens": 9, "schedule": "random", "seed": 2},
    "odd-buckets": {"graphs__buckets": [2, 3], "graphs__token_buckets": [3, 7]},
    "fused": {"graphs__ops": "fused", "scheduler__block_size": 16},
}


# Each drafter with each table and with each of the settings, and each of these with each other.
PAIRS = [
    pytest.param(name, *TABLES[table], SETTINGS[how], id=f"{name}-{table}-{how}")
    for i, table in enumerate(TABLES)
    for j, how in enumerate(SETTINGS)
    for name in [list(DRAFTERS)[(i + j) % len(DRAFTERS)]]
]


@pytest.mark.parametrize(("name", "table", "depth", "settings"), PAIRS)
def test_drafts_are_those_of_a_context_that_keeps_up(
    opened: Opened,
    reference: Reference,
    drafters: dict[str, tuple[TinyDrafter, DraftOracle]],
    name: str,
    table: list[int],
    depth: int,
    settings: dict[str, Any],
) -> None:
    """By id and step by step, with the engine that moves the context on behind every step, and with the reference."""
    arrivals = arrivals_of(seed=len(table) + depth, count=9, longest=20)
    found, waited = [], []
    for waits in (depth, 0):
        with opened(name, table, depth=waits, **settings) as (engine, log):
            outputs = drive(engine, arrivals)
            check_outputs(reference, engine, arrivals, outputs)
            assert check_drafts(drafters[name][1], log, texts_of(outputs), k=K, max_model_len=engine.scheduler.max_model_len) > 5
            found.append(([plan.rows for plan in log.plans], list(log.rows())))
            paths = engine.runner.paths
            waited.append((paths.deferred, paths.catch_ups))
            assert paths.deferred + paths.proposals == len(log.plans)
    assert found[0] == found[1]
    (deferred, catch_ups), upkeep = waited
    assert upkeep == (0, 0)
    assert deferred >= catch_ups > 0
    assert depth == 1 or deferred > catch_ups, "nothing waited for longer than a step"


def test_where_nothing_waits_there_are_numbers(drafters: dict[str, tuple[TinyDrafter, DraftOracle]]) -> None:
    """All rows of a slot are multiplied, and what nobody kept is thrown away: fresh memory would overflow, loudly on CPUs."""
    device, spec = VirtualDevice(EXECUTOR, poison=True), DraftCheckpoint(drafters["v2"][0].path).spec
    kept = dflash_upload.allocate_backlog(device, spec, StepSizes(SLOTS, K, 64, 40, 4, 1))
    assert not device.download(kept.features).any()
    assert set(device.download(kept.cells).tolist()) == {-1}
    assert set(device.download(kept.positions).tolist()) == {0}


def test_sampled_texts_are_those_of_a_context_that_keeps_up(opened: Opened) -> None:
    """Drafts that are drawn, and graphs that are captured when the first such request is there."""
    texts = []
    for depth in (3, 0):
        with opened("v2", NOW_AND_THEN, depth=depth, schedule="random", seed=1) as (engine, log):
            arrivals = [
                Arrival(each.prompt, SamplingParams(max_tokens=20, temperature=0.8, seed=number, ignore_eos=True), each.step)
                for number, each in enumerate(arrivals_of(seed=8, count=6, longest=10))
            ]
            texts.append(([output.token_ids for output in drive(engine, arrivals)], list(log.rows())))
            assert (engine.runner.paths.deferred > 0) == (depth > 0)
            launched = engine.runner.library.launches
            assert any(key.sampled and key.defers for key in launched) == (depth > 0)
    assert texts[0] == texts[1]


def one_by_one(out: Any, x: Any, weight: Any) -> None:
    """A product whose rows do not hang on how many there are, as those of a library do in the last bit."""
    for row in range(len(x)):
        out[row] = weight @ x[row]


def test_pages_are_those_of_a_context_that_keeps_up(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, wherever something is drafted: each key and value in its place, none lost, and no row waits any more."""
    monkeypatch.setattr(cpu_matmul, "multiply", one_by_one)
    pages = []
    for depth in (5, 0):
        seen = []
        with opened("v2", NOW_AND_THEN, depth=depth, runner__async=False) as (engine, log):
            state, device, proposer = log.runner._state, log.runner.device, log.runner._proposer
            for arrival in arrivals_of(seed=5, count=4, longest=12):
                engine.submit(list(arrival.prompt), arrival.params)
            while engine.has_unfinished:
                engine.step()
                if not log.plans[-1].proposes:
                    continue
                if depth:
                    assert (device.download(proposer.backlog.arrays.cells) < 0).all(), "a row waits behind a step that drafts"
                cache, tables = device.download(proposer.arrays.cache), device.download(state.block_tables)
                computed, finished = device.download(state.num_computed), device.download(state.finished)
                for row in log.plans[-1].rows:
                    if not finished[row.slot]:
                        at = np.arange(computed[row.slot])
                        blocks = tables[row.slot][at // cache.shape[3]]
                        seen.append((log.plans[-1].step, row.request_id, cache[:, :, blocks, at % cache.shape[3]].copy()))
        pages.append(seen)
    assert len(pages[0]) > 20
    for waited, kept_up in zip(*pages, strict=True):
        assert waited[:2] == kept_up[:2]
        np.testing.assert_array_equal(waited[2], kept_up[2], err_msg=f"step {waited[0]}, {waited[1]}")


def test_a_cancelled_request_leaves_nothing_to_its_successor(
    opened: Opened, drafters: dict[str, tuple[TinyDrafter, DraftOracle]]
) -> None:
    """Its rows wait while another takes its slot and its pages."""
    rng = random.Random(1)
    with opened("v1", [0] * 9 + [K, K, K], depth=64, scheduler__max_num_seqs=2, scheduler__num_blocks=20) as (engine, log):
        generations = []
        for number in range(9):
            prompt = [rng.randrange(3, 24) for _ in range(5 + number)]
            generations.append(engine.submit(prompt, SamplingParams(max_tokens=30, ignore_eos=True)))
            for _ in range(4 + number % 4):
                engine.step()
            if number % 2 == 0:
                engine.cancel(generations[-1].request.request_id)
        while engine.has_unfinished:
            engine.step()
        outputs = [generation.output for generation in generations if generation.output is not None]
        texts = texts_of([output for output in outputs if output.finish_reason != "cancelled"])
        rows, checked, limit = log.rows(), 0, engine.scheduler.max_model_len
        for plan in log.plans:
            for _ in plan.rows:
                request_id, samples, num_tokens, ids = next(rows)
                text = texts.get(request_id, ())
                if plan.proposes and samples and num_tokens < len(text):
                    expected, margin = drafters["v1"][1].drafts(text, num_tokens, K, limit)
                    checked += 1
                    assert margin < SURE or ids == expected, f"step {plan.step}: {request_id} at {num_tokens} tokens"
    assert len(outputs) == 9 > len(texts) >= 3
    assert checked > 20


# ---- when it has to be ------------------------------------------------------------------------------------------------------


def plan_of(*epochs: int) -> Any:
    return SimpleNamespace(rows=[SimpleNamespace(epoch=epoch, slot=epoch % SLOTS) for epoch in epochs])


def waiting(*plans: Any, depth: int = 9) -> ContextBacklog:
    backlog = ContextBacklog(depth)
    for plan in plans:
        backlog.deferred(plan)
    return backlog


def test_nothing_waits_at_first() -> None:
    backlog = ContextBacklog(1)
    assert not backlog.must_catch_up(plan_of(1), defers=False)
    assert not backlog.must_catch_up(plan_of(1), defers=True)


def test_rows_wait_as_long_as_their_requests_only_decode() -> None:
    backlog = waiting(plan_of(1, 2), plan_of(1, 2))
    assert not backlog.must_catch_up(plan_of(2, 1), defers=True)
    assert not backlog.must_catch_up(plan_of(1, 2, 3), defers=True), "one more is nobody's successor"
    assert backlog.must_catch_up(plan_of(1, 2), defers=False), "a step that drafts, prefills, or verifies"


@pytest.mark.parametrize("rows", [(1,), (1, 6), (6, 5), ()], ids=str)
def test_a_request_that_is_missed_ends_the_wait(rows: tuple[int, ...]) -> None:
    """Its slot (6 takes that of 2) and its pages may be another's from that plan on."""
    assert waiting(plan_of(1, 2)).must_catch_up(plan_of(*rows), defers=True)


def test_no_more_steps_wait_than_have_room() -> None:
    assert not waiting(plan_of(1), plan_of(1), depth=3).must_catch_up(plan_of(1), defers=True)
    assert waiting(plan_of(1), plan_of(1), plan_of(1), depth=3).must_catch_up(plan_of(1), defers=True)


def test_slots_that_are_caught_up_with_are_those_whose_rows_wait() -> None:
    backlog = waiting(plan_of(2), plan_of(2, 1))
    assert (backlog.steps, backlog.slots) == (2, 3)
    backlog.caught_up()
    assert (backlog.steps, backlog.slots) == (0, 0)
    assert not backlog.must_catch_up(plan_of(7), defers=False)


def test_a_step_that_drafts_from_a_context_that_is_behind_is_refused() -> None:
    backlog = waiting(plan_of(1, 2))
    graphs = {
        key.family: StepGraph(key, frozenset(), frozenset(), 1, None)
        for key in (GraphKey.propose(2, 2), GraphKey.context(2, 8), GraphKey.catch_up(2, 9), GraphKey.uniform(2, 1, defers=True))
    }
    for family in (Family.CONTEXT, Family.CATCH_UP, Family.DECODE):
        backlog.before_launch(graphs[family])
    with pytest.raises(StaleReadError, match=r"stale read of the drafter's context by propose.*launch a catch up graph first"):
        backlog.before_launch(graphs[Family.PROPOSE])
    backlog.caught_up()
    backlog.before_launch(graphs[Family.PROPOSE])


def test_an_engine_that_forgets_to_catch_up_is_stopped(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a draft is made from a context that lacks rows, whoever forgot."""
    monkeypatch.setattr(ContextBacklog, "must_catch_up", lambda self, plan, *, defers: False)
    with opened("v1", [0, 0, 0, K], depth=9) as (engine, _), pytest.raises(StaleReadError, match="are kept and not in it"):
        drive(engine, arrivals_of(seed=1, count=2, longest=6))
