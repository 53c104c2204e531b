"""speculator.acceptance = synthetic:RATE: a fixed share of drafts is accepted, the same in every run, and everything says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.accept_synthetic import SYNTHETIC_ONE, accept_synthetic
from kernels.oracle_synthetic import accept_synthetic as expected_walk
from kernels.oracle_synthetic import position_bits
from runtime.config import load_config
from runtime.errors import ConfigError
from runtime.metrics import AcceptanceStats
from runtime.report import stats_line, total_acceptance, totals
from runtime.request import Request
from runtime.sampling import SamplingParams
from tests.kernel_cases import Launch, launches, live, poisoned, untouched
from tests.tiny_engine import open_tiny

PARAMS = SamplingParams(max_tokens=48, ignore_eos=True)
PROMPTS = [[5, 6, 7, 8], [40, 41], [9] * 7]


@launches((1, 1), (2, 3), (1, 32))
@pytest.mark.parametrize("threshold", [0, SYNTHETIC_ONE // 3, SYNTHETIC_ONE])
def test_accept_synthetic(launch: Launch, threshold: int) -> None:
    """Rows of 1, 4, 0 and 3 logits, slots out of order, a draft that is none, a pad row."""
    counts, width = np.array([1, 4, 0, 3], np.int32), 4
    cu = np.concatenate([[0], np.cumsum(counts), [8]]).astype(np.int32)
    rng = np.random.default_rng(threshold)
    ids = poisoned(np.array([50, 51, 52, 53, -1, 55, 56, 57, 58, 59], np.int32), 10)
    args: dict[str, Any] = {
        "sampled": untouched(5, width, dtype=np.int32),
        "num_sampled": untouched(5, dtype=np.int32),
        "num_drafts": untouched(5, dtype=np.int32),
        "row_argmax": np.arange(100, 110, dtype=np.int32),
        "input_ids": ids,
        "logits_indices": np.array([1, 2, 3, 4, 5, 7, 8, 9, 0, 0], np.int32),
        "cu_num_logits": cu,
        "idx_mapping": np.array([3, 0, 2, 5, -1], np.int32),
        "positions": rng.integers(0, 1000, 10).astype(np.int32),
        "threshold": threshold,
        "num_requests": live(4),
    }
    inputs = {name: value for name, value in args.items() if name not in ("num_sampled", "num_drafts")}
    sampled, num_sampled, num_drafts = expected_walk(**inputs)
    for name, values in (("num_sampled", num_sampled), ("num_drafts", num_drafts)):
        values[4:] = args[name][4:]
    launch.check(accept_synthetic, args, {"sampled": sampled, "num_sampled": num_sampled, "num_drafts": num_drafts})
    longest = {0: [1, 1, 0, 1], SYNTHETIC_ONE: [1, 4, 0, 3]}
    if threshold in longest:
        assert num_sampled[:4].tolist() == longest[threshold]
    if threshold == SYNTHETIC_ONE:
        # Drafts as they were fed, the target's token in the place of the one that was none, then the bonus token.
        assert sampled[1].tolist() == [53, 102, 55, 104]


def test_rates_are_what_was_asked_for() -> None:
    for slot in range(4):
        bits = position_bits(slot, np.arange(20_000, dtype=np.int32))
        assert (bits >= 0).all()
        assert (bits < 0.7 * SYNTHETIC_ONE).mean() == pytest.approx(0.7, abs=0.01)
    first, second = (position_bits(slot, np.arange(20_000, dtype=np.int32)) for slot in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def lengths(rate: float, k: int, **overrides: Any) -> tuple[list[tuple[int, ...]], AcceptanceStats]:
    """Tokens of each step of each request, and the acceptance of all."""
    steps: dict[int, list[int]] = {}
    with open_tiny(Path("random:tiny"), k=k, speculator__acceptance=f"synthetic:{rate}", **overrides) as engine:
        outputs = []
        for event in engine.stream(PROMPTS, PARAMS):
            steps.setdefault(event.index, []).append(len(event.token_ids))
            outputs += [event.output] if event.output is not None else []
        assert engine.info()["speculator"]["acceptance"] == f"synthetic:{rate:g}"
    acceptance = total_acceptance(outputs)
    assert acceptance is not None
    return [tuple(steps[index]) for index in sorted(steps)], acceptance


def test_an_engine_accepts_as_told() -> None:
    all_steps, _ = lengths(1.0, 3)
    # The first token comes out of the prefill; the last step is cut by max_tokens.
    assert all(set(steps[1:-1]) == {4} for steps in all_steps)
    none, _ = lengths(0.0, 3)
    assert all(set(steps) == {1} for steps in none)


def test_the_walk_is_the_same_in_every_arm_and_schedule() -> None:
    first, acceptance = lengths(0.6, 3)
    assert acceptance.mean_acceptance_length == pytest.approx(1 + 0.6 + 0.36 + 0.216, abs=0.4)
    assert acceptance.synthetic == 0.6
    for overrides in ({"runner__async": False}, {"schedule": "random", "seed": 4}):
        assert lengths(0.6, 3, **overrides)[0] == first


def test_records_and_lines_are_marked() -> None:
    with open_tiny(Path("random:tiny"), k=3, speculator__acceptance="synthetic:0.6") as engine:
        outputs = engine.generate(PROMPTS, PARAMS)
    assert all(output.as_dict()["acceptance"]["acceptance"] == "synthetic:0.6" for output in outputs)
    values = totals(outputs, 1.0)
    assert values["acceptance"] == "synthetic:0.6"
    assert "of 4 (synthetic:0.6)" in stats_line(values)
    assert "acceptance" not in AcceptanceStats(3).as_dict()


def test_real_and_synthetic_counts_do_not_mix() -> None:
    with pytest.raises(ValueError, match=r"synthetic = 0\.5: cannot be merged"):
        AcceptanceStats(3).merge(AcceptanceStats(3, 0.5))
    request = Request("r", [1], SamplingParams())
    request.enqueue(0, 3, 0.5)
    assert request.acceptance.as_dict()["acceptance"] == "synthetic:0.5"


@pytest.mark.parametrize("value", ["synthetic", "synthetic:", "synthetic:1.5", "synthetic:-1", "synthetic:nan", "fake", 0.5, None])
def test_wrong_values_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"speculator\.acceptance = .*: must be real or synthetic:RATE"):
        load_config({"model": {"source": "x"}, "speculator": {"acceptance": value}})


def test_without_speculation_there_is_nothing_to_accept() -> None:
    config = load_config({"model": {"source": "x"}, "speculator": {"acceptance": "synthetic:0.50"}})
    assert config.speculator.acceptance == "synthetic:0.5"
    assert config.speculator.synthetic_acceptance is None
