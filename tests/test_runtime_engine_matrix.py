"""Engine: whatever the batch, the limits, the drafts, the schedule of the device, every request gets its greedy tokens.

HAZARDS.md 2.4 asks for the product of many small choices. Each case here draws one point of it from its seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import TinyShape
from tests.tiny_engine import ENDING, LOOPING, Arrival, Reference, check_outputs, drive, open_tiny, tiny_reference

MAX_MODEL_LEN = 64
NUM_CASES = 60
NUM_SLOW_CASES = 440


@dataclass(frozen=True)
class Case:
    """One point of the matrix, drawn from its seed."""

    seed: int
    model: str
    k: int
    schedule: str
    settings: dict[str, Any]
    arrivals: tuple[Arrival, ...]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    """Three models: text that depends on all of its context, text that repeats itself, text that ends by itself."""
    folder: Path = tmp_path_factory.mktemp("matrix")
    shapes = {"chaotic": TinyShape(architecture="qwen3", seed=5), "looping": LOOPING, "ending": ENDING}
    return {name: tiny_reference(folder / name, shape) for name, shape in shapes.items()}


def draw_case(seed: int) -> Case:
    rng = random.Random(seed)
    k = rng.choice([0, 1, 3, 5, 7])
    chunk = rng.choice([k + 1, k + 2, 2 * (k + 1), 12, 32, 64])
    block_size = rng.choice([1, 4, 16])
    # The pool: as much as all slots can use, or hardly more than one request needs.
    tight = -(-rng.randint(MAX_MODEL_LEN, MAX_MODEL_LEN + 40) // block_size)
    async_ = rng.random() < 0.7
    settings: dict[str, Any] = {
        "graphs__mode": rng.choice(["graph", "eager"]),
        "mirror__policy": rng.choice(["discrete", "integrated"]),
        "runner__async": async_,
        "runner__steps_in_flight": rng.choice([2, 2, 3, 4]),
        "scheduler__block_size": block_size,
        "scheduler__max_num_batched_tokens": chunk,
        "scheduler__max_num_seqs": rng.choice([1, 3, 4, 8]),
        "scheduler__num_blocks": rng.choice(["auto", tight]),
    }
    if rng.random() < 0.3:
        settings |= {"graphs__buckets": [2, 5], "graphs__token_buckets": [3, 7, 31]}
    lengths = [1, max(k, 1), k + 1, k + 2, chunk + k + 1, 2 * chunk + k + 1, MAX_MODEL_LEN - k - 1, MAX_MODEL_LEN - 1]
    arrivals = tuple(
        Arrival(
            prompt=tuple(rng.randrange(3, 24) for _ in range(min(rng.choice(lengths), MAX_MODEL_LEN - 1))),
            params=_draw_params(rng, k),
            step=rng.choice([0, 0, 1, rng.randrange(20)]),
        )
        for _ in range(rng.choice([1, 3, 4, 8]))
    )
    model = rng.choice(["chaotic", "looping", "looping", "ending"])
    return Case(seed, model, k, rng.choice(["eager", "lazy", "random", "random"]), settings, arrivals)


def _draw_params(rng: random.Random, k: int) -> SamplingParams:
    max_tokens = rng.choice([1, 2, k + 1, k + 2, 9, 20, 40])
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, min(7, max_tokens)]),
        ignore_eos=rng.random() < 0.4,
        # Likely ids of these models, so that a stop falls anywhere in a block of accepted drafts.
        stop_token_ids=tuple(rng.sample(range(3, 24), rng.choice([0, 0, 1, 2]))),
    )


@pytest.mark.parametrize(
    "seed",
    [
        *range(NUM_CASES),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(NUM_CASES, NUM_CASES + NUM_SLOW_CASES)),
    ],
)
def test_every_request_gets_its_greedy_tokens(references: dict[str, Reference], seed: int) -> None:
    case = draw_case(seed)
    reference = references[case.model]
    with open_tiny(reference.model.path, schedule=case.schedule, seed=seed, k=case.k, **case.settings) as engine:
        outputs = drive(engine, case.arrivals)
        check_outputs(reference, engine, case.arrivals, outputs)
