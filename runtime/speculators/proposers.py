"""speculator.method -> what drafts: a drafter is opened and checked early, its arrays are made once the target is there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphs.arrays import ModelArrays
from graphs.propose import NgramProposer, Proposer
from graphs.propose_dflash import DFlashProposer
from graphs.sampling_state import DraftDistribution
from graphs.taps import TargetTaps
from runtime.checkpoint.source import resolve_source
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.config import SpeculatorConfig
from runtime.device import Device
from runtime.models.scratch import OpsChoice
from runtime.models.spec import ModelSpec
from runtime.speculators.dflash_config import check_target
from runtime.speculators.dflash_ops import TargetOps, build_draft_ops
from runtime.speculators.dflash_upload import (
    allocate_backlog,
    allocate_draft_scratch,
    draft_cache_bytes,
    draft_streamed_bytes,
    upload_drafter,
)
from runtime.speculators.dflash_weights import DraftCheckpoint
from runtime.speculators.random_drafter import RandomDrafter, is_random_drafter
from runtime.step_buffers import StepSizes

logger = logging.getLogger(__name__)


def _open_drafter(source: str, target: ModelSpec) -> DraftCheckpoint | RandomDrafter:
    """Files that are here or are fetched, or a shape that fits the target."""
    if is_random_drafter(source):
        return RandomDrafter(source, target)
    return DraftCheckpoint(resolve_source(source, "speculator.draft_source"))


@dataclass(frozen=True)
class Speculation:
    """Attributes:
    proposer: records the drafts of the next step; None without speculation.
    taps: what it reads of the target; None when it reads no hidden states.
    streamed_bytes: of weights that a proposal reads.
    distribution: what it draws its drafts from; None when it is certain of them.
    """

    proposer: Proposer | None = None
    taps: TargetTaps | None = None
    streamed_bytes: int = 0
    distribution: DraftDistribution | None = None


class Speculator:
    """What a configuration says about speculation, opened and found to fit the target.

    Raises DraftgraphError: the drafter cannot be found, is corrupt, is unknown, or was made for another target.
    """

    def __init__(self, config: SpeculatorConfig, target: ModelSpec, dtype: WeightDtype) -> None:
        self._config, self._dtype = config, dtype
        self.drafter: DraftCheckpoint | RandomDrafter | None = None
        if config.method != "dflash" or config.k == 0:
            return
        assert config.draft_source is not None, "RunConfig refuses dflash without a source"
        self.drafter = _open_drafter(config.draft_source, target)
        spec = self.drafter.spec
        check_target(spec, target, config.k, f"speculator.draft_source = {config.draft_source}")
        if spec.num_target_layers is None:
            logger.info("drafter %s does not say how many blocks its target has: its taps fit, no more is known", self.drafter.path)
        taps = list(spec.target_layer_ids)
        if taps != sorted(taps):
            logger.warning("target_layer_ids = %s of %s do not rise: fc reads them in this order", taps, self.drafter.path)

    @property
    def max_positions(self) -> int | None:
        """Positions that the drafter was made for; None where there is none, or it has no such bound."""
        return None if self.drafter is None else self.drafter.spec.max_position_embeddings

    def cache_bytes(self, num_blocks: int, block_size: int) -> int:
        """Bytes of keys and values that the drafter keeps beside the target's."""
        return 0 if self.drafter is None else draft_cache_bytes(
            self.drafter.spec, num_blocks, block_size, STORAGE[self._dtype].itemsize
        )

    def build(
        self,
        device: Device,
        target: ModelArrays,
        sizes: StepSizes,
        num_blocks: int,
        progress: Callable[[int, int], None],
        *,
        on_gpu: bool = False,
        choice: OpsChoice = "auto",
        target_ops: TargetOps | None = None,
    ) -> Speculation:
        """Weights and buffers on the device, and the recorder that uses them, in the forms of `choice` (graphs.ops); layers like
        the target's in those of `target_ops`."""
        config = self._config
        if config.k == 0:
            return Speculation()
        if self.drafter is None:
            return Speculation(NgramProposer(min_n=config.ngram_min, max_n=config.ngram_max))
        spec = self.drafter.spec
        arrays = upload_drafter(
            device,
            spec,
            self.drafter.load_weights(progress, self._dtype),
            target,
            max_model_len=sizes.max_model_len,
            num_blocks=num_blocks,
            block_size=sizes.block_size,
        )
        scratch = allocate_draft_scratch(device, spec, sizes, self._dtype)
        proposer = DFlashProposer(
            arrays,
            scratch,
            spec.target_layer_ids,
            num_speculative_tokens=sizes.num_speculative_tokens,
            max_model_len=sizes.max_model_len,
            ops=build_draft_ops(
                device, spec, sizes, scratch, self._dtype, on_gpu=on_gpu, choice=choice, target=target_ops
            ),
            backlog=allocate_backlog(device, spec, sizes, self._dtype) if config.pauses else None,
            works_beside=not config.pauses,
        )
        distribution = None if scratch.selector is None else scratch.selector.distribution
        return Speculation(proposer, proposer.taps, draft_streamed_bytes(arrays), distribution)

    def _counts(self) -> Any:
        """As it was asked for: a number, auto, or a number by the number of requests."""
        return self._config.num_speculative_tokens if self._config.k else 0

    def describe(self) -> dict[str, Any]:
        """What `draftgraph info` says."""
        values: dict[str, Any] = {"method": self._config.method, "num_speculative_tokens": self._counts()}
        if self.drafter is not None:
            spec = self.drafter.spec
            values["drafter"] = {
                "source": self._config.draft_source,
                "architecture": "DFlash2" if spec.version == 2 else "DFlash",
                "layers": spec.num_layers,
                "target_layer_ids": list(spec.target_layer_ids),
                "block_size": spec.block_size,
                "mask_token_id": spec.mask_token_id,
                "attention": [f"{'causal' if a.causal else 'both ways'}, window {a.window or 'none'}" for a in spec.attention],
            }
        return values
