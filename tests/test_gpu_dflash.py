"""DFlash and DFlash2 on a GPU: drafts of the reference by id, the steps of z-lab's loop, and greedy text whatever is drafted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.device import open_device
from runtime.draft_lengths import ScriptedLengths
from runtime.engine import Engine
from runtime.speculators import dflash_upload
from tests.dflash_tapes import DraftOracle, check_drafts, taped_engine, texts_of
from tests.test_dflash_engine import MAX_MODEL_LEN, SHAPES, TARGET, arrival, drafters_of_all, target_of_all
from tests.test_smollm2_dflash import CASES, DRAFTERS, PARAMS, drafter_path, tokens_per_step
from tests.tiny_drafter import TinyDrafter
from tests.tiny_engine import Arrival, Reference, check_idle, check_outputs, count_steady_steps, drive, open_tiny

pytestmark = pytest.mark.gpu

NAMES = [name for name in DRAFTERS if DRAFTERS[name] is not None]


reference = pytest.fixture(target_of_all, scope="module")
drafters = pytest.fixture(drafters_of_all, scope="module")


@pytest.mark.parametrize("settings", [{}, {"graphs__mode": "eager"}, {"mirror__policy": "integrated"}], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_drafts_are_those_of_the_reference(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], name: str, settings: dict[str, Any]
) -> None:
    """Ragged prompts in chunks, slots that are used again, ends of text: every draft of every step, by id, in float32."""
    drafter, oracle = drafters[name]
    arrivals = tuple(arrival(3 + 5 * number, 12 + number, step=number // 3, seed=number) for number in range(6))
    sizes = {"scheduler__max_num_seqs": 3, "scheduler__max_num_batched_tokens": 12}
    with taped_engine(
        reference.model, drafter, k=5, on=open_device("cuda", poison=True), device="cuda", **sizes, **settings
    ) as (engine, log):
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
        assert check_drafts(oracle, log, texts_of(outputs), k=5, max_model_len=MAX_MODEL_LEN) > 10


@pytest.mark.parametrize("name", SHAPES)
def test_drafts_behind_a_pause_are_those_of_the_reference(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of decode steps wait, three steps of them at most, and enter the context all at once."""
    monkeypatch.setattr(dflash_upload, "BACKLOG_ROWS", 9)
    drafter, oracle = drafters[name]
    arrivals = tuple(arrival(3 + 5 * number, 30 + number, step=number // 3, seed=number) for number in range(6))
    settings: dict[str, Any] = {"scheduler__max_num_seqs": 3, "speculator__num_speculative_tokens": {1: 3, 2: 0}}
    settings |= {"on": open_device("cuda", poison=True), "device": "cuda"}
    with taped_engine(reference.model, drafter, k=3, **settings) as (engine, log):
        engine.scheduler.lengths = ScriptedLengths([3, 0, 0, 0, 0, 0, 3, 3, 0, 0])
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
        assert check_drafts(oracle, log, texts_of(outputs), k=3, max_model_len=MAX_MODEL_LEN) > 10
        paths = log.runner.paths
        assert paths.deferred > paths.catch_ups > 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SHAPES)
def test_sixteen_bits_draft_much_as_float32_does(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], name: str, dtype: str
) -> None:
    """On the answers of the 16-bit engine itself: most drafts are the reference's, all of them ids of the vocabulary."""
    drafter, oracle = drafters[name]
    arrivals = tuple(arrival(5 + 6 * number, 25, seed=number) for number in range(3))
    with taped_engine(
        reference.model, drafter, k=3, on=open_device("cuda", poison=True), device="cuda", model__dtype=dtype
    ) as (engine, log):
        texts = texts_of(drive(engine, arrivals))
        same = total = 0
        for request, samples, num_tokens, ids in log.rows():
            if not samples or num_tokens == len(texts[request]):
                continue
            expected, _ = oracle.drafts(texts[request], num_tokens, 3, MAX_MODEL_LEN)
            assert all(0 <= i < TARGET.vocab_size or i == -1 for i in ids)
            same += sum(now == wanted for now, wanted in zip(ids, expected, strict=True))
            total += len(ids)
        assert same > (0.9 if dtype == "float16" else 0.6) * total, f"{same} of {total} drafts"


