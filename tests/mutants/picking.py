"""Mutations of what DFlash2 adds to a block drafter: convolutions, and the selector's walk over the candidates of its slots."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_PASS, _CONV, _JOIN, _SELECTOR = "graphs/draft_pass.py", "kernels/block_conv.py", "kernels/block_join.py", "kernels/selector.py"

_BLOCKS, _SELECTORS = "tests/test_kernels_block_", "tests/test_kernels_selector.py::test_"
_LAYERS = "tests/test_dflash_stages.py::test_layers"
_EDGES = _SELECTORS + "edge_scores[3-float32-cpu-1x1]"
_WALK = _SELECTORS + "selector_walk[(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)-4-4-cpu-1x1]"
_DRAWN = _SELECTORS + "drafts_are_drawn_from_what_is_said[0.5]"

_LESS = "the drafter guesses from something else: fewer drafts are accepted, and every text is right"

MUTATIONS = (
    # ---- convolutions ------------------------------------------------------------------------------------------------
    mutation(
        "convolution-crosses-requests",
        "D7",
        _CONV,
        "for s in range(min(taps, inside + 1)):",
        "for s in range(min(taps, row + 1)):",
        test=_BLOCKS + "conv.py::test_block_conv[2-3-4-0-float32-cpu-1x1]",
        text="with one request nothing changes; with more, drafts hang on the neighbour in the batch",
    ),
    mutation(
        "joined-convolution-crosses-requests",
        "D7",
        _JOIN,
        "        if inside > i32(0):\n            value += (done_kernel[1, 1, c]",
        "        if row > i32(0):\n            value += (done_kernel[1, 1, c]",
        test=_BLOCKS + "conv.py::test_join_conv[3-4-1-float32-cpu-1x1]",
        text="as the plain one",
        expects="AssertionError|assert |Mismatch",
    ),
    mutation(
        "joined-convolution-crosses-requests-on-a-gpu",
        "D7",
        "kernels/block_join_gpu.py",
        "f32(1.0) if inside > i32(0) else f32(0.0))",
        "f32(1.0) if row > i32(0) else f32(0.0))",
        test="tests/test_gpu_block.py::test_joins[bfloat16-1-3-3-48-2]",
        text="as the plain one",
        expects="AssertionError|assert |Mismatch",
    ),
    mutation(
        "convolution-behind-a-sublayer-left-out",
        "D7",
        _PASS,
        "        if done is not None:\n            assert scratch.finished",
        "        if done is not None and place > 99:\n            assert scratch.finished",
        test=_LAYERS + "[v2]",
        text="near the identity it was trained from; " + _LESS,
    ),
    mutation(
        "both-sides-of-a-sublayer-convolved-alike",
        "D7",
        _PASS,
        "added = self._convolve(run, scratch.finished[:count], added, done, side=1)",
        "added = self._convolve(run, scratch.finished[:count], added, done, side=0)",
        test=_LAYERS + "[v2]",
        text=_LESS,
    ),
    # ---- selector ----------------------------------------------------------------------------------------------------
    mutation(
        "first-predecessor-is-a-mask",
        "D8",
        _SELECTOR,
        "previous = block_ids[request * (picks + i32(1))] if is_first",
        "previous = block_ids[request * (picks + i32(1)) + i32(1)] if is_first",
        test=_EDGES,
        text=_LESS,
    ),
    mutation(
        "predecessor-out-of-the-same-slot",
        "D8",
        _SELECTOR,
        "else ids[row - i32(1), a]",
        "else ids[row, a]",
        test=_EDGES,
        text=_LESS,
    ),
    mutation(
        "scores-without-the-logits",
        "D8",
        _SELECTOR,
        "scores[row, a, b] = values[row, b] + total",
        "scores[row, a, b] = total",
        test=_EDGES,
        text=_LESS,
    ),
    mutation(
        "walk-forgets-what-it-chose",
        "D8",
        _SELECTOR,
        "near[(step * count + before) * count + candidate]",
        "near[step * count * count + candidate]",
        test=_WALK.replace("-4-4-", "-16-5-"),
        text="each slot by itself: 2.19 tokens a step instead of 2.36",
    ),
    mutation(
        "said-distribution-without-the-temperature",
        "D8",
        _SELECTOR,
        "exp(f32(score - largest) / temperature) / total",
        "exp(f32(score - largest)) / total",
        test=_DRAWN,
        text="verification believes it: sampled text no longer follows the target's distribution, which no single text shows",
        expects="Not equal to tolerance",
    ),
    mutation(
        "every-draft-drawn-with-the-same-noise",
        "D8",
        _SELECTOR,
        "position = context_lens[request] + i32(1) + i32(step)",
        "position = context_lens[request] + i32(1)",
        test=_SELECTORS + "selector_walk[(1.0, 0.0, 0.2, 0.7, 5.0, 1.0)-16-5-cpu-1x1]",
        text="drafts of a step hang together; each of them alone is distributed as it should",
    ),
)
