"""Sampling on a GPU: the distribution through the kernels, and one seed, one text through the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runtime.device import open_device
from tests.candidate_proposer import drafts_from
from tests.kernel_cases import Launch
from tests.test_runtime_engine_sampling import OTHERS, PROMPT, WARM, any_candidates, text_of
from tests.test_sampling_distribution import chains, check_against_enumeration, target
from tests.tiny_engine import LOOPING, Arrival, Reference, check_idle, drive, open_tiny, tiny_reference

pytestmark = pytest.mark.gpu

ON_GPU = Launch("cuda", (256, 1), 256)


@pytest.mark.parametrize(("kind", "verification"), [("one-hot", "standard"), ("wrong", "standard"), ("wrong", "block")])
def test_every_position_has_the_distribution_of_the_target(kind: str, verification: Any) -> None:
    subject = chains(kind, target(), verification=verification, missing=(3, 2, 3))
    assert check_against_enumeration(subject, ON_GPU) > 0


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("sampling") / "wide", replace(LOOPING, head_dim=64))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_seed_gives_the_same_text(reference: Reference, dtype: str) -> None:
    """Alone and among others, with drafts and without, one step ahead or not, in padded graphs."""
    settings: dict[str, Any] = {"model__dtype": dtype, "numerics": "batch_invariant", "scheduler__max_num_seqs": 8}
    texts = set()
    for k, changes in ((0, {}), (3, {}), (7, {"runner__async": False}), (3, {"graphs__buckets": [8]})):
        device = open_device("cuda", poison=True)
        with open_tiny(reference.model.path, k=k, on=device, device="cuda", **settings, **changes) as engine:
            texts.add(text_of(engine))
            outputs = drive(engine, [*OTHERS[:3], Arrival(PROMPT, WARM, step=2), *OTHERS[3:]])
            texts.add(outputs[3].token_ids)
            check_idle(engine)
    assert len(texts) == 1


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_a_preemption_leaves_the_text_alone_with_a_drafters_distribution(reference: Reference, verification: Any) -> None:
    params = [replace(WARM, seed=seed, max_tokens=30) for seed in range(4)]
    settings: dict[str, Any] = {"numerics": "batch_invariant", "speculator__verification": verification}
    texts = []
    with drafts_from(*any_candidates()):
        for blocks in ("auto", 20):
            device = open_device("cuda", poison=True)
            sizes = {"scheduler__max_num_seqs": 4, "scheduler__num_blocks": blocks}
            with open_tiny(reference.model.path, k=4, on=device, device="cuda", **sizes, **settings) as engine:
                arrivals = [Arrival(PROMPT, each, step=number) for number, each in enumerate(params)]
                texts.append([output.token_ids for output in drive(engine, arrivals)])
                assert (engine.scheduler.counters.preemptions > 0) == (blocks == 20)
                check_idle(engine)
    assert texts[0] == texts[1]