def test_a_steady_step_waits_for_one_event_and_no_stream(
    reference: Reference, drafters: dict[str, tuple[TinyDrafter, DraftOracle]], record_property: Any
) -> None:
    settings: dict[str, Any] = {"speculator__method": "dflash", "speculator__draft_source": str(drafters["v2"][0].path)}
    with open_tiny(reference.model.path, k=3, on=open_device("cuda", poison=True), device="cuda", **settings) as engine:
        engine.submit(list(arrival(6, 1).prompt), arrival(1, 40).params)
        count_steady_steps(engine)


# ---- trained drafters ------------------------------------------------------------------------------------------------


def open_smollm2(target: Path, drafter: str | None, **settings: Any) -> Engine:
    speculator = {"method": "dflash", "draft_source": drafter, "num_speculative_tokens": 7} if drafter else {"method": "none"}
    return Engine.from_config(
        {},
        model__source=str(target),
        device="cuda",
        scheduler={"max_num_seqs": 4, "max_model_len": 320, "max_num_batched_tokens": 128},
        speculator=speculator,
        **settings,
    )


def greedy(target: Path, drafter: str | None, name: str, **settings: Any) -> list[Any]:
    """Outputs of the oracle's prompts, in a batch and one step ahead, the longest in two chunks beside verify rows."""
    cases = [case for case in CASES if case["drafter"] == name]
    arrivals = [Arrival(case["prompt_token_ids"], PARAMS, step) for case, step in zip(cases, (0, 0, 2, 5), strict=True)]
    with open_smollm2(target, drafter, **settings) as engine:
        outputs = drive(engine, arrivals)
        check_idle(engine)
    return outputs


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_the_public_loop(smollm2_path: Path, name: str, record_property: Any) -> None:
    with open_smollm2(smollm2_path, drafter_path(name)) as engine:
        for case in (case for case in CASES if case["drafter"] == name):
            steps = tokens_per_step(engine, case["prompt_token_ids"])
            assert steps == case["tokens_per_step"], case["prompt"]
            record_property(f"{name} fp32, tokens a step ({case['prompt']})", f"{np.mean(steps):.2f}")


@pytest.mark.model
@pytest.mark.parametrize(
    "settings",
    [
        {"model__dtype": "float32"},
        {"model__dtype": "bfloat16", "numerics": "batch_invariant"},
        {"model__dtype": "float16", "numerics": "batch_invariant"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
@pytest.mark.parametrize("name", NAMES)
def test_text_is_that_of_plain_decoding(
    smollm2_path: Path, name: str, settings: dict[str, Any], record_property: Any
) -> None:
    plain = greedy(smollm2_path, None, name, **settings)
    drafted = greedy(smollm2_path, drafter_path(name), name, **settings)
    for one, other in zip(plain, drafted, strict=True):
        assert one.token_ids == other.token_ids
    tokens, steps = (sum(values) for values in zip(*((len(o.token_ids), o.acceptance.num_drafts) for o in drafted), strict=True))
    record_property(f"{name} {settings['model__dtype']}, tokens a verify step", f"{tokens / steps:.2f}")
    assert tokens / steps > 2.0


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_fast_bfloat16_accepts_as_much(smollm2_path: Path, name: str, record_property: Any) -> None:
    """Text may differ from plain decoding in a near-tie; a drafter that runs wrongly would show in the acceptance."""
    outputs = greedy(smollm2_path, drafter_path(name), name, model__dtype="bfloat16")
    tokens, steps = (sum(values) for values in zip(*((len(o.token_ids), o.acceptance.num_drafts) for o in outputs), strict=True))
    record_property(f"{name} bfloat16 fast, tokens a verify step", f"{tokens / steps:.2f}")
    assert tokens / steps > 2.0
