"""The device arrays that a step works on, with the shape of each. N = slots, R = rows, T = token rows, J = logits rows.

All integers are int32. Matrices and the KV cache are of the model's storage type (float32, float16, or bfloat16 as uint16 bits),
and so is what a product reads: normed, attention, activated, logit_rows. Everything else is float32: vectors, and what a product
yields. Graphs borrow these arrays as arguments: the runtime owns them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphs.launch import Array
from graphs.sampling_state import SamplingState


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a dense Llama-like decoder that a recorder freezes into its launches."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float


@dataclass(frozen=True)
class LayerArrays:
    """Weights of one block, and its part of the KV cache."""

    input_norm: Array  # [H]
    qkv: Array  # [(nh + 2 nkv) hd, H]
    qkv_bias: Array | None  # [(nh + 2 nkv) hd]
    q_norm: Array | None  # [hd]
    k_norm: Array | None  # [hd]
    out: Array  # [H, nh hd]
    post_norm: Array  # [H]
    gate_up: Array  # [2 I, H], gate first
    down: Array  # [H, I]
    k_cache: Array  # [blocks, block_size, nkv, hd]
    v_cache: Array  # [blocks, block_size, nkv, hd]


@dataclass(frozen=True)
class ModelArrays:
    """Weights of the target. `head` is `embed` where the checkpoint ties them."""

    shape: DecoderShape
    embed: Array  # [V, H]
    layers: tuple[LayerArrays, ...]
    final_norm: Array  # [H]
    head: Array  # [V, H]
    rope_table: Array  # [max_model_len, hd]: cos | sin


@dataclass(frozen=True)
class Scratch:
    """Activations of one forward pass; their contents mean nothing between steps."""

    residual: Array  # [T, H]
    normed: Array  # [T, H]
    qkv: Array  # [T, (nh + 2 nkv) hd]
    attention: Array  # [T, nh hd]
    projected: Array  # [T, H]
    gate_up: Array  # [T, 2 I]
    activated: Array  # [T, I]
    logit_rows: Array  # [J, H]
    logits: Array  # [J, V]
    row_argmax: Array  # [J]


@dataclass(frozen=True)
class SlotState:
    """What a request leaves from step to step, by slot.

    Device exact: num_computed, total_len, last_sampled, draft_tokens, num_draft, finished, history.
    Host exact: prefill_len, max_total_len, min_total_len, stop_ids (from the admission record), block_tables (from staged diffs).
    """

    num_computed: Array  # [N] tokens whose K/V is in the cache
    total_len: Array  # [N] prompt + committed tokens
    last_sampled: Array  # [N] the last committed token: the anchor of the next step
    draft_tokens: Array  # [N, k] -1 = no draft
    num_draft: Array  # [N] drafts >= 0 of the last proposal
    finished: Array  # [N] 0 no, 1 stop token, 2 length
    history: Array  # [N, L] prompt + committed tokens
    prefill_len: Array  # [N] tokens known at admission
    max_total_len: Array  # [N] total_len at which the request ends
    min_total_len: Array  # [N] total_len before which a stop token does not end it
    stop_ids: Array  # [N, S] -1 = none
    block_tables: Array  # [N, B] -1 = not allocated
    sampling: SamplingState


@dataclass(frozen=True)
class StepInputs:
    """What the host stages for each step: views of one packed block, so that one copy moves it."""

    live: Array  # [3] tokens, requests, logits rows
    idx_mapping: Array  # [N] batch row -> slot, pads -1
    query_start_loc: Array  # [N + 1] pads = tokens
    cu_num_logits: Array  # [N + 1] pads = logits rows
    num_block_writes: Array  # [1]
    block_writes: Array  # [W, 3] (slot, column, block)
    query_len: int = 0  # rows of every request, 0 where they differ: what launches are laid out for

    @property
    def num_tokens(self) -> Array:
        return self.live[0:1]

    @property
    def num_requests(self) -> Array:
        return self.live[1:2]

    @property
    def num_logits(self) -> Array:
        return self.live[2:3]


@dataclass(frozen=True)
class StepArrays:
    """What a step computes on its way, and its outcome."""

    inputs: StepInputs
    input_token_ids: Array  # [T]
    positions: Array  # [T]
    seq_lens: Array  # [N]
    token_slot: Array  # [T]
    slot_mapping: Array  # [T] -1 = pad, nothing is stored
    next_prefill: Array  # [N] by slot
    logits_indices: Array  # [J]
    sampled: Array  # [N, 1 + k] by row, -1 = not emitted
    num_sampled: Array  # [N] by row
    num_rejected: Array  # [N] by row
    num_drafts: Array  # [N] by row: drafts >= 0 that were verified
    outcome: Array  # [1, N, 4 + k] by row: num_sampled, num_drafts, finished, sampled...

    def of_requests(self, count: int, query_len: int) -> StepArrays:
        """The same arrays for a step of at most `count` requests of `query_len` rows each, 0 = they differ."""
        inputs = self.inputs
        starts = inputs.query_start_loc[: count + 1]
        rows = replace(inputs, idx_mapping=inputs.idx_mapping[:count], query_start_loc=starts, query_len=query_len)
        return replace(self, inputs=rows)
