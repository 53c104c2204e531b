"""The plain set of operations: a launch for each step, matrix products by the device's library. Any rows, any device, any types."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import LayerArrays
from graphs.launch import Array
from graphs.ops import AttentionOps, ForwardPass
from graphs.taps import Tap
from kernels.add_norm import add_norm, add_norm_tap
from kernels.argmax import argmax, stripe_argmax
from kernels.attention import paged_attention
from kernels.behind_product import EIGHT
from kernels.bias import add_bias
from kernels.embed import embed
from kernels.gather import gather_rows
from kernels.head import best_of_stripes
from kernels.head_norm import head_norm
from kernels.kv_store import store_kv
from kernels.lang import MAX_THREADS
from kernels.rmsnorm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu

THREADS = 128

_SHARING_THREADS = 64
"""Of a block that shares a row with others, eight columns a thread."""


_ARGMAX_BLOCKS = 2112
"""Blocks that an argmax is shared by: sixteen on each multiprocessor of an H200."""


def norm_threads(width: int) -> int:
    """Threads that normalise a row of `width` columns: whole warps, and few columns each (see kernels/rmsnorm.py)."""
    return min(MAX_THREADS, -(-width // 32) * 32)


@dataclass(frozen=True)
class Stripes:
    """Where the parts of an argmax are kept when several blocks share a row."""

    best_value: Array  # float32 [S, J]
    best_column: Array  # int32 [S, J]

    def for_rows(self, rows: int) -> tuple[Array, Array]:
        """Fewer and longer stripes of many rows: a block costs even so. No result depends on it."""
        count = min(self.best_value.shape[0], -(-_ARGMAX_BLOCKS // rows))
        return self.best_value[:count], self.best_column[:count]


def record_add_norm(run: ForwardPass, norm: Array, tap: Tap | None) -> None:
    """residual += scratch.projected, to the tap as well; its norm -> scratch.normed: eight columns a thread, in one launch."""
    tokens, eps = run.num_tokens, run.model.shape.rms_norm_eps
    normed, projected = run.scratch.normed[:tokens], run.scratch.projected[:tokens]
    threads = norm_threads(-(-normed.shape[1] // EIGHT))
    if tap is None:
        run.launch.launch(add_norm, tokens, threads, run.residual, normed, projected, norm, eps, run.live)
        return
    arguments = (run.residual, normed, tap.features[:tokens], projected, norm, eps, tap.column, run.live)
    run.launch.launch(add_norm_tap, tokens, threads, *arguments)


def record_argmax(run: ForwardPass, num_logits: int, stripes: Stripes | None) -> None:
    """scratch.logits -> scratch.row_argmax. stripes None: one block a row."""
    launch, live = run.launch, run.step.inputs.num_logits
    logits, out = run.scratch.logits[:num_logits], run.scratch.row_argmax[:num_logits]
    vocab_size = run.model.shape.vocab_size
    if stripes is None:
        launch.launch(argmax, num_logits, THREADS, out, logits, vocab_size, live)
        return
    value, column = stripes.for_rows(num_logits)
    launch.launch(stripe_argmax, (num_logits, value.shape[0]), THREADS, value, column, logits, vocab_size, live)
    launch.launch(best_of_stripes, num_logits, THREADS, out, value, column, live)


@dataclass(frozen=True)
class PagedAttention:
    """Each query head of each row on its own: simple, right for any head size, slow on a GPU beyond a few hundred keys."""

    def record(self, run: ForwardPass, layer: LayerArrays) -> None:
        shape, tokens, live, launch = run.model.shape, run.num_tokens, run.live, run.launch
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        qkv, positions = run.scratch.qkv[:tokens], run.step.positions[:tokens]
        turning = (tokens, heads + kv_heads)
        if layer.q_norm is not None and layer.k_norm is not None:
            eps = shape.rms_norm_eps
            launch.launch(head_norm, turning, THREADS, qkv, layer.q_norm, layer.k_norm, heads, kv_heads, eps, live)
        launch.launch(rope, turning, THREADS, qkv, run.model.rope_table, positions, heads, kv_heads, live)
        slots = run.step.slot_mapping[:tokens]
        launch.launch(store_kv, (tokens, kv_heads), THREADS, layer.k_cache, layer.v_cache, qkv, slots, heads, live)
        launch.launch(
            paged_attention,
            (tokens, heads),
            THREADS,
            run.scratch.attention[:tokens],
            qkv,
            layer.k_cache,
            layer.v_cache,
            run.state.block_tables,
            run.step.token_slot[:tokens],
            positions,
            heads,
            float(shape.head_dim) ** -0.5,
            live,
        )


@dataclass(frozen=True)
class PlainOps:
    """Between operations scratch.normed holds the residual as the next product wants it.

    Attributes:
        attention_ops: how attention is computed.
        stripes: for a GPU, scratch of an argmax shared by several blocks; norms then take eight neighbours a thread. None: one
            block a row, and one column a thread.
    """

    attention_ops: AttentionOps
    stripes: Stripes | None = None

    def embed(self, run: ForwardPass, norm: Array) -> None:
        launch, tokens = run.launch, run.num_tokens
        columns = THREADS if self.stripes is None else norm_threads(-(-run.residual.shape[1] // EIGHT))
        launch.launch(embed, tokens, columns, run.residual, run.model.embed, run.step.input_token_ids[:tokens], run.live)
        eps = run.model.shape.rms_norm_eps
        threads = norm_threads(run.residual.shape[1])
        launch.launch(rms_norm, tokens, threads, run.scratch.normed[:tokens], run.residual, norm, eps, run.live)

    def attention_inputs(self, run: ForwardPass, layer: LayerArrays) -> None:
        qkv = run.scratch.qkv[: run.num_tokens]
        run.launch.matmul(qkv, run.scratch.normed[: run.num_tokens], layer.qkv, run.live)
        if layer.qkv_bias is not None:
            run.launch.launch(add_bias, run.num_tokens, THREADS, qkv, layer.qkv_bias, run.live)

    def attention(self, run: ForwardPass, layer: LayerArrays) -> None:
        self.attention_ops.record(run, layer)

    def attention_output(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        run.launch.matmul(run.scratch.projected[: run.num_tokens], run.scratch.attention[: run.num_tokens], layer.out, run.live)
        self.add_and_norm(run, norm)

    def feed_forward(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        launch, tokens, scratch = run.launch, run.num_tokens, run.scratch
        gate_up, activated = scratch.gate_up[:tokens], scratch.activated[:tokens]
        launch.matmul(gate_up, scratch.normed[:tokens], layer.gate_up, run.live)
        blocks = -(-activated.shape[1] // (EIGHT * _SHARING_THREADS))
        launch.launch(swiglu, (tokens, blocks), _SHARING_THREADS, activated, gate_up, run.live)
        launch.matmul(scratch.projected[:tokens], activated, layer.down, run.live)
        self.add_and_norm(run, norm, run.tap)

    def logits(self, run: ForwardPass, num_logits: int) -> None:
        launch, scratch, live = run.launch, run.scratch, run.step.inputs.num_logits
        rows, logits = scratch.logit_rows[:num_logits], scratch.logits[:num_logits]
        indices = run.step.logits_indices[:num_logits]
        launch.launch(gather_rows, num_logits, THREADS, rows, scratch.normed, indices, live)
        launch.matmul(logits, rows, run.model.head, live)
        record_argmax(run, num_logits, self.stripes)

    def add_and_norm(self, run: ForwardPass, norm: Array, tap: Tap | None = None) -> None:
        """residual += scratch.projected, which goes to the tap as well; its norm, with gain `norm`, -> scratch.normed."""
        if self.stripes is not None:
            record_add_norm(run, norm, tap)
            return
        tokens, eps = run.num_tokens, run.model.shape.rms_norm_eps
        normed, projected = run.scratch.normed[:tokens], run.scratch.projected[:tokens]
        threads = norm_threads(normed.shape[1])
        run.launch.launch(add_rms_norm, tokens, threads, normed, run.residual, projected, norm, eps, run.live)
        if tap is not None:
            run.record_tap()
