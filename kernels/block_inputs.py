"""Inputs of a block drafter's query pass: anchor and masks of each request, from the lengths that the device owns."""

from __future__ import annotations

from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import widen
from kernels.project import divide


@device_function
def token_of(last_sampled, idx_mapping, mask_token_id, num_requests, row, i):
    """The anchor of a live request where i = 0, else the mask."""
    token = i32(mask_token_id)
    if row < num_requests[0] and i == i32(0):
        slot = i32(idx_mapping[row])
        if slot >= i32(0) and slot < i32(last_sampled.shape[0]):
            token = i32(last_sampled[slot])
    return token


@device_function
def put_row(
    block_ids, block_positions, pick_rows, context_lens, block_lens, block_live, num_computed, last_sampled, idx_mapping,
    mask_token_id, max_model_len, num_requests, row, i, queries,
):  # fmt: skip
    """What `block_inputs` writes for query row i of request `row`, and with i = 0 for the request."""
    live, slots = i32(num_requests[0]), i32(num_computed.shape[0])
    computed, length = i32(0), i32(0)
    if row < live:
        slot = i32(idx_mapping[row])
        if slot >= i32(0) and slot < slots:
            computed = i32(num_computed[slot])
            length = max(min(queries, i32(max_model_len - computed)), i32(0))
    at = i32(row * queries + i)
    token = token_of(last_sampled, idx_mapping, mask_token_id, num_requests, row, i)
    block_ids[at] = token if row < live else i32(0)
    block_positions[at] = min(i32(computed + i), i32(max_model_len - i32(1))) if row < live else i32(0)
    if i > i32(0):
        pick_rows[row * (queries - i32(1)) + i - i32(1)] = at if row < live else i32(0)
    else:
        context_lens[row] = computed
        block_lens[row] = length
        if row == i32(0):
            block_live[0] = i32(live * queries)
            block_live[1] = i32(live * (queries - i32(1)))


@kernel(writes=("block_ids", "block_positions", "pick_rows", "context_lens", "block_lens", "block_live"), overlap=True)
def block_inputs(
    block_ids,
    block_positions,
    pick_rows,
    context_lens,
    block_lens,
    block_live,
    num_computed,
    last_sampled,
    idx_mapping,
    mask_token_id,
    max_model_len,
    num_requests,
):
    """One block of Q = rows of block_ids / R query rows a request: the anchor, then Q - 1 masks to be filled in.

    block_ids       int32 [R * Q] out: last_sampled[slot], then mask_token_id.
    block_positions int32 [R * Q] out: num_computed[slot] + i, at most max_model_len - 1, so that no rotary row is read outside its
                                        table.
    pick_rows       int32 [R * (Q - 1)] out: the query rows 1..Q-1 of each request, whose logits are its drafts.
    context_lens    int32 [R] out: num_computed[slot], the tokens in the drafter's cache: all that stand before the anchor.
    block_lens      int32 [R] out: rows of the block that stand below max_model_len, 1..Q; the others draft nothing and nobody
                                    attends to them, so that the block is the shorter one that fits.
    block_live      int32 [2] out: live query rows, live picks.
    num_computed, last_sampled int32 [N] by slot, after `advance`;  idx_mapping int32 [R] row -> slot;  num_requests int32 [1];
    mask_token_id, max_model_len.

    Pads are written as well: ids 0, positions 0, rows 0, lengths 0. A row whose slot is outside [0, N) has length 0, and its ids
    are masks at positions from 0 on.

    Launch: grid R (a block a request row), block >= Q; any grid and block is right. Row r and its block belong to block r % grid.
    No barrier. Capture safe. Oracle: kernels.oracle_dflash.block_inputs. Method: the preparation kernel of vLLM's DFlash.
    """
    wait_for_launches()
    let_next_launch_start()
    rows = i32(context_lens.shape[0])
    queries = i32(block_ids.shape[0] // rows)
    for row in range(i32(cuda.blockIdx.x), rows, i32(cuda.gridDim.x)):
        for i in range(i32(cuda.threadIdx.x), queries, i32(cuda.blockDim.x)):
            put_row(
                block_ids, block_positions, pick_rows, context_lens, block_lens, block_live, num_computed, last_sampled,
                idx_mapping, mask_token_id, max_model_len, num_requests, i32(row), i32(i), queries,
            )  # fmt: skip


@kernel(
    writes=("block_ids", "block_positions", "pick_rows", "context_lens", "block_lens", "block_live", "residual"), overlap=True
)
def block_embed(
    block_ids,
    block_positions,
    pick_rows,
    context_lens,
    block_lens,
    block_live,
    residual,
    num_computed,
    last_sampled,
    idx_mapping,
    table,
    mask_token_id,
    max_model_len,
    scale,
    num_requests,
):
    """`block_inputs`, and residual[t] = table[block_ids[t]] * scale for the rows of live requests, zeros for an id outside [0, V).

    Args:
        residual: float32 [R * Q, H].
        table: [V, H], any storage type.
        scale: float32.
        others: as in `block_inputs`.

    Launch: a block a query row, threads over the columns; any grid and block is right. A row and what belongs to it is one block's.
    No barrier. Capture safe. Oracle: kernels.oracle_dflash.block_embed.
    """
    wait_for_launches()
    let_next_launch_start()
    rows, vocabulary, width = i32(context_lens.shape[0]), i32(table.shape[0]), i32(table.shape[1])
    queries = i32(block_ids.shape[0] // rows)
    for at in range(i32(cuda.blockIdx.x), rows * queries, i32(cuda.gridDim.x)):
        row = divide(i32(at), queries)
        i = i32(at) - row * queries
        if row < num_requests[0]:
            token = token_of(last_sampled, idx_mapping, mask_token_id, num_requests, row, i)
            known = token >= i32(0) and token < vocabulary
            c = i32(cuda.threadIdx.x)
            while c < width:
                residual[at, c] = widen(table[token, c]) * scale if known else f32(0.0)
                c += i32(cuda.blockDim.x)
        if i32(cuda.threadIdx.x) == i32(0):
            put_row(
                block_ids, block_positions, pick_rows, context_lens, block_lens, block_live, num_computed, last_sampled,
                idx_mapping, mask_token_id, max_model_len, num_requests, row, i, queries,
            )  # fmt: skip
