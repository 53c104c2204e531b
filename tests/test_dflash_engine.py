"""The engine with DFlash drafters: greedy text whatever they draft, and drafts that are the reference's, by id, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import DraftgraphError
from runtime.sampling import SamplingParams
from tests.dflash_tapes import DraftOracle, check_drafts, taped_engine, texts_of
from tests.reference_dflash import ReferenceDrafter, speculate
from tests.reference_forward import reference_residuals
from tests.tiny_checkpoint import TinyShape
from tests.tiny_drafter import DrafterShape, TinyDrafter, write_tiny_drafter
from tests.tiny_engine import Arrival, Reference, check_outputs, drive, open_tiny, tiny_reference

MAX_MODEL_LEN = 64
NUM_CASES = 24
NUM_SLOW_CASES = 200
# Few likely ids, so that a random drafter is right now and then.
TARGET = TinyShape(seed=3, num_layers=3, attention_scale=0.3, num_likely_ids=5)
SLIDING, FULL = "sliding_attention", "full_attention"
SHAPES = {
    "v1": DrafterShape(taps=(0, 1)),
    "v1-mixed": DrafterShape(taps=(1, 0), layer_types=(SLIDING, FULL), sliding_window=6, is_causal=None, seed=1),
    "v2": DrafterShape(version=2, taps=(1,), seed=2),
    "v2-sliding": DrafterShape(version=2, taps=(0, 1), layer_types=(SLIDING,) * 2, sliding_window=5, seed=3),
}


def target_of_all(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """For a fixture: the target of every drafter of SHAPES."""
    return tiny_reference(tmp_path_factory.mktemp("target"), TARGET)


def drafters_of_all(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TinyDrafter, DraftOracle]]:
    """For a fixture: a drafter of each of SHAPES, and what says what it must draft."""
    folder: Path = tmp_path_factory.mktemp("drafters")
    written = {name: write_tiny_drafter(folder / name, TARGET, shape) for name, shape in SHAPES.items()}
    return {name: (drafter, DraftOracle(reference.model, drafter)) for name, drafter in written.items()}


reference = pytest.fixture(target_of_all, scope="module")
drafters = pytest.fixture(drafters_of_all, scope="module")


@pytest.fixture
def check(reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]]) -> Callable[..., int]:
    """Run arrivals with a drafter; text, finish reasons, drafts by id, races, leaks. Returns the drafts that were accepted."""

    counters: dict[str, int] = {}

    def run(name: str, k: int, arrivals: tuple[Arrival, ...], **settings: Any) -> int:
        drafter, oracle = drafters[name]
        with taped_engine(reference.model, drafter, k=k, **settings) as (engine, log):
            outputs = drive(engine, arrivals)
            check_outputs(reference, engine, arrivals, outputs)
            limit = engine.scheduler.max_model_len
            assert check_drafts(oracle, log, texts_of(outputs), k=k, max_model_len=limit) or len(outputs[0].token_ids) < 2
            counters.update(preemptions=engine.scheduler.counters.preemptions)
            return engine.scheduler.acceptance.num_accepted_tokens

    run.counters = counters  # type: ignore[attr-defined]
    return run


def arrival(length: int, max_tokens: int, step: int = 0, seed: int = 0, **params: Any) -> Arrival:
    rng = random.Random(seed * 1000 + length)
    prompt = tuple(rng.randrange(3, 24) for _ in range(length))
    return Arrival(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params), step)


# ---- the reference loop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_steps_are_those_of_the_reference_loop(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], name: str, k: int
) -> None:
    """Anchor, drafts and emitted tokens of every step, up to the end of the model length, where blocks get shorter."""
    drafter, model = drafters[name][0], reference.model
    tensors = model.tensors
    prompt = arrival(9, 1).prompt
    loop = ReferenceDrafter(drafter.config, drafter.tensors, tensors["model.embed_tokens.weight"], tensors["lm_head.weight"])
    text, steps = speculate(model.config, tensors, loop, prompt, k=k, max_tokens=100, max_model_len=40)
    assert min(step.margin for step in steps) > 1e-4, "the reference is not sure: choose another seed"
    with taped_engine(model, drafter, k=k, scheduler__max_model_len=40) as (engine, log):
        output = engine.generate([list(prompt)], SamplingParams(max_tokens=100, ignore_eos=True))[0]
        rows = list(log.rows())
    assert list(output.token_ids) == text
    drafted = [(length - 1, tuple(i for i in ids if i >= 0)) for _, samples, length, ids in rows if samples and length < 40]
    assert drafted == [(step.position, step.drafts) for step in steps]


# ---- batches, chunks, limits, schedules ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_batches(check: Callable[..., int], name: str, k: int, count: int) -> None:
    """More requests than slots, prompts longer than a step, arrivals while others run: chunks, mixed steps, reused slots."""
    arrivals = tuple(arrival(3 + 5 * number, 12 + number, step=number // 3, seed=number) for number in range(count))
    check(name, k, arrivals, scheduler__max_num_seqs=3, scheduler__max_num_batched_tokens=max(12, k + 1))


@pytest.mark.parametrize("name", SHAPES)
def test_fused_forms_in_a_batch(check: Callable[..., int], name: str) -> None:
    arrivals = tuple(arrival(3 + 5 * number, 12 + number, step=number // 3, seed=number) for number in range(4))
    sizes = {"scheduler__max_num_seqs": 3, "scheduler__max_num_batched_tokens": 12}
    check(name, 5, arrivals, graphs__ops="fused", schedule="random", **sizes)


def test_drafts_are_accepted_now_and_then(check: Callable[..., int]) -> None:
    """Without acceptance every step would be the same step."""
    assert sum(check(name, 7, (arrival(9, 40), arrival(4, 40, seed=5))) for name in SHAPES) > 20


@pytest.mark.parametrize("name", ["v1", "v2-sliding"])
def test_preemption(check: Callable[..., int], name: str) -> None:
    """A pool for hardly more than one request: others lose their pages, and their context is built anew from the first token."""
    arrivals = tuple(arrival(10 + number, 30, seed=number) for number in range(3))
    check(name, 3, arrivals, scheduler__num_blocks=18, scheduler__max_num_seqs=3)
    assert check.counters["preemptions"] > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("room", [1, 2, 4, 8, 9])
def test_the_end_of_the_model_length(check: Callable[..., int], k: int, room: int) -> None:
    for name in ("v1", "v2"):
        arrivals = (arrival(MAX_MODEL_LEN - room, 50), arrival(MAX_MODEL_LEN - 8, 50, seed=1))
        check(name, k, arrivals, scheduler__max_num_batched_tokens=64)


def draw_settings(rng: random.Random, k: int) -> dict[str, Any]:
    chunk = rng.choice([k + 1, k + 2, 2 * (k + 1), 12, 32, 64])
    block_size = rng.choice([1, 4, 16])
    settings: dict[str, Any] = {
        "schedule": rng.choice(["eager", "lazy", "random", "random"]),
        "graphs__mode": rng.choice(["graph", "graph", "eager"]),
        "mirror__policy": rng.choice(["discrete", "integrated"]),
        "runner__async": rng.random() < 0.7,
        "runner__steps_in_flight": rng.choice([2, 2, 3]),
        "scheduler__block_size": block_size,
        "scheduler__max_num_batched_tokens": chunk,
        "scheduler__max_num_seqs": rng.choice([1, 3, 4, 8]),
        "scheduler__num_blocks": rng.choice(["auto", -(-rng.randint(MAX_MODEL_LEN, MAX_MODEL_LEN + 40) // block_size)]),
    }
    if rng.random() < 0.3:
        settings |= {"graphs__buckets": [2, 5], "graphs__token_buckets": [3, 7, 31]}
    return settings


@pytest.mark.parametrize(
    "seed",
    [
        *range(NUM_CASES),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(NUM_CASES, NUM_CASES + NUM_SLOW_CASES)),
    ],
)
def test_whatever_the_batch_and_the_schedule(check: Callable[..., int], seed: int) -> None:
    rng = random.Random(seed)
    k = rng.choice([1, 3, 5, 7])
    settings = draw_settings(rng, k)
    chunk = settings["scheduler__max_num_batched_tokens"]
    lengths = [1, k, k + 1, k + 2, chunk + k + 1, 2 * chunk + k + 1, MAX_MODEL_LEN - k - 1, MAX_MODEL_LEN - 1]
    arrivals = tuple(
        arrival(
            min(rng.choice(lengths), MAX_MODEL_LEN - 1),
            rng.choice([1, 2, k + 1, 9, 25]),
            step=rng.choice([0, 0, 1, rng.randrange(20)]),
            seed=rng.randrange(100),
            stop_token_ids=tuple(rng.sample(range(5), rng.choice([0, 0, 1]))),
        )
        for _ in range(rng.choice([1, 3, 4, 8]))
    )
    check(rng.choice(list(SHAPES)), k, arrivals, seed=seed, **settings)


# ---- the cache -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v1-mixed", "v2-sliding"])
def test_what_was_rejected_is_never_read_again(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], name: str
) -> None:
    """NaN after every step in each key and value, of target and drafter, that no committed token gave: nothing changes."""
    drafter, oracle = drafters[name]
    arrivals = tuple(arrival(3 + 5 * number, 16 - number, step=2 * number, seed=number) for number in range(4))
    with taped_engine(reference.model, drafter, k=3, runner__async=False, scheduler__max_num_batched_tokens=8) as (engine, log):
        runner, device, step, rejected = log.runner, log.runner.device, engine.step, 0
        caches = [cache for layer in runner._target.model.layers for cache in (layer.k_cache, layer.v_cache)]
        caches += [cache for layer in runner._proposer.arrays.layers for cache in (layer.k_cache, layer.v_cache)]

        def step_and_poison() -> Any:
            nonlocal rejected
            events, committed = step(), np.zeros(caches[0].shape[:2], bool)
            tables, computed = device.download(runner._state.block_tables), device.download(runner._state.num_computed)
            for request in engine.scheduler._queue.running:
                at = np.arange(computed[request.slot])
                committed[tables[request.slot][at // committed.shape[1]], at % committed.shape[1]] = True
            for cache in caches:
                values = device.download(cache)
                rejected += int(np.isfinite(values[~committed]).any())
                values[~committed] = np.nan
                device.upload(cache, values)
            return events

        engine.step = step_and_poison  # type: ignore[method-assign]
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
        assert check_drafts(oracle, log, texts_of(outputs), k=3, max_model_len=engine.scheduler.max_model_len) > 20
    assert rejected > 20, "nothing was rejected: nothing was poisoned that a step had written"


@pytest.mark.parametrize("name", ["v1-mixed", "v2"])
def test_pages_equal_a_rebuild_after_every_step(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], name: str
) -> None:
    """Whatever was accepted, rejected or chunked: the cache of a slot is what its committed tokens give, computed from scratch."""
    drafter, model = drafters[name][0], reference.model
    tensors = model.tensors
    oracle = ReferenceDrafter(drafter.config, drafter.tensors, tensors["model.embed_tokens.weight"], tensors["lm_head.weight"])
    with taped_engine(model, drafter, k=3, runner__async=False, scheduler__max_num_batched_tokens=8) as (engine, log):
        state, device, cache = log.runner._state, log.runner.device, log.runner._proposer.arrays.cache
        for number in range(3):
            engine.submit(list(arrival(4 + 7 * number, 1, seed=number).prompt), arrival(1, 15).params)
        checked = 0
        while engine.has_unfinished:
            engine.step()
            for row in log.plans[-1].rows:
                if device.download(state.finished)[row.slot]:
                    continue
                computed = int(device.download(state.num_computed)[row.slot])
                text = device.download(state.history)[row.slot, :computed].tolist()
                wanted = oracle.context(oracle.features(reference_residuals(model.config, tensors, text)))
                at = np.arange(computed)
                blocks = device.download(state.block_tables)[row.slot][at // 4]
                for layer, (keys, values) in zip(device.download(cache), wanted, strict=True):
                    np.testing.assert_allclose(layer[0, blocks, at % 4], keys, rtol=1e-4, atol=1e-5)
                    np.testing.assert_allclose(layer[1, blocks, at % 4], values, rtol=1e-4, atol=1e-5)
                    checked += 1
    assert checked > 40


def test_a_steady_step_waits_for_one_event_and_downloads_nothing_else(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]]
) -> None:
    """Against the n-gram proposer: as many copies to the host, and no synchronisation of a stream in either."""
    counts = []
    for settings in ({}, {"speculator__method": "dflash", "speculator__draft_source": str(drafters["v2"][0].path)}):
        with open_tiny(reference.model.path, k=3, scheduler__max_num_seqs=1, **settings) as engine:
            device: Any = engine.runner.device  # type: ignore[attr-defined]
            engine.submit(list(arrival(6, 1).prompt), arrival(1, 40).params)
            for _ in range(4):
                engine.step()
            before = waits_and_downloads(device)
            for _ in range(5):
                engine.step()
            counts.append([now - then for now, then in zip(waits_and_downloads(device), before, strict=True)])
    assert counts[0] == counts[1]
    assert counts[1][0] == 0


def waits_and_downloads(device: Any) -> tuple[int, int, int]:
    counters = device.counters
    return counters.stream_synchronizes, counters.copies_by_kind["d2h"], counters.event_synchronizes


def test_untapped_targets_launch_what_they_launched_before(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]]
) -> None:
    """Taps add one launch a tapped block to the target's graphs, the drafter its products beside the end of the step, and nothing
    else."""
    nodes = []
    for settings in ({}, {"speculator__method": "dflash", "speculator__draft_source": str(drafters["v1"][0].path)}):
        with open_tiny(reference.model.path, **settings) as engine:
            library = engine.runner.library  # type: ignore[attr-defined]
            steps = {key: trace for key, trace in library.traces.items() if key.family in ("mixed", "decode", "verify")}
            nodes.append({str(key): [node.name for node in trace.nodes] for key, trace in steps.items()})
    plain, tapped = nodes
    for key, names in plain.items():
        end = names.index("accept_greedy")
        assert [name for name in tapped[key] if name != "tap"] == [*names[:end], "matmul", "rms_norm", "matmul", *names[end:]]
        assert tapped[key].count("tap") == 2


# ---- configuration -------------------------------------------------------------------------------------------------


def test_info_shows_the_drafter(reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]]) -> None:
    path = str(drafters["v2-sliding"][0].path)
    with open_tiny(reference.model.path, speculator__method="dflash", speculator__draft_source=path) as engine:
        info = engine.info()
    shown = info["speculator"]["drafter"]
    assert (shown["architecture"], shown["layers"], shown["target_layer_ids"]) == ("DFlash2", 2, [0, 1])
    assert shown["attention"] == ["both ways, window 5"] * 2
    assert info["scheduler"]["draft_kv_cache_bytes"] == 4 * 2 * 2 * 3 * 8 * 4 * info["scheduler"]["num_blocks"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"speculator__draft_source": None}, r"speculator\.draft_source: missing; method = dflash needs"),
        ({"speculator__draft_source": "/nowhere/at/all"}, r"speculator\.draft_source = /nowhere/at/all: no such file or folder"),
        ({"k": 8}, "block_size = 8: drafts at most 7 tokens"),
    ],
)
def test_mistakes_of_a_configuration(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], settings: dict[str, Any], text: str
) -> None:
    base = {"speculator__method": "dflash", "speculator__draft_source": str(drafters["v1"][0].path)}
    with pytest.raises(DraftgraphError, match=text):
        open_tiny(reference.model.path, **(base | settings))


def test_a_drafter_of_another_target_is_refused(reference: Reference, tmp_path: Path) -> None:
    other = write_tiny_drafter(tmp_path, replace(TARGET, num_layers=9), DrafterShape(taps=(1, 5)))
    with pytest.raises(DraftgraphError, match=r"(?s)num_target_layers = 9: the target has 3.*\[5\] outside 0..1"):
        open_tiny(reference.model.path, speculator__method="dflash", speculator__draft_source=str(other.path))


def test_without_drafts_no_drafter_is_opened(reference: Reference) -> None:
    with open_tiny(reference.model.path, k=0, speculator__method="dflash", speculator__draft_source="/nowhere") as engine:
        keys: list[Any] = engine.runner.keys()  # type: ignore[attr-defined]
    assert all(key.family != "propose" for key in keys)
