"""DFlash and DFlash2 as one recorder: committed tokens enter the drafter's context, a block of masks is filled in and picked from.

Everything from device state: lengths, anchors and accepted counts are never asked of the host. Methods: DFlash (block diffusion
with the target's hidden states injected as keys and values) and DFlash2 (dynamic convolutions and a candidate selector), as the
public checkpoints of z-lab define them.
"""

from __future__ import annotations

from graphs.arrays import SlotState, StepArrays
from graphs.drafter_arrays import DraftArrays, DraftConvArrays, DraftLayerArrays, DraftScratch
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from graphs.taps import TargetTaps
from kernels.argmax import argmax
from kernels.bias import add_bias
from kernels.block_attention import block_attention
from kernels.block_conv import block_conv
from kernels.block_inputs import block_inputs
from kernels.candidates import top_candidates
from kernels.context_cells import context_cells
from kernels.context_store import store_context
from kernels.draft_store import store_drafts
from kernels.embed import embed
from kernels.gather import gather_rows
from kernels.head_norm import head_norm
from kernels.logit_scale import logit_scale, scale_rows
from kernels.rmsnorm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.selector import edge_scores, selector_walk
from kernels.swiglu import swiglu

THREADS = 128
ROW_THREADS = 32


class DFlashProposer:
    """Drafts of k tokens a request from one query pass over 1 + k rows.

    Args:
        arrays: weights and cache.
        scratch: activations, sized for the largest step.
        target_layer_ids: blocks that the target taps into scratch.features.
        num_speculative_tokens: k; a block is shorter than the one that was trained where k is.
        max_model_len: no draft stands at or behind it.

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
    ) -> None:
        if arrays.selector is None and any(layer.attention_conv is not None for layer in arrays.layers):
            raise ValueError("a DFlash2 checkpoint without its candidate selector: it was not trained for the arg max of DFlash")
        self.arrays, self.scratch = arrays, scratch
        self.taps = TargetTaps(scratch.features, target_layer_ids)
        self.k, self.max_model_len = num_speculative_tokens, max_model_len

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        self.record_context(launch, key, state, step)
        self.record_block(launch, key, state, step)
        self.record_pick(launch, key, state, step)

    # ---- context -----------------------------------------------------------------------------------------------

    def record_context(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Taps of the step's rows -> keys and values of all layers -> the cells of the rows that were committed."""
        arrays, scratch, eps = self.arrays, self.scratch, self.arrays.shape.rms_norm_eps
        rows, tokens, live = key.num_requests, key.num_tokens, step.inputs.num_tokens
        cells, context, context_kv = scratch.cells[:tokens], scratch.context[:tokens], scratch.context_kv[:tokens]
        launch.launch(
            context_cells,
            rows,
            ROW_THREADS,
            cells,
            step.slot_mapping[:tokens],
            step.inputs.query_start_loc[: rows + 1],
            step.num_rejected[:rows],
            state.finished,
            step.inputs.idx_mapping[:rows],
            step.inputs.num_requests,
        )
        launch.matmul(context, scratch.features[:tokens], arrays.fc, live)
        launch.launch(rms_norm, tokens, THREADS, context, context, arrays.hidden_norm, eps, live)
        launch.matmul(context_kv, context, arrays.context_kv, live)
        if arrays.context_bias is not None:
            launch.launch(add_bias, tokens, THREADS, context_kv, arrays.context_bias, live)
        launch.launch(
            store_context,
            (tokens, len(arrays.layers) * arrays.shape.num_kv_heads),
            ROW_THREADS,
            arrays.cache,
            context_kv,
            arrays.context_k_norms,
            arrays.rope_table,
            step.positions[:tokens],
            cells,
            eps,
            live,
        )

    # ---- query pass --------------------------------------------------------------------------------------------

    def record_block(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """[anchor, mask, ...] of each request through the draft layers; the final norm ends up in scratch.normed."""
        arrays, scratch, shape = self.arrays, self.scratch, self.arrays.shape
        rows, queries = key.num_requests, 1 + self.k
        count = rows * queries
        residual, normed = scratch.residual[:count], scratch.normed[:count]
        live = scratch.block_live[0:1]
        launch.launch(
            block_inputs,
            rows,
            ROW_THREADS,
            scratch.block_ids[:count],
            scratch.block_positions[:count],
            scratch.pick_rows[: rows * self.k],
            scratch.context_lens[:rows],
            scratch.block_lens[:rows],
            scratch.block_live,
            state.num_computed,
            state.last_sampled,
            step.inputs.idx_mapping[:rows],
            shape.mask_token_id,
            self.max_model_len,
            step.inputs.num_requests,
        )
        launch.launch(embed, count, THREADS, residual, arrays.embed, scratch.block_ids[:count], live)
        if shape.input_embedding_scale != 1.0:
            launch.launch(scale_rows, count, THREADS, residual, shape.input_embedding_scale, live)
        launch.launch(rms_norm, count, THREADS, normed, residual, arrays.layers[0].input_norm, shape.rms_norm_eps, live)
        norms_after = [layer.input_norm for layer in arrays.layers[1:]] + [arrays.final_norm]
        for index, norm_after in enumerate(norms_after):
            layer = arrays.layers[index]
            added = self._record_attention(launch, index, layer, key, state, step)
            launch.launch(add_rms_norm, count, THREADS, normed, residual, added, layer.post_norm, shape.rms_norm_eps, live)
            added = self._record_mlp(launch, layer, count)
            launch.launch(add_rms_norm, count, THREADS, normed, residual, added, norm_after, shape.rms_norm_eps, live)

    def _record_attention(
        self, launch: Launcher, index: int, layer: DraftLayerArrays, key: GraphKey, state: SlotState, step: StepArrays
    ) -> Array:
        """scratch.normed -> what the sublayer adds to the residual stream."""
        arrays, scratch, shape = self.arrays, self.scratch, self.arrays.shape
        rows, count, live = key.num_requests, key.num_requests * (1 + self.k), scratch.block_live[0:1]
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        qkv, attention, projected = scratch.qkv[:count], scratch.attention[:count], scratch.projected[:count]
        launch.matmul(qkv, self._before(launch, layer.attention_conv, count), layer.qkv, live)
        if layer.qkv_bias is not None:
            launch.launch(add_bias, count, THREADS, qkv, layer.qkv_bias, live)
        launch.launch(
            head_norm, count, THREADS, qkv, layer.q_norm, layer.k_norm, heads, kv_heads, shape.rms_norm_eps, live
        )
        launch.launch(rope, count, THREADS, qkv, arrays.rope_table, scratch.block_positions[:count], heads, kv_heads, live)
        launch.launch(
            block_attention,
            (count, heads),
            THREADS,
            attention,
            qkv,
            arrays.cache,
            state.block_tables,
            step.inputs.idx_mapping[:rows],
            scratch.context_lens[:rows],
            scratch.block_lens[:rows],
            index,
            heads,
            layer.window,
            int(layer.causal),
            float(shape.head_dim) ** -0.5,
            live,
        )
        launch.matmul(projected, attention, layer.out, live)
        if layer.out_bias is not None:
            launch.launch(add_bias, count, THREADS, projected, layer.out_bias, live)
        return self._behind(launch, layer.attention_conv, projected)

    def _record_mlp(self, launch: Launcher, layer: DraftLayerArrays, count: int) -> Array:
        """scratch.normed -> what the sublayer adds to the residual stream."""
        scratch, live = self.scratch, self.scratch.block_live[0:1]
        gate_up, activated, projected = scratch.gate_up[:count], scratch.activated[:count], scratch.projected[:count]
        launch.matmul(gate_up, self._before(launch, layer.mlp_conv, count), layer.gate_up, live)
        launch.launch(swiglu, count, THREADS, activated, gate_up, live)
        launch.matmul(projected, activated, layer.down, live)
        return self._behind(launch, layer.mlp_conv, projected)

    def _before(self, launch: Launcher, conv: DraftConvArrays | None, count: int) -> Array:
        """The input of a sublayer: scratch.normed, convolved where the drafter does that. Both sides get their kernels from it."""
        scratch, normed = self.scratch, self.scratch.normed[:count]
        if conv is None:
            return normed
        assert scratch.conv_delta is not None
        launch.matmul(scratch.conv_delta[:count], normed, conv.projection, scratch.block_live[0:1])
        return self._convolve(launch, conv, normed, side=0)

    def _behind(self, launch: Launcher, conv: DraftConvArrays | None, projected: Array) -> Array:
        return projected if conv is None else self._convolve(launch, conv, projected, side=1)

    def _convolve(self, launch: Launcher, conv: DraftConvArrays, x: Array, *, side: int) -> Array:
        scratch, count = self.scratch, x.shape[0]
        assert scratch.conv_delta is not None
        out, delta, live = scratch.convolved[:count], scratch.conv_delta[:count], scratch.block_live[0:1]
        launch.launch(block_conv, count, THREADS, out, x, conv.base_kernel, delta, side, 1 + self.k, live)
        return out

    # ---- pick --------------------------------------------------------------------------------------------------

    def record_pick(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """scratch.normed -> logits of the masks' rows -> drafts of the rows that have just committed tokens."""
        arrays, scratch, shape = self.arrays, self.scratch, self.arrays.shape
        rows, picks = key.num_requests, key.num_requests * self.k
        live, chosen, logits = scratch.block_live[1:2], scratch.chosen[:picks], scratch.logits[:picks]
        hidden = scratch.pick_hidden[:picks]
        normed = scratch.normed[: rows * (1 + self.k)]
        launch.launch(gather_rows, picks, THREADS, hidden, normed, scratch.pick_rows[:picks], live)
        launch.matmul(logits, hidden, arrays.head, live)
        if shape.output_multiplier != 1.0 or shape.logit_cap:
            launch.launch(logit_scale, picks, THREADS, logits, shape.output_multiplier, shape.logit_cap, live)
        if arrays.selector is None:
            launch.launch(argmax, picks, THREADS, chosen, logits, shape.vocab_size, live)
        else:
            self._record_selector(launch, rows, step)
        launch.launch(
            store_drafts,
            1,
            ROW_THREADS,
            state.draft_tokens,
            state.num_draft,
            chosen,
            scratch.block_lens[:rows],
            state.finished,
            step.inputs.idx_mapping[:rows],
            step.num_sampled[:rows],
            step.inputs.num_requests,
        )

    def _record_selector(self, launch: Launcher, rows: int, step: StepArrays) -> None:
        """Candidates of each row, scores of all pairs of neighbours, and the walk along the best from the anchor on."""
        arrays, scratch, picks, live = self.arrays, self.scratch, rows * self.k, self.scratch.block_live[1:2]
        assert arrays.selector is not None
        assert scratch.selector is not None
        ids, values = scratch.selector.ids[:picks], scratch.selector.values[:picks]
        gate, scores = scratch.selector.gate[:picks], scratch.selector.scores[:picks]
        logits = scratch.logits[:picks]
        launch.launch(top_candidates, picks, THREADS, ids, values, logits, arrays.shape.vocab_size, live)
        launch.matmul(gate, scratch.pick_hidden[:picks], arrays.selector.projection, live)
        launch.launch(
            edge_scores,
            picks,
            THREADS,
            scores,
            ids,
            values,
            gate,
            arrays.selector.predecessors,
            arrays.selector.successors,
            scratch.block_ids[: rows * (1 + self.k)],
            self.k,
            live,
        )
        launch.launch(
            selector_walk, rows, ROW_THREADS, scratch.chosen[:picks], ids, scores, self.k, step.inputs.num_requests
        )
