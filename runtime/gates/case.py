"""Case: one point of the regression matrix. Its text reproduces it; from it come the options of an engine and its requests."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from kernels.toy import ACCEPT, NO_DRAFT, REJECT
from runtime.errors import ConfigError
from runtime.gates.toy import continuation, text_of
from runtime.gates.toy_engine import ToyOptions
from runtime.sampling import SamplingParams

BLOCK_SIZE = 4
SCRIPT_LENGTH = 61
LENGTHS_PERIOD = 13
STEP_LIMIT = 4000
MODEL_EOS = (5, 11, 23)
"""The toy model's ends of text, in the cases that have some; its texts hold one every ten tokens or so."""

AXES: dict[str, tuple[Any, ...]] = {
    "speculator": ("none", "ngram", "scripted", "dflash", "dflash2"),
    "k": (0, 1, 3, 5, 7),
    "batch": (1, 3, 4, 8),
    "prompt": ("1", "k", "k+1", "chunk+k+1", "max_len-k-1", "max_len-1", "mixed"),
    "accept": ("none", "all", "alternating", "random", "ragged"),
    "stop": ("none", "max_tokens", "eos", "string", "min_tokens", "model_eos"),
    "event": ("none", "reuse", "preempt", "skip", "cancel"),
    "lengths": ("fixed", "changing"),
    "steps_in_flight": (1, 2, 3),
    "mode": ("graph", "eager"),
    "policy": ("discrete", "integrated"),
    "schedule": ("eager", "lazy", "random"),
}
"""Every axis with its values (HAZARDS 2.4). steps_in_flight = 1 is runner.async = false. lengths: of drafts, the same in every step
or another from step to step, none at all among them."""

PROMPTS = AXES["prompt"][:-1]


@dataclass(frozen=True)
class RequestPlan:
    """One request of a case. cancel_at: step of the loop before which it is cancelled; None = never."""

    prompt: tuple[int, ...]
    params: SamplingParams
    cancel_at: int | None = None


