"""DFlash and DFlash2 as one recorder: committed tokens enter the drafter's context, a block of masks is filled in and picked from.

Everything from device state: lengths, anchors and accepted counts are never asked of the host. Methods: DFlash (block diffusion
with the target's hidden states injected as keys and values) and DFlash2 (dynamic convolutions and a candidate selector), as the
public checkpoints of z-lab define them.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import SlotState, StepArrays
from graphs.draft_backlog import BacklogArrays, ContextRows, DraftBacklog
from graphs.draft_layers import LayersAsTarget
from graphs.draft_pass import BlockAttention, DraftPass, Joins, PlainBlockAttention, PlainJoins, Products
from graphs.draft_pick import record_pick
from graphs.drafter_arrays import DraftArrays, DraftScratch
from graphs.key import GraphKey
from graphs.launch import Launcher
from graphs.plain_ops import THREADS, Stripes, norm_threads
from graphs.taps import TargetTaps
from kernels.bias import add_bias
from kernels.block_inputs import block_embed, block_inputs
from kernels.context_store import store_context
from kernels.rmsnorm import rms_norm

ROW_THREADS = 32
WARPS = 4


@dataclass(frozen=True)
class DraftOps:
    """How the parts of a proposal are computed that have more than one form.

    Attributes:
        joins: residual stream, norms and convolutions between the sublayers, for steps of at most `joined_rows` query rows.
        joined_rows: the others take the plain form.
        attention: of the block over context and itself.
        products: which of them are our own.
        layers: records all layers of a drafter without convolutions; None: they are recorded part by part.
        stripes: scratch of an arg max that several blocks share a row of; None: one block a row.
    """

    joins: Joins
    joined_rows: int
    attention: BlockAttention
    stripes: Stripes | None
    products: Products
    layers: LayersAsTarget | None = None

    @classmethod
    def plain(cls) -> DraftOps:
        return cls(PlainJoins(), 0, PlainBlockAttention(), None, Products())


class DFlashProposer:
    """Drafts of k tokens a request from one query pass over 1 + k rows.

    Args:
        arrays: weights and cache.
        scratch: activations, sized for the largest step.
        target_layer_ids: blocks that the target taps into scratch.features.
        num_speculative_tokens: k; a block is shorter than the one that was trained where k is.
        max_model_len: no draft stands at or behind it.
        ops: None: the plain form of everything.
        backlog: where rows of decode steps wait while nothing is drafted; None: every step moves the context on.
        works_beside: keys and values of a step's rows are computed beside its end. Not with a backlog: where rows wait behind a
            step, it would compute them for nothing.

    Raises ValueError for an arg max over a checkpoint that was trained to be walked by its selector.
    """

    appends_context = True

    def __init__(
        self,
        arrays: DraftArrays,
        scratch: DraftScratch,
        target_layer_ids: tuple[int, ...],
        *,
        num_speculative_tokens: int,
        max_model_len: int,
        ops: DraftOps | None = None,
        backlog: BacklogArrays | None = None,
        works_beside: bool = False,
    ) -> None:
        assert not (works_beside and backlog is not None)
        if arrays.selector is None and any(layer.attention_conv is not None for layer in arrays.layers):
            raise ValueError("a DFlash2 checkpoint without its candidate selector: it was not trained for the arg max of DFlash")
        self.arrays, self.scratch = arrays, scratch
        self.taps = TargetTaps(scratch.features, target_layer_ids)
        self.k, self.max_model_len = num_speculative_tokens, max_model_len
        self.ops = DraftOps.plain() if ops is None else ops
        self.works_beside = works_beside
        self.backlog = None if backlog is None else DraftBacklog(backlog, scratch.features, self._append)

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        self.record_context(launch, key, state, step)
        self.record_block(launch, key, state, step)
        self.record_pick(launch, key, state, step)

    def record_context(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Taps of the step's rows -> keys and values of all layers -> the pages of the rows that were committed."""
        rows = self._rows_of(key, step)
        if not self.works_beside:
            self._record_products(launch, key, state, step, rows)
        self._record_store(launch, state, rows)

    def record_beside(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Taps of the step's rows -> keys and values of all layers. Nothing here asks which of the rows are committed."""
        self._record_products(launch, key, state, step, self._rows_of(key, step))

    def _rows_of(self, key: GraphKey, step: StepArrays) -> ContextRows:
        tokens = key.num_tokens
        places = step.positions[:tokens], step.token_slot[:tokens], step.slot_mapping[:tokens]
        return ContextRows(self.scratch.features[:tokens], *places, step.inputs.num_tokens)

    def _append(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, rows: ContextRows) -> None:
        self._record_products(launch, key, state, step, rows)
        self._record_store(launch, state, rows)

    def _record_products(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, rows: ContextRows) -> None:
        arrays, scratch, eps = self.arrays, self.scratch, self.arrays.shape.rms_norm_eps
        tokens, live = rows.features.shape[0], rows.live
        fused, context, context_kv = scratch.fused[:tokens], scratch.context[:tokens], scratch.context_kv[:tokens]
        run = self._run(launch, key, state, step)
        run.product(fused, rows.features, arrays.fc, live)
        launch.launch(rms_norm, tokens, norm_threads(fused.shape[1]), context, fused, arrays.hidden_norm, eps, live)
        run.product(context_kv, context, arrays.context_kv, live)
        if arrays.context_bias is not None:
            launch.launch(add_bias, tokens, THREADS, context_kv, arrays.context_bias, live)

    def _record_store(self, launch: Launcher, state: SlotState, rows: ContextRows) -> None:
        arrays, tokens = self.arrays, rows.features.shape[0]
        launch.launch(
            store_context,
            (tokens, -(-len(arrays.layers) * arrays.shape.num_kv_heads // WARPS)),
            32 * WARPS,
            arrays.cache,
            self.scratch.context_kv[:tokens],
            arrays.context_k_norms,
            arrays.rope_table,
            rows.positions,
            rows.token_slot,
            rows.slot_mapping,
            state.num_computed,
            state.finished,
            arrays.shape.rms_norm_eps,
            rows.live,
        )

    def record_block(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """[anchor, mask, ...] of each request through the draft layers, up to scratch.residual."""
        arrays, scratch, shape = self.arrays, self.scratch, self.arrays.shape
        run = self._run(launch, key, state, step)
        rows, count, live = run.requests, run.count, run.live
        written = (
            scratch.block_ids[:count],
            scratch.block_positions[:count],
            scratch.pick_rows[: rows * self.k],
            scratch.context_lens[:rows],
            scratch.block_lens[:rows],
            scratch.block_live,
        )
        of_slots = (state.num_computed, state.last_sampled, step.inputs.idx_mapping[:rows])
        frozen = (shape.mask_token_id, self.max_model_len)
        if self.ops.layers is not None:
            launch.launch(block_inputs, rows, ROW_THREADS, *written, *of_slots, *frozen, step.inputs.num_requests)
            self.ops.layers.record(run, self.ops.attention)
            return
        embedded = (*frozen, shape.input_embedding_scale, step.inputs.num_requests)
        launch.launch(block_embed, count, THREADS, *written, scratch.residual[:count], *of_slots, arrays.embed, *embedded)
        joins = self.ops.joins if count <= self.ops.joined_rows else PlainJoins()
        qkv, projected = scratch.qkv[:count], scratch.projected[:count]
        activated = scratch.activated[:count]
        x = joins.first(run, arrays.layers[0].input_norm, arrays.layers[0].attention_conv)
        for index, layer in enumerate(arrays.layers):
            run.product(qkv, x, layer.qkv, live)
            if layer.qkv_bias is not None:
                launch.launch(add_bias, count, THREADS, qkv, layer.qkv_bias, live)
            self.ops.attention.record(run, index, layer)
            run.product(projected, scratch.attention[:count], layer.out, live)
            if layer.out_bias is not None:
                launch.launch(add_bias, count, THREADS, projected, layer.out_bias, live)
            x = joins.next(run, 2 * index + 1, layer.attention_conv, layer.post_norm, layer.mlp_conv)
            run.gate_up(activated, x, layer.gate_up, live)
            run.product(projected, activated, layer.down, live)
            last = index + 1 == len(arrays.layers)
            gain = arrays.final_norm if last else arrays.layers[index + 1].input_norm
            x = joins.next(run, 2 * index + 2, layer.mlp_conv, gain, None if last else arrays.layers[index + 1].attention_conv)

    def record_pick(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Hidden states -> drafts of the rows that have just committed tokens."""
        record_pick(self._run(launch, key, state, step), self.ops.stripes, self.ops.layers)

    def _run(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> DraftPass:
        return DraftPass(launch, self.arrays, self.scratch, state, step, key, self.k, self.ops.products)
