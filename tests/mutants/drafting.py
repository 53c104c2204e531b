"""Mutations of block drafters, along the check-list of DFLASH.md 7: what a defect there costs is acceptance, never text."""

from __future__ import annotations

from tests.mutants.mutation import Edit, Mutation, mutation

_TAPS, _PROPOSE, _PASS, _PICK = "graphs/taps.py", "graphs/propose_dflash.py", "graphs/draft_pass.py", "graphs/draft_pick.py"
_CONTEXT, _INPUTS, _ATTENTION = "kernels/context_store.py", "kernels/block_inputs.py", "kernels/block_attention.py"
_SELECTOR, _STORE = "kernels/selector.py", "kernels/draft_store.py"
_ATTEND = "kernels/block_attend.py"
_CONFIG, _SPECULATOR = "runtime/speculators/dflash_config.py", "runtime/speculators/proposers.py"

_KERNELS, _STAGES, _ENGINE = ("tests/test_" + name + ".py::test_" for name in ("kernels_dflash", "dflash_stages", "dflash_engine"))
_BLOCKS, _SELECTORS = "tests/test_kernels_block_", "tests/test_kernels_selector.py::test_"
_FIXTURE = _KERNELS + "block_inputs_of_the_public_fixture[cpu-1x1]"
_STORED = _KERNELS + "store_context[4-7-3-2-6-float32-cpu-1x1]"
_PAGES = _STAGES + "context_pages[full]"
_COMMITTED = _STAGES + "only_committed_tokens_have_pages[full]"
_LAYERS = _STAGES + "layers"
_PICKED = _STAGES + "hidden_logits_selector_and_drafts"
_REBUILD = _ENGINE + "pages_equal_a_rebuild_after_every_step"
_WALK = _SELECTORS + "selector_walk[(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)-4-4-cpu-1x1]"

_LESS = "the drafter guesses from something else: fewer drafts are accepted, and every text is right"