@dataclass(frozen=True)
class Case:
    """One value of each axis, and the seed of everything that is drawn."""

    speculator: str = "scripted"
    k: int = 3
    batch: int = 4
    prompt: str = "mixed"
    accept: str = "random"
    stop: str = "none"
    event: str = "none"
    lengths: str = "fixed"
    steps_in_flight: int = 2
    mode: str = "graph"
    policy: str = "discrete"
    schedule: str = "lazy"
    seed: int = 0

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case that `str(case)` stands for; what is not named has its default.

        Raises:
            ConfigError: an unknown axis or value.
        """
        values: dict[str, Any] = {}
        for part in text.split():
            name, equals, value = part.partition("=")
            if not equals:
                raise ConfigError(f"case: {part}: must be name=value, as in k=3")
            if name in values:
                raise ConfigError(f"case: {name} is given twice; leave one of them out")
            known = {str(known): known for known in AXES.get(name, ())}
            if name == "seed":
                if not value.isdecimal():
                    raise ConfigError(f"case: seed = {value}: must be a whole number, 0 or above; what a case draws comes from it")
                values[name] = int(value)
            elif value in known:
                values[name] = known[value]
            elif known:
                raise ConfigError(f"case: {name} = {value}: must be one of {', '.join(known)}")
            else:
                near = get_close_matches(name, (*AXES, "seed"), n=1)
                hint = f"did you mean {near[0]}?" if near else f"names are {', '.join(AXES)} and seed"
                raise ConfigError(f"case: {name} = {value}: unknown name; {hint}")
        case = cls(**values)
        if not case.is_possible:
            raise ConfigError(
                f"case: speculator = {case.speculator} with k = {case.k}, lengths = {case.lengths}: "
                "none has k = 0 and fixed lengths, the others have k > 0"
            )
        return case

    @property
    def is_possible(self) -> bool:
        return (self.speculator == "none") == (self.k == 0) and (self.lengths == "fixed" or self.k > 0)

    @property
    def keeps_context(self) -> bool:
        """The speculator has keys and values of its own, which every step must move on."""
        return self.speculator.startswith("dflash")

    @property
    def memory(self) -> bool:
        """Prompt lookup needs a text that repeats itself, which is one that the cache has no say in: every other seed."""
        return self.speculator != "ngram" or self.seed % 2 == 1

    @property
    def chunk(self) -> int:
        """max_num_batched_tokens: room for every row, or for some of them only, so that the others skip steps."""
        rows = self.batch if self.event != "skip" else max(1, self.batch // 2)
        return max(rows * (1 + self.k), 1 + self.k if self.event == "skip" else 16)

    @property
    def max_len(self) -> int:
        return self.chunk + 2 * (self.k + 1) + 20

    def options(self, *, tape_steps: int = 0) -> ToyOptions:
        """The engine of this case. tape_steps: steps whose ids are taped; 0: none."""
        blocks_per_slot = -(-self.max_len // BLOCK_SIZE)
        # Room for one and a half sequences of full length: two that grow must fight.
        blocks = blocks_per_slot * 3 // 2 if self.event == "preempt" else blocks_per_slot * self.batch
        return ToyOptions(
            num_slots=self.batch,
            k=self.k,
            max_model_len=self.max_len,
            max_num_batched_tokens=self.chunk,
            num_blocks=blocks,
            block_size=BLOCK_SIZE,
            policy=self.policy,
            steps_in_flight=self.steps_in_flight,
            graph_mode="graph" if self.mode == "graph" else "eager",
            schedule=self.schedule,  # type: ignore[arg-type]
            seed=self.seed,
            poison=self.seed % 3 != 2,
            speculator=self.speculator,  # type: ignore[arg-type]
            script=self.script(),
            lengths=self.draft_lengths(),
            memory=self.memory,
            eos_token_ids=MODEL_EOS if self.stop == "model_eos" else (),
            tape_steps=tape_steps,
            fused=self.seed % 2 == 1,
        )

    def draft_lengths(self) -> tuple[int, ...]:
        """Drafts of the decode rows of step 0, 1, 2, ... and again from the start."""
        if self.lengths == "fixed":
            return (self.k,)
        draw = random.Random(f"lengths {self.seed}")
        return tuple(draw.choice((0, (self.k + 1) // 2, self.k, self.k)) for _ in range(LENGTHS_PERIOD))

    def script(self) -> tuple[tuple[int, ...], ...]:
        """[batch][SCRIPT_LENGTH] verdicts by slot and position."""
        draw = random.Random(f"script {self.seed}")
        choices = {"none": (REJECT,), "all": (ACCEPT,), "random": (ACCEPT, ACCEPT, REJECT)}
        rows = []
        for slot in range(self.batch):
            if self.accept == "alternating":
                rows.append(tuple((REJECT, ACCEPT)[(position + slot) % 2] for position in range(SCRIPT_LENGTH)))
            else:
                verdicts = choices.get(self.accept, (ACCEPT, ACCEPT, REJECT, NO_DRAFT))
                rows.append(tuple(draw.choice(verdicts) for _ in range(SCRIPT_LENGTH)))
        return tuple(rows)

    def requests(self) -> list[RequestPlan]:
        """What is asked of the engine, in order of arrival: more requests than slots where slots are to change hands."""
        draw = random.Random(f"requests {self.seed}")
        count = 2 * self.batch + 1 if self.event in ("reuse", "cancel") else self.batch + 1
        plans = []
        for index in range(count):
            kind = PROMPTS[(index + self.seed) % len(PROMPTS)] if self.prompt == "mixed" else self.prompt
            prompt = tuple(draw.randint(1, 31) for _ in range(self._prompt_len(kind)))
            cancel_at = 2 + draw.randrange(8) if self.event == "cancel" and index % 3 != 1 else None
            plans.append(RequestPlan(prompt, self._params(prompt, index), cancel_at))
        return plans

    def _prompt_len(self, kind: str) -> int:
        longest = self.options().effective_max_model_len
        length = {
            "1": 1,
            "k": self.k,
            "k+1": self.k + 1,
            "chunk+k+1": self.chunk + self.k + 1,
            "max_len-k-1": longest - self.k - 1,
            "max_len-1": longest - 1,
        }[kind]
        return min(max(1, length), longest - 1)

    def _params(self, prompt: tuple[int, ...], index: int) -> SamplingParams:
        """Limits that fall inside a verified block: behind the first token and one whole block, in the middle of the next.

        min_tokens: the request would have ended twice before it may, the second time one token too early.
        model_eos: two requests of three end there, one of them not before it has some tokens; the third ignores it.
        """
        inside = 2 + self.k + 1 + (self.k + index) // 2
        if self.stop == "max_tokens":
            return SamplingParams(max_tokens=inside)
        output = continuation(prompt, len(prompt) + inside + 2, self.memory)[len(prompt) :]
        if self.stop == "eos":
            return SamplingParams(max_tokens=400, stop_token_ids=(output[inside - 1],))
        if self.stop == "min_tokens":
            early = (output[0], output[inside - 2], output[inside - 1])
            return SamplingParams(max_tokens=400, min_tokens=inside, stop_token_ids=early)
        if self.stop == "model_eos":
            return SamplingParams(max_tokens=400, min_tokens=inside if index % 3 == 1 else 0, ignore_eos=index % 3 == 2)
        if self.stop == "string":
            return SamplingParams(max_tokens=400, stop=(text_of(output[inside - 1 : inside + 1]),))
        return SamplingParams(max_tokens=400)
