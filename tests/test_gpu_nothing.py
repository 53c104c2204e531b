"""Rows of logits that are all NaN on a GPU, in each form of the head: reported as on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.device import open_device
from runtime.sampling import SamplingParams
from tests.planted_nan import plant_nan
from tests.test_dflash_engine import SHAPES
from tests.test_runtime_engine_nothing import WAYS, check_reports, damaged, drafting, up_to_bad
from tests.tiny_drafter import write_tiny_drafter
from tests.tiny_engine import LOOPING, Arrival, Reference, check_idle, drive, open_tiny, tiny_reference

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
PROMPTS = [[7, 8, 9], [10, 11], [20, 21, 22], [40, 41, 42]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("nothing") / "looping", LOOPING)


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Heads of 64, which the operations of 16 bits want."""
    return tiny_reference(tmp_path_factory.mktemp("nothing") / "wide", replace(LOOPING, head_dim=64))


@pytest.mark.parametrize("drafts", ["none", "ngram", "table"])
@pytest.mark.parametrize("settings", [{}, WAYS[2], WAYS[4], WAYS[8]], ids=str)
def test_greedy_steps_report_rows_of_nothing(
    reference: Reference, drafts: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with drafting(reference, drafts, on=open_device("cuda", poison=True), device="cuda", **settings) as engine:
        check_reports(engine, reference, caplog)


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_a_drafter_beside_it(reference: Reference, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    drafter = write_tiny_drafter(tmp_path / name, LOOPING, replace(SHAPES[name], taps=(0,)))
    settings = {"device": "cuda", "speculator__method": "dflash", "speculator__draft_source": str(drafter.path)}
    with damaged(reference, 4, on=open_device("cuda", poison=True), **settings) as engine:
        check_reports(engine, reference, caplog)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("k", [0, 3, 7])
def test_sixteen_bits(wide_heads: Reference, k: int, temperature: float) -> None:
    """A token that some of the texts have makes NaN: they end behind it, the others are what they were. Up to 32 rows of logits."""
    settings = {"device": "cuda", "model__dtype": "bfloat16", "numerics": "batch_invariant"}
    arrivals = [Arrival(prompt, replace(GREEDY, temperature=temperature, seed=seed)) for seed, prompt in enumerate(PROMPTS)]
    with open_tiny(wide_heads.model.path, k=k, on=open_device("cuda", poison=True), **settings) as engine:
        sound = [output.token_ids for output in drive(engine, arrivals)]
    some = {token for tokens in sound for token in tokens[1:-1]} - {token for prompt in PROMPTS for token in prompt}
    bad = next(token for token in sorted(some) if sum(token in tokens for tokens in sound) < len(sound))
    device = open_device("cuda", poison=True)
    with pytest.MonkeyPatch.context() as patch:
        plant_nan(patch, device, bad)
        with open_tiny(wide_heads.model.path, k=k, on=device, **settings) as engine:
            outputs = drive(engine, arrivals)
            check_idle(engine)
    assert [output.token_ids for output in outputs] == [up_to_bad(tokens, bad) for tokens in sound]
    assert [output.finish_reason for output in outputs] == ["error" if bad in tokens[:-1] else "length" for tokens in sound]
