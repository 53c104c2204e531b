"""Gate G3, on a GPU: does the asynchronous runner pay? Time per token and throughput against the synchronous one, by compare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from runtime.compare import METRICS, Plan, axis_of, compare
from runtime.compare_arms import Arm
from runtime.config import RunConfig, load_config
from runtime.cut_short import refuse_untimed
from runtime.gates.measured import Measured, not_measured
from runtime.gates.verdict import GateReport
from runtime.intake import Intake
from runtime.sampling import SamplingParams

TITLE = "the asynchronous runner is faster than the synchronous one"
ARMS = ("runner.async=true", "runner.async=false")
LEVELS = (1, 8)
INPUT_LEN, OUTPUT_LEN = 128, 128


def expects(intake: Intake) -> None:
    """Have the workload's requests room in the model? Asked before its weights are read."""
    refuse_untimed(intake, [], SamplingParams(max_tokens=OUTPUT_LEN, ignore_eos=True), INPUT_LEN)


def check_g3(
    config: RunConfig, open_arm: Callable[[Arm], AbstractContextManager[Any]], advance: Callable[[int, int], None]
) -> Measured:
    """Compare the arms at concurrency 1 and 8 on random prompts; an axis for each metric.

    Raises: as runtime.compare.compare.
    """
    base = load_config(
        config, sampling__ignore_eos=True, sampling__max_tokens=OUTPUT_LEN, scheduler__max_num_seqs=max(LEVELS)
    )
    plan = Plan(LEVELS, [], base.sampling.params(), INPUT_LEN)
    report = compare([Arm.parse(arm, base) for arm in ARMS], plan, open_arm, advance)
    workload = {
        "model": config.model.source,
        "arms": list(ARMS),
        "concurrency": list(LEVELS),
        "input_len": INPUT_LEN,
        "output_len": OUTPUT_LEN,
        "pairs": plan.num_pairs,
        "config": base.as_dict(),
    }
    axes = tuple(axis_of(result) for result in report["results"])
    figures = {"medians": {f"{r.metric} at {r.concurrency}": list(r.medians) for r in report["results"] if r.effect}}
    return Measured(GateReport("G3", TITLE, axes, (), figures), workload, report["facts"] | figures)


def without_gpu(reason: str) -> GateReport:
    names = [f"{name} at concurrency {level}" for level in LEVELS for name in METRICS.values()]
    return not_measured("G3", TITLE, names, reason)
