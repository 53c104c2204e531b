"""From a configuration to a running engine: source, checkpoint, device, sizes, weights, graphs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from graphs.cpu_matmul import use_threads
from graphs.transformer import DecoderTarget
from runtime.chat import ChatTemplate
from runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint
from runtime.checkpoint.random import SCHEME, RandomCheckpoint
from runtime.checkpoint.source import resolve_source
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.config import ConfigSource, RunConfig, load_config
from runtime.console import ProgressBars, silent_bar
from runtime.cpu_threads import resolve_threads
from runtime.device import Device, open_device, resolve_kind
from runtime.draft_calibration import adapt, draft_lengths
from runtime.draft_lengths import RangedLengths
from runtime.engine import Engine
from runtime.errors import ConfigError, DeviceError, SamplingError
from runtime.execution_arm import ExecutionArm, resolve_arm
from runtime.intake import Expects, Intake
from runtime.kv_cache import BlockAllocator
from runtime.mirror_policy import resolve_policy
from runtime.models.choose_ops import OpsChooser
from runtime.models.sampling_scratch import build_logprobs, build_sampler
from runtime.models.scratch import allocate_scratch, build_ops
from runtime.models.spec import ModelSpec
from runtime.models.upload import kv_cache_bytes, streamed_bytes, upload_model
from runtime.output_path import refuse_unwritable_folder
from runtime.prompts import PromptEncoder
from runtime.resolve_sampling import ParamsResolver
from runtime.runner import Runner
from runtime.runner_options import RunnerOptions
from runtime.sampling import MAX_STOP_TOKEN_IDS
from runtime.sampling_record import needs_more_than_greedy
from runtime.scheduler import Scheduler, SchedulerLimits
from runtime.speculators.dflash_ops import TargetOps
from runtime.speculators.proposers import Speculator
from runtime.step_buffers import StepSizes
from runtime.tokenizer import Tokenizer
from runtime.user_path import user_path

logger = logging.getLogger(__name__)

KV_SHARES = {"cpu": 0.4, "simulator": 0.4, "cuda": 0.85}
"""Part of the memory left beside the weights that the KV cache may take when num_blocks = auto; activations take from the rest."""


def assemble(
    source: ConfigSource,
    *,
    progress: ProgressBars | None = None,
    on_device: Device | None = None,
    expects: Expects | None = None,
    **overrides: Any,
) -> Engine:
    """Build the engine of a configuration. See `Engine.from_config` for arguments and errors."""
    config = load_config(source, **overrides)
    if config.graphs.dot is not None:
        refuse_unwritable_folder(f"graphs.dot = {config.graphs.dot}", config.graphs.dot)
    bars = progress or silent_bar
    checkpoint = _open_checkpoint(_model_source(config), bars)
    spec = checkpoint.spec
    tokenizer = Tokenizer.from_source(checkpoint.tokenizer)
    eos = checkpoint.tokenizer.eos_token_ids
    resolver = ParamsResolver(tokenizer, spec.vocab_size, eos)
    _check_defaults(config, resolver)
    kind, reason = resolve_kind(config.device)
    logger.info("device: %s (%s)", kind, reason)
    arm = resolve_arm(config.runner)
    threads = None
    if kind != "cuda":
        count, why = resolve_threads(config.runner.cpu_threads)
        use_threads(count)
        threads = f"{count} ({why})"
        logger.info("threads: %s", threads)
    dtype = weight_dtype(config, kind)
    speculator = Speculator(config.speculator, spec, dtype)
    sizes = step_sizes(config, spec, speculator.max_positions)
    encoder = _prompt_encoder(config, checkpoint, tokenizer, sizes.max_model_len)
    asked_blocks = None if config.scheduler.num_blocks == "auto" else config.scheduler.num_blocks
    intake = Intake(encoder, sizes.block_size, resolver, asked_blocks)
    if expects is not None:
        expects(intake)
    device = on_device or open_device(kind, poison=config.mirror.poison, overlap=config.graphs.overlap)
    try:
        policy = resolve_policy(config.mirror.policy, device)
        with bars("loading weights", "bytes") as advance:
            weights = checkpoint.stored_weights(advance, dtype)
            left = device.free_bytes() - weights.nbytes
            block_bytes = kv_cache_bytes(spec, 1, sizes.block_size, STORAGE[dtype].itemsize)
            block_bytes += speculator.cache_bytes(1, sizes.block_size)
            blocks = BlockAllocator(_num_blocks(config, sizes, block_bytes, left, KV_SHARES[kind]), sizes.block_size)
            # A pool smaller than the longest sequence is the limit then, on the device as in the scheduler, which is told the
            # length that was asked for as well: a request that the pool ends needs more blocks, not a larger max_model_len.
            asked_model_len = sizes.max_model_len
            sizes = replace(sizes, max_model_len=min(asked_model_len, blocks.num_positions))
            model = upload_model(
                device,
                spec,
                weights,
                max_model_len=sizes.max_model_len,
                num_blocks=blocks.num_blocks,
                block_size=sizes.block_size,
            )
        scratch = allocate_scratch(device, spec, sizes, dtype)
        chooser = OpsChooser(device, model, scratch) if kind == "cuda" else None
        choice, numerics = config.graphs.ops, config.numerics
        ops, chosen = build_ops(
            device, spec, sizes, dtype, on_gpu=kind == "cuda", choice=choice, numerics=numerics, chooser=chooser
        )
        logger.info("operations: %s", chosen)
        with (bars if speculator.drafter else silent_bar)("loading drafter", "bytes") as advance:
            speculation = speculator.build(
                device,
                model,
                sizes,
                blocks.num_blocks,
                advance,
                on_gpu=kind == "cuda",
                choice=choice,
                target_ops=TargetOps(model.shape, ops),
            )
        target = DecoderTarget(model, scratch, speculation.taps, ops)
        options = RunnerOptions(
            steps_in_flight=arm.steps_in_flight,
            graph_mode=config.graphs.mode,
            buckets=None if config.graphs.buckets == "auto" else config.graphs.buckets,
            token_buckets=None if config.graphs.token_buckets == "auto" else config.graphs.token_buckets,
            eos_token_ids=eos,
            poison=config.mirror.poison,
            dot_folder=None if config.graphs.dot is None else user_path(config.graphs.dot),
            synthetic_acceptance=config.speculator.synthetic_acceptance,
            draft_lengths=draft_lengths(config.speculator),
        )
        drafts, verification = speculation.distribution, config.speculator.verification
        sampler = build_sampler(device, target.scratch.logits, sizes, spec.vocab_size, drafts, verification)
        logprobs = build_logprobs(device, model, scratch, sizes)
        runner = Runner(device, target, speculation.proposer, sizes, policy, options, sampler=sampler, logprobs=logprobs)
        with bars("capturing graphs", "graphs") as advance:
            runner.capture(advance, on_demand=needs_more_than_greedy(config.sampling.params()))
    except BaseException:
        device.close()
        raise
    limits = SchedulerLimits(
        max_num_seqs=sizes.max_num_seqs,
        max_model_len=asked_model_len,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        num_speculative_tokens=sizes.num_speculative_tokens,
        synthetic_acceptance=config.speculator.synthetic_acceptance,
        replay=drafts is not None and config.speculator.synthetic_acceptance is None,
    )
    description = _describe(config, spec, sizes, blocks, f"{kind}: {device.description} ({reason})", dtype, arm, speculator)
    description["model"]["operations"] = chosen
    description["model"]["streamed_bytes"] = streamed_bytes(model)
    description["speculator"]["streamed_bytes"] = speculation.streamed_bytes
    if config.speculator.synthetic_acceptance is not None:
        logger.warning("speculator.acceptance = %s: for timing, the text means nothing", config.speculator.acceptance)
        description["speculator"]["acceptance"] = config.speculator.acceptance
    if threads is not None:
        description["runner"]["cpu_threads"] = threads
    ranges = config.speculator.ranges
    engine = Engine(
        runner,
        Scheduler(limits, blocks, lengths=None if ranges is None else RangedLengths(ranges)),
        tokenizer,
        replace(intake, num_blocks=blocks.num_blocks),
        config.sampling.params(),
        steps_ahead=arm.steps_ahead,
        description=description,
        seed=config.seed,
    )
    if config.speculator.adapts:
        try:
            with bars("timing steps", "sizes") as advance:
                adapt(engine, spec.vocab_size, advance)
        except BaseException:
            engine.close()
            raise
    return engine


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


def _num_blocks(config: RunConfig, sizes: StepSizes, block: int, left: int, share: float) -> int:
    """scheduler.num_blocks, or as many of `block` bytes as every slot at full length can use, within a share of the bytes left.

    Raises:
        DeviceError: not even one request of a few tokens fits, or not what was asked for.
    """
    asked = config.scheduler.num_blocks
    if asked != "auto":
        if asked * block > left:
            raise DeviceError(
                f"scheduler.num_blocks = {asked}: {asked * block:,} bytes, and {max(left, 0):,} are left beside the weights; "
                f"lower it to {max(left // block, 1)} or less, or set it to auto"
            )
        return asked
    wanted = sizes.max_num_seqs * sizes.blocks_per_slot
    affordable = int(left * share) // block
    if affordable < 1:
        raise DeviceError(
            f"no memory for one KV block of {block:,} bytes: {max(left, 0):,} bytes are left beside the weights; "
            "end other programs, lower scheduler.block_size, or use a smaller model"
        )
    return min(wanted, affordable)


def _describe(
    config: RunConfig,
    spec: ModelSpec,
    sizes: StepSizes,
    blocks: BlockAllocator,
    device: str,
    dtype: WeightDtype,
    arm: ExecutionArm,
    speculator: Speculator,
) -> dict[str, Any]:
    return {
        "device": device,
        "model": {
            "source": config.model.source,
            "architecture": spec.architecture,
            "layers": spec.num_layers,
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "heads": spec.num_heads,
            "kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "vocab_size": spec.vocab_size,
            "tied_embeddings": spec.tied_embeddings,
            "dtype": dtype,
        },
        "scheduler": {
            "max_num_seqs": sizes.max_num_seqs,
            "max_model_len": sizes.max_model_len,
            "max_num_batched_tokens": sizes.max_num_batched_tokens,
            "block_size": sizes.block_size,
            "num_blocks": blocks.num_blocks,
            "kv_cache_bytes": kv_cache_bytes(spec, blocks.num_blocks, sizes.block_size, STORAGE[dtype].itemsize),
            "draft_kv_cache_bytes": speculator.cache_bytes(blocks.num_blocks, sizes.block_size),
        },
        "speculator": speculator.describe(),
        "runner": {"async": arm.asynchronous, "steps_in_flight": arm.steps_in_flight, "arm": str(arm)},
    }
