"""The product's engine over the toy target, on the virtual device or on a GPU: everything but the model is what a user runs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from graphs.executor import Executor
from graphs.propose import NgramProposer, Proposer
from graphs.tape import Tapes
from graphs.toy import OverruledProposer, ScriptedProposer, ToyTaps, ToyTarget
from kernels.toy import VOCABULARY
from runtime.device import Device, open_device
from runtime.draft_lengths import ScriptedLengths
from runtime.engine import Engine
from runtime.gates.tapes import allocate_tapes
from runtime.gates.toy import toy_tokenizer_source
from runtime.gates.toy_drafter import HIDDEN, NUM_BLOCKS, Version, toy_proposer, toy_table
from runtime.intake import Intake
from runtime.kv_cache import BlockAllocator
from runtime.mirror_policy import resolve_policy
from runtime.prompts import PromptEncoder
from runtime.runner import Runner
from runtime.runner_options import RunnerOptions
from runtime.sampling import MAX_STOP_TOKEN_IDS, SamplingParams
from runtime.scheduler import Scheduler
from runtime.scheduler_limits import SchedulerLimits
from runtime.step_buffers import StepSizes
from runtime.tokenizer import Tokenizer
from runtime.virtual_device import VirtualDevice
from runtime.virtual_queue import Schedule

NGRAM_MIN, NGRAM_MAX = 1, 3
Speculator = Literal["none", "ngram", "scripted", "dflash", "dflash2"]
DRAFTERS: dict[str, Version] = {"dflash": 1, "dflash2": 2}


@dataclass(frozen=True)
class OnGpu:
    """Where an executor is asked for: run on the first visible GPU. It has an order of its own and no race detector."""


Venue: TypeAlias = "Executor | OnGpu"
"""Where toy engines run: the virtual device with this executor, or a GPU."""


@dataclass(frozen=True)
class ToyOptions:
    """Sizes and modes of a toy engine; lengths in tokens.

    lengths: drafts of the decode rows of step 0, 1, 2, ... and again from the start; None: always k.
    script: verdicts of kernels.toy by slot and position (modulo its length). The scripted speculator follows it; a drafter of
        random weights is overruled where it accepts.
    fused: a drafter takes the fused forms of its parts.
    memory: whether the target looks at the tokens in the cache.
    eos_token_ids: the model's ends of text.
    tape_steps: steps that the tapes hold; 0 records nothing.
    """

    num_slots: int
    k: int
    max_model_len: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int = 4
    policy: str = "discrete"
    steps_in_flight: int = 2
    graph_mode: Literal["graph", "eager"] = "graph"
    buckets: tuple[int, ...] | None = None
    schedule: Schedule = "lazy"
    seed: int = 0
    poison: bool = True
    speculator: Speculator = "scripted"
    script: tuple[tuple[int, ...], ...] = ()
    lengths: tuple[int, ...] | None = None
    memory: bool = True
    eos_token_ids: tuple[int, ...] = ()
    tape_steps: int = 0
    fused: bool = False

    @property
    def effective_max_model_len(self) -> int:
        """A pool smaller than the longest sequence is the limit then."""
        return min(self.max_model_len, self.num_blocks * self.block_size)


@dataclass(frozen=True)
class ToyEngine:
    """An open engine with what a gate looks into."""

    options: ToyOptions
    engine: Engine
    runner: Runner
    device: Device
    tapes: Tapes | None

    @property
    def races(self) -> list[str]:
        """What the detector found; a GPU has none."""
        return [str(race) for race in getattr(self.device, "races", [])]


def open_toy(options: ToyOptions, executor: Venue, runner_type: type[Runner] = Runner) -> ToyEngine:
    """Open and capture. Races are recorded, not raised. Close it by `engine.close()`.

    executor: shared between engines, because it keeps the compiled kernels; or OnGpu.
    runner_type: the product's runner, or a variant of it that a test wants to see fail.
    """
    device = _open_device(options, executor)
    sizes = StepSizes(
        max_num_seqs=options.num_slots,
        num_speculative_tokens=options.k,
        max_model_len=options.effective_max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        block_size=options.block_size,
        num_stop_ids=MAX_STOP_TOKEN_IDS + len(options.eos_token_ids),
    )
    cache = device.array("toy_cache", (options.num_blocks * options.block_size,), np.int32)
    row_argmax = device.array("row_argmax", (sizes.num_logits,), np.int32)
    proposer, taps = _proposer(options, device, sizes)
    target = ToyTarget(cache, row_argmax, block_size=options.block_size, memory=options.memory, taps=taps)
    tapes = None
    if options.tape_steps:
        tapes = allocate_tapes(device, steps=options.tape_steps, num_slots=options.num_slots, num_ids=1 + options.k)
    lengths = options.lengths or (options.k,)
    runner_options = RunnerOptions(
        steps_in_flight=options.steps_in_flight,
        graph_mode=options.graph_mode,
        buckets=options.buckets,
        eos_token_ids=options.eos_token_ids,
        poison=options.poison,
        draft_lengths=tuple(sorted(set(lengths))),
    )
    policy = resolve_policy(options.policy, device)
    runner = runner_type(device, target, proposer, sizes, policy, runner_options, tapes)
    runner.capture()
    limits = SchedulerLimits(options.num_slots, sizes.max_model_len, options.max_num_batched_tokens, options.k)
    tokenizer = Tokenizer.from_source(toy_tokenizer_source())
    encoder = PromptEncoder(tokenizer, None, vocab_size=VOCABULARY, max_model_len=sizes.max_model_len)
    ticks = itertools.count()
    engine = Engine(
        runner,
        Scheduler(
            limits,
            BlockAllocator(options.num_blocks, options.block_size),
            clock=lambda: float(next(ticks)),
            lengths=ScriptedLengths(lengths),
        ),
        tokenizer,
        Intake(encoder, options.block_size, num_blocks=options.num_blocks),
        SamplingParams(),
        steps_ahead=options.steps_in_flight - 1,
        clock=lambda: float(next(ticks)),
    )
    return ToyEngine(options, engine, runner, device, tapes)


def _open_device(options: ToyOptions, executor: Venue) -> Device:
    if isinstance(executor, OnGpu):
        return open_device("cuda", poison=options.poison)
    return VirtualDevice(executor, schedule=options.schedule, seed=options.seed, poison=options.poison, on_race="record")


def _proposer(options: ToyOptions, device: Device, sizes: StepSizes) -> tuple[Proposer | None, ToyTaps | None]:
    """What drafts, and what it reads of the target."""
    if options.k == 0 or options.speculator == "none":
        return None, None
    if options.speculator == "ngram":
        return NgramProposer(min_n=NGRAM_MIN, max_n=NGRAM_MAX), None
    script = device.array("script", (options.num_slots, len(options.script[0])), np.int32)
    device.upload(script, np.array(options.script, np.int32))
    if options.speculator == "scripted":
        return ScriptedProposer(script, memory=options.memory), None
    drafter = toy_proposer(device, DRAFTERS[options.speculator], sizes, options.num_blocks, fused=options.fused)
    residual = device.array("toy_residual", (sizes.max_num_batched_tokens, HIDDEN), np.float32)
    taps = ToyTaps(drafter.taps, residual, device.constant("toy_table", toy_table()), NUM_BLOCKS)
    return OverruledProposer(drafter, script, memory=options.memory), taps
