"""Blueprint: what a configuration comes to before a device is opened and weights are read."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from graphs.cpu_matmul import use_threads
from runtime.chat import ChatTemplate
from runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint
from runtime.checkpoint.random import SCHEME, RandomCheckpoint
from runtime.checkpoint.source import resolve_source
from runtime.checkpoint.weights import WeightDtype
from runtime.config import RunConfig
from runtime.console import ProgressBars
from runtime.cpu_threads import resolve_threads
from runtime.device import DeviceKind, resolve_kind
from runtime.errors import ConfigError, SamplingError
from runtime.execution_arm import ExecutionArm, resolve_arm
from runtime.intake import Intake
from runtime.models.spec import ModelSpec
from runtime.output_path import writable_folder
from runtime.prompts import PromptEncoder
from runtime.resolve_sampling import ParamsResolver
from runtime.sampling import MAX_STOP_TOKEN_IDS
from runtime.speculators.proposers import Speculator
from runtime.step_buffers import StepSizes
from runtime.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Blueprint:
    """Everything is known of an engine but what its device and its weights leave.

    Attributes:
        checkpoint: open; only headers and the tokenizer are read.
        kind: of the device, and reason: why that one.
        threads: of a matrix product on a CPU and why so many; None on a GPU.
        sizes: of the largest step; a KV pool that turns out smaller than a sequence shortens max_model_len.
    """

    config: RunConfig
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    intake: Intake
    kind: DeviceKind
    reason: str
    arm: ExecutionArm
    threads: str | None
    dtype: WeightDtype
    speculator: Speculator
    sizes: StepSizes

    @property
    def spec(self) -> ModelSpec:
        return self.checkpoint.spec

    @property
    def on_gpu(self) -> bool:
        return self.kind == "cuda"


def draw_up(config: RunConfig, bars: ProgressBars) -> Blueprint:
    """Find or fetch the checkpoint, read what is cheap to read, and refuse what can be refused by then.

    Raises:
        DraftgraphError: config, source or checkpoint cannot be used; a folder that is to be written cannot.
    """
    if config.graphs.dot is not None:
        writable_folder(f"graphs.dot = {config.graphs.dot}", config.graphs.dot)
    checkpoint = _open_checkpoint(_model_source(config), bars)
    spec = checkpoint.spec
    tokenizer = Tokenizer.from_source(checkpoint.tokenizer)
    resolver = ParamsResolver(tokenizer, spec.vocab_size, checkpoint.tokenizer.eos_token_ids)
    _check_defaults(config, resolver)
    kind, reason = resolve_kind(config.device)
    logger.info("device: %s (%s)", kind, reason)
    arm = resolve_arm(config.runner)
    threads = None if kind == "cuda" else _use_threads(config)
    dtype = weight_dtype(config, kind)
    speculator = Speculator(config.speculator, spec, dtype)
    sizes = step_sizes(config, spec, speculator.max_positions)
    encoder = _prompt_encoder(config, checkpoint, tokenizer, sizes.max_model_len)
    asked_blocks = None if config.scheduler.num_blocks == "auto" else config.scheduler.num_blocks
    intake = Intake(encoder, sizes.block_size, resolver, asked_blocks)
    return Blueprint(config, checkpoint, tokenizer, intake, kind, reason, arm, threads, dtype, speculator, sizes)


def _use_threads(config: RunConfig) -> str:
    """For all of NumPy in this process; how many, and why."""
    count, why = resolve_threads(config.runner.cpu_threads)
    use_threads(count)
    if config.runner.cpu_threads not in ("auto", count):
        logger.warning("runner.cpu_threads = %s: %d are used, %s", config.runner.cpu_threads, count, why.partition(", ")[2])
    threads = f"{count} ({why})"
    logger.info("threads: %s", threads)
    return threads


def _check_defaults(config: RunConfig, resolver: ParamsResolver) -> None:
    """Do the request parameters of the configuration fit the model? Asked before its weights are read.

    Raises:
        ConfigError: an id outside the vocabulary, or masks that leave no token to choose.
    """
    try:
        resolver.resolve(config.sampling.params())
    except SamplingError as error:
        raise ConfigError(f"sampling.{error}") from error


def step_sizes(config: RunConfig, spec: ModelSpec, drafter_positions: int | None = None) -> StepSizes:
    """Sizes of the largest step. drafter_positions: what a drafter was made for, where there is one.

    Raises:
        ConfigError: scheduler.max_model_len is above what the model or its drafter was made for.
    """
    scheduler = config.scheduler
    longest = spec.max_position_embeddings
    drafted = longest if drafter_positions is None else min(longest, drafter_positions)
    max_model_len = drafted if scheduler.max_model_len == "auto" else scheduler.max_model_len
    if max_model_len > longest:
        raise ConfigError(
            f"scheduler.max_model_len = {max_model_len}: above the model's {longest} positions; lower it or set it to auto"
        )
    if max_model_len > drafted:
        raise ConfigError(
            f"scheduler.max_model_len = {max_model_len}: above the drafter's {drafted} positions; lower it, set it to auto, or "
            "set speculator.method to none or ngram"
        )
    return StepSizes(
        max_num_seqs=scheduler.max_num_seqs,
        num_speculative_tokens=config.speculator.k,
        max_model_len=max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        block_size=scheduler.block_size,
        num_stop_ids=MAX_STOP_TOKEN_IDS + len(spec.eos_token_ids),
    )


def weight_dtype(config: RunConfig, kind: str) -> WeightDtype:
    """What weights, activations and KV cache are held in.

    Raises:
        ConfigError: a 16-bit type on a device that computes in float32.
    """
    wanted = config.model.dtype
    if kind in ("cpu", "simulator") and wanted not in ("auto", "float32"):
        raise ConfigError(f"model.dtype = {wanted}: device = {kind} computes in float32; set model.dtype to float32 or auto")
    return "float32" if wanted == "auto" else wanted


def _open_checkpoint(source: str, bars: ProgressBars) -> Checkpoint:
    """Files that are here or are fetched, or nothing but a shape."""
    return RandomCheckpoint(source) if source.startswith(SCHEME) else open_checkpoint(resolve_source(source, bars=bars))


def _model_source(config: RunConfig) -> str:
    source, revision = config.model.source, config.model.revision
    if revision is None:
        return source
    if not source.startswith("hf:"):
        raise ConfigError(f"model.revision = {revision}: only hf: sources have revisions, model.source = {source}; remove it")
    if "@" in source:
        raise ConfigError(f"model.revision = {revision}: model.source = {source} names a revision already; remove one of them")
    return f"{source}@{revision}"


def _prompt_encoder(config: RunConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, max_model_len: int) -> PromptEncoder:
    source = checkpoint.tokenizer
    template = None
    if source.chat_template is not None and config.run.chat:
        eos = tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else None
        template = ChatTemplate(
            source.chat_template, bos_token=tokenizer.token_text(tokenizer.bos_token_id), eos_token=tokenizer.token_text(eos)
        )
    return PromptEncoder(
        tokenizer,
        template,
        vocab_size=checkpoint.spec.vocab_size,
        max_model_len=max_model_len,
        chat=config.run.chat,
        system=config.run.system,
    )
