"""Compare: one arm against others, pair by pair, with the floor measured first. What cannot be told apart gets no ratio.

Equal arms (A/A, two engines of the first configuration) run before anything is compared: what they differ by is the floor. Arms
whose counters do not differ are TAUTOLOGICAL, whatever the times say; arms whose tokens differ did not do the same work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from runtime.compare_arms import Arm, Sample, measure
from runtime.compare_statistics import Effect, Told, abba, effect, log_ratios, spread
from runtime.cut_short import refuse_untimed
from runtime.gates.verdict import Axis, Verdict
from runtime.intake import Intake
from runtime.machine import describe, gpu_clocks
from runtime.prompts import Prompt
from runtime.random_prompts import random_prompts
from runtime.sampling import SamplingParams

LOWER_IS_BETTER = {"tpot_ms": True, "tokens_per_s": False}
METRICS = {"tpot_ms": "time per token", "tokens_per_s": "throughput"}
Pairs = tuple[list[Sample], list[Sample]]
Open = Callable[[Arm], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        levels: requests at a time, one level after the other.
        prompts: each run answers all of them, repeated where there are fewer than requests at a time; all arms get the same.
        input_len: instead, as many random prompts of so many tokens as requests at a time.
        params: of every request.
        num_pairs: of A/A and of each comparison. num_warmups: runs of each engine that nobody times, at each concurrency.
        same_outputs: arms must produce the same tokens; False where they cannot, e.g. for sampled runs.
    """

    levels: Sequence[int]
    prompts: Sequence[Prompt]
    params: SamplingParams
    input_len: int | None = None
    num_pairs: int = 6
    num_warmups: int = 2
    same_outputs: bool = True

    def expects(self, intake: Intake) -> None:
        """Can the model of this intake take what is planned? Asked before its weights are read."""
        refuse_untimed(intake, self.prompts, self.params, self.input_len)

    def prompts_at(self, level: int, engine: Any) -> list[Prompt]:
        """Of one run."""
        if self.input_len is None:
            return list(islice(cycle(self.prompts), max(level, len(self.prompts))))
        return random_prompts(engine, level, self.input_len)


@dataclass(frozen=True)
class Result:
    """One metric of one pair of arms at one concurrency.

    Attributes:
        effect: None where the verdict allows no ratio.
        floor: what equal arms differ by, as a log ratio; None when nobody measured it.
        medians: of both arms, in the unit of the metric.
        detail: why, in words.
    """

    first: str
    second: str
    concurrency: int
    metric: str
    verdict: Verdict
    effect: Effect | None
    floor: float | None
    medians: tuple[float, float]
    detail: str

    def as_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name not in ("effect", "verdict", "medians")}
        values["verdict"] = self.verdict.value
        if self.effect is not None:
            values["medians"] = list(self.medians)
            values |= {"ratio": self.effect.ratio, "log_ratio": self.effect.log_ratio}
            values["interval"] = [self.effect.low, self.effect.high]
        return values


def compare(arms: Sequence[Arm], plan: Plan, open_engine: Open, advance: Callable[[int, int], None]) -> dict[str, Any]:
    """Run the comparison of the first arm with each of the others.

    Args:
        open_engine: opens the engine of an arm; two are open at a time.
        advance: (runs done, runs in all).

    Returns: facts of the machine, `results` (each a Result), and `samples`, every measurement.

    Raises:
        ValueError: a number of pairs that runtime.compare_statistics.abba refuses; errors of the engines.
    """
    order = abba(plan.num_pairs)
    first, others = arms[0], arms[1:]
    total = 2 * (plan.num_pairs + plan.num_warmups) * len(plan.levels) * len(arms)
    done = 0

    def run(engine: Any, level: int) -> Sample:
        nonlocal done
        advance(done, total)
        done += 1
        return measure(engine, prompts[level], plan.params, level)

    def pairs_of(engines: tuple[Any, Any], level: int) -> Pairs:
        for engine in engines * plan.num_warmups:
            run(engine, level)
        found: Pairs = ([], [])
        for pair in order:
            for arm in pair:
                found[arm].append(run(engines[arm], level))
        return found

    results, samples = [], []
    with open_engine(first) as reference:
        facts = describe(reference)
        prompts = {level: plan.prompts_at(level, reference) for level in plan.levels}
        with open_engine(first) as twin:
            equal = {level: pairs_of((reference, twin), level) for level in plan.levels}
        samples += [_listed(first.name, f"{first.name} again", level, pairs) for level, pairs in equal.items()]
        for other in others:
            with open_engine(other) as opponent:
                for level in plan.levels:
                    pairs = pairs_of((reference, opponent), level)
                    samples.append(_listed(first.name, other.name, level, pairs))
                    for metric in LOWER_IS_BETTER:
                        result = judged(metric, equal[level], pairs, same_outputs=plan.same_outputs)
                        results.append(replace(result, first=first.name, second=other.name, concurrency=level))
    advance(total, total)
    if facts["clocks"] is not None:
        facts["clocks_at_the_end"] = gpu_clocks()
    return {"facts": facts, "pairs": plan.num_pairs, "results": results, "samples": samples}


