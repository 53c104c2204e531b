"""The emit-count discriminator: how many tokens a fixed number of steps must yield under scripted acceptance.

Text cannot see a defect that only costs acceptance; this can, from the script alone, without a plan, a device or a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.toy import ACCEPT
from runtime.gates.case import BLOCK_SIZE, Case
from runtime.gates.recording import RecordingRunner
from runtime.gates.toy_engine import ToyOptions, Venue, open_toy
from runtime.runner import Runner
from runtime.sampling import SamplingParams

STEPS = 24
PROMPT_LENS = (1, 4, 7)


@dataclass(frozen=True)
class Emission:
    """Tokens that STEPS steps yielded, and how many they must."""

    case: Case
    emitted: int
    computed: int
    verify_rows: int

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verify row, bonus included."""
        return (self.emitted - len(PROMPT_LENS)) / self.verify_rows


def emission_cases() -> list[Case]:
    """Every k, every script, both arms, both policies in turn."""
    cases: list[Case] = []
    for k in (1, 3, 5, 7):
        for accept in ("none", "all", "alternating", "random", "ragged"):
            for ahead in (1, 2):
                number = len(cases)
                policy = ("discrete", "integrated")[number // 2 % 2]
                schedule = ("lazy", "random")[number // 4 % 2]
                batch = len(PROMPT_LENS)
                cases.append(
                    Case(k=k, batch=batch, accept=accept, steps_in_flight=ahead, policy=policy, schedule=schedule, seed=number)
                )
    return cases


def computed_emission(script: Sequence[int], prompt_len: int, k: int, steps: int) -> int:
    """Tokens of one request: one from its prefill, then in each step the drafts up to the first that is not right, and one more."""
    total = prompt_len + 1
    for _ in range(steps - 1):
        accepted = 0
        while accepted < k and script[(total + accepted) % len(script)] == ACCEPT:
            accepted += 1
        total += accepted + 1
    return total - prompt_len


def measure_emission(case: Case, executor: Venue, runner_type: type[Runner] = Runner) -> Emission:
    """Run exactly STEPS steps of requests that do not end, and count what the device emitted."""
    max_len = max(PROMPT_LENS) + STEPS * (1 + case.k) + 2 * (1 + case.k)
    blocks = -(-max_len // BLOCK_SIZE)
    options = ToyOptions(
        num_slots=case.batch,
        k=case.k,
        max_model_len=max_len,
        max_num_batched_tokens=max(sum(PROMPT_LENS), case.batch * (1 + case.k)),
        num_blocks=blocks * case.batch,
        policy=case.policy,
        steps_in_flight=case.steps_in_flight,
        schedule=case.schedule,  # type: ignore[arg-type]
        seed=case.seed,
        script=case.script(),
    )
    toy = open_toy(options, executor, runner_type)
    recording = RecordingRunner(toy.runner, toy.device)
    toy.engine.runner = recording
    try:
        for length in PROMPT_LENS:
            toy.engine.submit(list(range(1, length + 1)), SamplingParams(max_tokens=max_len))
        while len(recording.steps) < STEPS:
            toy.engine.step()
        toy.engine.drain()
        emitted = sum(sum(step.result.num_sampled) for step in recording.steps if step.result is not None)
        rows = sum(len(step.plan.rows) for step in recording.steps[1:])
    finally:
        toy.engine.close()
    scripts = case.script()
    computed = sum(
        computed_emission(script, length, case.k, STEPS) for script, length in zip(scripts, PROMPT_LENS, strict=True)
    )
    return Emission(case, emitted, computed, rows)
