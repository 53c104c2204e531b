"""From a configuration to a running engine: a blueprint, then device, weights, operations, drafter, graphs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from graphs.arrays import ModelArrays
from graphs.transformer import DecoderTarget
from runtime.blueprint import Blueprint, draw_up
from runtime.checkpoint.weights import STORAGE
from runtime.config import ConfigSource, RunConfig, load_config
from runtime.console import ProgressBars, silent_bar
from runtime.device import Device, open_device, refuse_absent_gpu
from runtime.draft_calibration import adapt, draft_lengths
from runtime.draft_lengths import RangedLengths
from runtime.engine import Engine
from runtime.errors import DeviceError
from runtime.intake import Expects
from runtime.kv_cache import BlockAllocator
from runtime.mirror_policy import resolve_policy
from runtime.models.choose_ops import OpsChooser
from runtime.models.sampling_scratch import build_logprobs, build_sampler
from runtime.models.scratch import allocate_scratch, build_ops
from runtime.models.upload import kv_cache_bytes, streamed_bytes, upload_model
from runtime.runner import Runner
from runtime.runner_options import RunnerOptions
from runtime.sampling_record import needs_more_than_greedy
from runtime.scheduler import Scheduler, SchedulerLimits
from runtime.speculators.dflash_ops import TargetOps
from runtime.speculators.proposers import Speculation
from runtime.step_buffers import StepSizes
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
    config, bars = load_config(source, **overrides), progress or silent_bar
    if on_device is None:
        refuse_absent_gpu(config.device)  # before a model is fetched
    plan = draw_up(config, bars)
    if expects is not None:
        expects(plan.intake)
    device = on_device or open_device(plan.kind, poison=config.mirror.poison, overlap=config.graphs.overlap)
    try:
        built = _build(plan, device, bars)
    except BaseException:
        device.close()
        raise
    engine = _engine_of(plan, built)
    if config.speculator.adapts:
        try:
            with bars("timing steps", "sizes") as advance:
                adapt(engine, plan.spec.vocab_size, advance)
        except BaseException:
            engine.close()
            raise
    return engine


@dataclass(frozen=True)
class _Built:
    """What lies on the device, graphs and all.

    sizes: those of the blueprint, max_model_len within the KV pool. operations: what was chosen, for the description.
    """

    runner: Runner
    model: ModelArrays
    blocks: BlockAllocator
    sizes: StepSizes
    speculation: Speculation
    operations: str


def _build(plan: Blueprint, device: Device, bars: ProgressBars) -> _Built:
    """Weights and KV cache, operations, drafter and graphs."""
    config, spec = plan.config, plan.spec
    policy = resolve_policy(config.mirror.policy, device)
    model, blocks = _upload(plan, device, bars)
    # A pool smaller than the longest sequence is the limit then, on the device as in the scheduler, which is told the length that
    # was asked for as well: a request that the pool ends needs more blocks, not a larger max_model_len.
    sizes = replace(plan.sizes, max_model_len=min(plan.sizes.max_model_len, blocks.num_positions))
    scratch = allocate_scratch(device, spec, sizes, plan.dtype)
    chooser = OpsChooser(device, model, scratch) if plan.on_gpu else None
    choice = config.graphs.ops
    ops, operations = build_ops(
        device, spec, sizes, plan.dtype, on_gpu=plan.on_gpu, choice=choice, numerics=config.numerics, chooser=chooser
    )
    logger.info("operations: %s", operations)
    with (bars if plan.speculator.drafter else silent_bar)("loading drafter", "bytes") as advance:
        speculation = plan.speculator.build(
            device,
            model,
            sizes,
            blocks.num_blocks,
            advance,
            on_gpu=plan.on_gpu,
            choice=choice,
            target_ops=TargetOps(model.shape, ops),
        )
    target = DecoderTarget(model, scratch, speculation.taps, ops)
    drafts, verification = speculation.distribution, config.speculator.verification
    sampler = build_sampler(device, scratch.logits, sizes, spec.vocab_size, drafts, verification)
    logprobs = build_logprobs(device, model, scratch, sizes)
    options = _options(plan)
    runner = Runner(device, target, speculation.proposer, sizes, policy, options, sampler=sampler, logprobs=logprobs)
    with bars("capturing graphs", "graphs") as advance:
        runner.capture(advance, on_demand=needs_more_than_greedy(config.sampling.params()))
    return _Built(runner, model, blocks, sizes, speculation, operations)


def _upload(plan: Blueprint, device: Device, bars: ProgressBars) -> tuple[ModelArrays, BlockAllocator]:
    """The weights, and a KV pool within what they leave."""
    spec, sizes = plan.spec, plan.sizes
    with bars("loading weights", "bytes") as advance:
        weights = plan.checkpoint.stored_weights(advance, plan.dtype)
        left = device.free_bytes() - weights.nbytes
        block_bytes = kv_cache_bytes(spec, 1, sizes.block_size, STORAGE[plan.dtype].itemsize)
        block_bytes += plan.speculator.cache_bytes(1, sizes.block_size)
        num_blocks = _num_blocks(plan.config, sizes, block_bytes, left, KV_SHARES[plan.kind])
        blocks = BlockAllocator(num_blocks, sizes.block_size)
        model = upload_model(
            device,
            spec,
            weights,
            max_model_len=min(sizes.max_model_len, blocks.num_positions),
            num_blocks=num_blocks,
            block_size=sizes.block_size,
        )
    return model, blocks


def _options(plan: Blueprint) -> RunnerOptions:
    graphs, speculator = plan.config.graphs, plan.config.speculator
    return RunnerOptions(
        steps_in_flight=plan.arm.steps_in_flight,
        graph_mode=graphs.mode,
        buckets=None if graphs.buckets == "auto" else graphs.buckets,
        token_buckets=None if graphs.token_buckets == "auto" else graphs.token_buckets,
        eos_token_ids=plan.checkpoint.tokenizer.eos_token_ids,
        poison=plan.config.mirror.poison,
        dot_folder=None if graphs.dot is None else user_path(graphs.dot),
        synthetic_acceptance=speculator.synthetic_acceptance,
        draft_lengths=draft_lengths(speculator),
    )


def _engine_of(plan: Blueprint, built: _Built) -> Engine:
    config, sizes, drafts = plan.config, built.sizes, built.speculation.distribution
    acceptance = config.speculator.synthetic_acceptance
    limits = SchedulerLimits(
        max_num_seqs=sizes.max_num_seqs,
        max_model_len=plan.sizes.max_model_len,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        num_speculative_tokens=sizes.num_speculative_tokens,
        synthetic_acceptance=acceptance,
        replay=drafts is not None and acceptance is None,
    )
    if acceptance is not None:
        logger.warning("speculator.acceptance = %s: for timing, the text means nothing", config.speculator.acceptance)
    ranges = config.speculator.ranges
    return Engine(
        built.runner,
        Scheduler(limits, built.blocks, lengths=None if ranges is None else RangedLengths(ranges)),
        plan.tokenizer,
        replace(plan.intake, num_blocks=built.blocks.num_blocks),
        config.sampling.params(),
        steps_ahead=plan.arm.steps_ahead,
        description=_describe(plan, built),
        seed=config.seed,
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


def _describe(plan: Blueprint, built: _Built) -> dict[str, Any]:
    """What `info` says beside what the runner knows."""
    spec, sizes, speculator, arm = plan.spec, built.sizes, plan.speculator, plan.arm
    blocks, itemsize = built.blocks, STORAGE[plan.dtype].itemsize
    acceptance = plan.config.speculator.synthetic_acceptance
    return {
        "device": f"{plan.kind}: {built.runner.device.description} ({plan.reason})",
        "model": {
            "source": plan.config.model.source,
            "architecture": spec.architecture,
            "layers": spec.num_layers,
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "heads": spec.num_heads,
            "kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "vocab_size": spec.vocab_size,
            "tied_embeddings": spec.tied_embeddings,
            "dtype": plan.dtype,
            "operations": built.operations,
            "streamed_bytes": streamed_bytes(built.model),
        },
        "scheduler": {
            "max_num_seqs": sizes.max_num_seqs,
            "max_model_len": sizes.max_model_len,
            "max_num_batched_tokens": sizes.max_num_batched_tokens,
            "block_size": sizes.block_size,
            "num_blocks": blocks.num_blocks,
            "kv_cache_bytes": kv_cache_bytes(spec, blocks.num_blocks, sizes.block_size, itemsize),
            "draft_kv_cache_bytes": speculator.cache_bytes(blocks.num_blocks, sizes.block_size),
        },
        "speculator": {
            **speculator.describe(),
            "streamed_bytes": built.speculation.streamed_bytes,
            **({} if acceptance is None else {"acceptance": plan.config.speculator.acceptance}),
        },
        "runner": {
            "async": arm.asynchronous,
            "steps_in_flight": arm.steps_in_flight,
            "arm": str(arm),
            **({} if plan.threads is None else {"cpu_threads": plan.threads}),
        },
    }