MUTATIONS = (
    # ---- taps --------------------------------------------------------------------------------------------------------
    mutation(
        "tap-one-block-early",
        "D1",
        _TAPS,
        "if layer_id == layer]",
        "if layer_id == layer + 1]",
        test=_REBUILD + "[v2]",
        text="3 to 5 percent of acceptance in a trained drafter: numbers alone show it",
    ),
    mutation(
        "tap-one-block-late",
        "D1",
        _TAPS,
        "if layer_id == layer]",
        "if layer_id == layer - 1]",
        test=_REBUILD + "[v1-mixed]",
        text="as early: numbers alone show it",
    ),
    mutation(
        "taps-in-the-order-of-blocks",
        "D1",
        _TAPS,
        "for place, layer_id in enumerate(self.layer_ids)",
        "for place, layer_id in enumerate(sorted(self.layer_ids))",
        test=_REBUILD + "[v1-mixed]",
        text="most checkpoints list them in that order; one that does not drafts from columns of another block",
    ),
    # ---- the block ---------------------------------------------------------------------------------------------------
    mutation(
        "slot-predicts-the-next-token",
        "D2",
        _INPUTS,
        "+ i - i32(1)] = at if row < live else i32(0)",
        "+ i - i32(1)] = at - i32(1) if row < live else i32(0)",
        test=_FIXTURE,
        text="the commonest mistake of ports: a slot fills in its own position; " + _LESS,
    ),
    mutation(
        "mask-in-the-place-of-the-anchor",
        "D2",
        _INPUTS,
        "if row < num_requests[0] and i == i32(0):",
        "if row < num_requests[0] and i == i32(99):",
        test=_FIXTURE,
        text=_LESS,
    ),
    mutation(
        "positions-of-the-block-from-zero",
        "D2",
        _INPUTS,
        "min(i32(computed + i), i32(max_model_len - i32(1)))",
        "min(i32(i), i32(max_model_len - i32(1)))",
        test=_FIXTURE,
        text=_LESS,
    ),
    mutation(
        "context-one-token-too-long",
        "B6",
        _INPUTS,
        "context_lens[row] = computed",
        "context_lens[row] = computed + i32(1)",
        test=_FIXTURE,
        text="the drafter attends to a cell that holds a rejected token, or nothing",
    ),
    mutation(
        "anchor-in-the-context",
        "D2",
        _CONTEXT,
        "if position < committed:",
        "if position <= committed:",
        test=_STORED,
        text="a rejected draft at the anchor's place is stored as if it were committed",
    ),
    mutation(
        "block-of-the-trained-length",
        "D7",
        _PASS,
        "conv.base_kernel, delta, side, 1 + run.k, run.live",
        "conv.base_kernel, delta, side, 8, run.live",
        test=_LAYERS + "[v2]",
        text="with k as trained it is the same number; with a shorter block rows of two requests mix",
    ),
    # ---- keys and values of the context ------------------------------------------------------------------------------
    mutation(
        "context-through-the-norm-of-a-layer",
        "D3",
        _PROPOSE,
        "norm_threads(fused.shape[1]), context, fused, arrays.hidden_norm, eps, live)",
        "norm_threads(fused.shape[1]), context, fused, arrays.layers[0].input_norm, eps, live)",
        test=_PAGES,
        text="the layers share one normed context, which no layer norms again; " + _LESS,
    ),
    mutation(
        "keys-of-the-context-not-rotated",
        "D3",
        _CONTEXT,
        "kept(first * cosine - second * sine, context_kv",
        "kept(first, context_kv",
        test=_STORED,
        text=_LESS,
    ),
    mutation(
        "keys-of-the-context-not-normed",
        "D3",
        _CONTEXT,
        "scale = f32(1.0) / f32(math.sqrt(warp_sum(squares) / f32(head_dim) + eps))",
        "scale = f32(1.0)",
        test=_STORED,
        text=_LESS,
    ),
    mutation(
        "values-of-the-context-normed",
        "D3",
        _CONTEXT,
        "context_kv[row, value + i], cache)\n",
        "context_kv[row, value + i] * scale, cache)\n",
        test=_STORED,
        text="keys go through a norm, values do not; " + _LESS,
    ),
    mutation(
        "key-norm-of-the-first-layer-for-all",
        "D3",
        _CONTEXT,
        "first = context_kv[row, key + i] * scale * k_norms[layer, i]",
        "first = context_kv[row, key + i] * scale * k_norms[0, i]",
        test=_STORED,
        text=_LESS,
    ),
    mutation(
        "context-of-the-prompt-alone",
        "9c-40",
        _PROPOSE,
        "        self.record_context(launch, key, state, step)\n        self.record_block",
        "        if key.num_requests < key.num_tokens // 8:\n            self.record_context(launch, key, state, step)\n"
        "        self.record_block",
        test=_REBUILD + "[v2]",
        text="a context that is appended to no more: " + _LESS,
    ),
    # ---- scalars, tables ---------------------------------------------------------------------------------------------
    mutation(
        "embedding-of-the-masks-not-scaled",
        "D4",
        _PROPOSE,
        "embedded = (*frozen, shape.input_embedding_scale, step",
        "embedded = (*frozen, 1.0, step",
        test=_LAYERS + "[scalars]",
        text="few targets have the scalar at all; " + _LESS,
    ),
    mutation(
        "scalars-of-the-output-left-out",
        "D8",
        _PICK,
        "scaled = shape.output_multiplier != 1.0 or bool(shape.logit_cap)",
        "scaled = shape.output_multiplier > 1.0",
        test=_PICKED + "[scalars]",
        text="the order of the logits is the same: with the arg max of DFlash nothing changes, the selector weighs them wrongly",
    ),
    # ---- beside the end of the step ------------------------------------------------------------------------------------
    mutation(
        "keys-and-values-neither-beside-nor-behind",
        "D5",
        "runtime/step_recorders.py",
        "if proposer is not None and proposer.works_beside:",
        "if proposer is None:",
        test=_REBUILD + "[v2]",
        text=_LESS,
    ),
    mutation(
        "what-runs-beside-is-never-joined",
        "D5",
        "graphs/step.py",
        "    launch.join(other)\n",
        "",
        test=_ENGINE + "untapped_targets_launch_what_they_launched_before",
        text="no graph is captured: with graphs.mode = eager the pages are stored before they are computed, by chance",
        expects="unjoined fork",
    ),
    # ---- what does not survive ---------------------------------------------------------------------------------------
    mutation(
        "rejected-rows-enter-the-context",
        "D5",
        _CONTEXT,
        "committed = num_computed[slot]",
        "committed = i32(2147483647)",
        test=_COMMITTED,
        text="they lie behind the context and are overwritten as it grows, unless it ends first",
    ),
    Mutation(
        "keys-of-masks-kept",
        "D5",
        (
            Edit(
                _PASS,
                "from kernels.head_norm import head_norm\n",
                "from kernels.head_norm import head_norm\nfrom kernels.kv_store import store_kv\n",
            ),
            Edit(
                _PASS,
                "        launch.launch(\n            block_attention,",
                "        caches = (layer.k_cache, layer.v_cache)\n"
                "        launch.launch(store_kv, (count, kv_heads), THREADS, *caches, qkv, positions, heads, run.live)\n"
                "        launch.launch(\n            block_attention,",
            ),
        ),
        _COMMITTED,
        "what a mask wrote is overwritten by the tokens that take its place, where these come",
    ),
    mutation(
        "drafts-of-a-finished-request-stay",
        "D5",
        _STORE,
        "if num_sampled[row] > i32(0) and finished[slot] == i32(0):",
        "if num_sampled[row] > i32(0):",
        test=_KERNELS + "store_drafts[cpu-1x1]",
        text="the next owner of the slot is admitted before anybody reads them: the guard of a guard",
    ),
    mutation(
        "drafts-beyond-the-model-length",
        "D5",
        _SELECTOR,
        "drafts = max(min(picks, block_lens[request] - i32(1)), i32(0))",
        "drafts = picks",
        test=_WALK,
        text="they are verified at a clamped position and rejected, mostly",
    ),
    # ---- who sees whom -----------------------------------------------------------------------------------------------
    mutation(
        "window-ignored",
        "D6",
        _ATTENTION,
        "        if window > 0:\n            first",
        "        if window > 65536:\n            first",
        test=_LAYERS + "[sliding-both-ways]",
        text="beyond the window rotations extrapolate: acceptance falls from 73 to 13 percent there, and nowhere else",
    ),
    mutation(
        "window-one-too-wide",
        "D6",
        _ATTENTION,
        "first = max(position - window + 1, 0)",
        "first = max(position - window, 0)",
        test=_LAYERS + "[sliding-causal-by-default]",
        text=_LESS,
    ),
    mutation(
        "causal-layers-see-both-ways",
        "D6",
        _ATTENTION,
        "if causal > 0:",
        "if causal > 1:",
        test=_LAYERS + "[full-causal]",
        text=_LESS,
    ),
    mutation(
        "is-causal-counts-for-sliding-layers-alone",
        "D6",
        _CONFIG,
        "slide if everywhere is None else everywhere) for slide in slides",
        "slide if everywhere is None else everywhere and slide) for slide in slides",
        test="tests/test_dflash_config.py::test_who_sees_whom[fields1-expected1]",
        text=_LESS,
    ),
    mutation(
        "masks-do-not-see-each-other",
        "D6",
        _ATTEND,
        "keys = max(context + length, i32(1))",
        "keys = max(context + min(length, i32(1)), i32(1))",
        test=_BLOCKS + "attention.py::test_block_attend[0-0-6-8-(64, 129)-(8, 8)-64-float32-cpu-1x1]",
        text=_LESS,
    ),
    mutation(
        "key-at-the-edge-of-the-window-skipped",
        "D6",
        _ATTEND,
        "begin, end = max(position - window + i32(1), i32(0)), min(end, position + window)",
        "begin, end = max(position - window + i32(2), i32(0)), min(end, position + window)",
        test=_BLOCKS + "attention.py::test_block_attend[70-0-6-8-(64, 129)-(8, 8)-64-float32-cpu-1x1]",
        text=_LESS,
    ),
    # ---- resources ---------------------------------------------------------------------------------------------------
    mutation(
        "pages-of-the-drafter-not-counted",
        "D9",
        _SPECULATOR,
        "return 0 if self.drafter is None else",
        "return 0 if self.drafter is None or num_blocks else",
        test=_ENGINE + "info_shows_the_drafter",
        text="memory runs out while graphs are captured, on full GPUs alone",
    ),
)