def judged(metric: str, equal: Pairs | None, pairs: Pairs, *, same_outputs: bool = True) -> Result:
    """The verdict on one metric. equal: pairs of equal arms; None when nobody ran them.

    TAUTOLOGICAL    both arms took the same path: no time can tell them apart for the reason that was meant
    NOT MEASURED    the arms did not do the same work; or equal arms did not take the same path, as an arm that adapts does not, and
                    there is nothing that one arm did in every run and the other in none
    RECORDED        no equal arms were run, so nothing says what a difference is worth
    UNDER THE FLOOR equal arms differ by as much; no ratio
    SATISFIED       the first arm is better; OPEN GAP: it is worse
    """
    lower = LOWER_IS_BETTER[metric]
    floor = None if equal is None else spread(_log_ratios(metric, equal, lower))
    medians = (_median(metric, pairs[0]), _median(metric, pairs[1]))

    def result(verdict: Verdict, detail: str, effect: Effect | None = None) -> Result:
        return Result("", "", 0, metric, verdict, effect, floor, medians, detail)

    if any(one.path == other.path for one, other in zip(*pairs, strict=True)):
        return result(Verdict.TAUTOLOGICAL, "both arms took the same path: no counter and no graph differs")
    adapts = equal is not None and any(one.path != other.path for one, other in zip(*equal, strict=True))
    if equal is not None and adapts and not _apart([*equal[0], *equal[1], *pairs[0]], pairs[1]):
        return result(Verdict.NOT_MEASURED, "equal arms took different paths, so a difference of paths says nothing")
    outputs = {sample.outputs for samples in (*pairs, *(equal or ())) for sample in samples}
    if same_outputs and len(outputs) > 1:
        remedy = "set numerics to batch_invariant, or compare them all the same (--other-outputs)"
        return result(Verdict.NOT_MEASURED, f"the runs produced {len(outputs)} different outputs: not the same work; {remedy}")
    found = effect(_log_ratios(metric, pairs, lower), floor)
    if floor is None:
        return result(Verdict.RECORDED, "equal arms were not run", found)
    differ = f"equal arms differ by up to {100 * math.expm1(floor):.2f} %"
    if found.told is Told.NEITHER:
        return result(Verdict.UNDER_FLOOR, differ)
    better = found.told is Told.FIRST
    detail = f"the first arm is {'better' if better else 'worse'}; {differ}"
    return result(Verdict.SATISFIED if better else Verdict.OPEN_GAP, detail, found)


def _apart(first: Sequence[Sample], second: Sequence[Sample]) -> bool:
    """Did every run of one arm do something, by the name of a counter or a graph, that no run of the other did?"""
    did = [[{*sample.path.get("counters", {}), *sample.path.get("graphs", {})} for sample in arm] for arm in (first, second)]
    always, ever = ([method(*runs) for runs in did] for method in (set.intersection, set.union))
    return bool(always[0] - ever[1] or always[1] - ever[0])


def axis_of(result: Result) -> Axis:
    """For a gate or a record: value and floor are log ratios, 0.05 is 5.1 % better. Without an effect there is no value."""
    value = None if result.effect is None else result.effect.log_ratio
    failed = None if result.verdict is Verdict.SATISFIED else result.verdict
    return Axis(f"{METRICS[result.metric]} at concurrency {result.concurrency}", value, result.floor, result.detail, failed)


def _log_ratios(metric: str, pairs: Pairs, lower: bool) -> list[float]:
    first, second = ([getattr(sample, metric) for sample in samples] for samples in pairs)
    return log_ratios(first, second, lower_is_better=lower)


def _median(metric: str, samples: Sequence[Sample]) -> float:
    values = sorted(getattr(sample, metric) for sample in samples)
    middle = len(values) // 2
    return float(values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2)


def _listed(first: str, second: str, concurrency: int, pairs: Pairs) -> dict[str, Any]:
    """Every measurement, so that whoever doubts a verdict can compute another."""
    arms = {
        place: {
            "tpot_ms": [sample.tpot_ms for sample in samples],
            "tokens_per_s": [sample.tokens_per_s for sample in samples],
            "outputs": sorted({sample.outputs[:12] for sample in samples}),
            "path": samples[0].path,
        }
        for place, samples in zip(("first", "second"), pairs, strict=True)
    }
    return {"first_arm": first, "second_arm": second, "concurrency": concurrency} | arms
