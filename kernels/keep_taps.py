"""Taps of a decode step that no draft is made from yet: kept by slot and position, until the drafter's context catches up."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches


@kernel(writes=("kept", "kept_positions", "kept_cells", "draft_tokens", "num_draft"), overlap=True)
def keep_taps(
    kept, kept_positions, kept_cells, draft_tokens, num_draft, features, positions, token_slot, slot_mapping, depth, num_tokens
):
    """kept[slot * depth + position % depth] = features[t] for the live tokens, one of each slot at most, and where it belongs.

    Nobody verifies drafts behind such a step: those of its slots are emptied (kernels/clear_drafts.py).

    Args:
        kept: [N * depth, F], of the type of `features`.
        kept_positions: int32 [N * depth].
        kept_cells: int32 [N * depth], as slot_mapping; a negative one says that nothing waits there.
        draft_tokens: int32 [N, k] out: -1.  num_draft: int32 [N] out: 0.
        features: [T, F], any storage type.
        positions: int32 [T], absolute, none below 0.
        token_slot: int32 [T]; a row outside [0, N) is skipped.
        slot_mapping: int32 [T], block * block_size + offset, negative where the token has no page.
        depth: int32, rows of a slot. No more steps than that may wait: one more would take the place of the first.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n), threads over the columns. Block `(t, 0)` owns the fields of row t's slot, block `(t, j)` its columns
    from j * blockDim on. No barrier. Safe under capture, and idempotent. Oracle: oracle_context.keep_taps.
    """
    wait_for_launches()
    let_next_launch_start()
    row = i32(cuda.blockIdx.x)
    while row < num_tokens[0]:
        slot, position = i32(token_slot[row]), i32(positions[row])
        if slot >= i32(0) and slot < i32(num_draft.shape[0]):
            place = slot * i32(depth) + position % i32(depth)
            column = i32(cuda.blockIdx.y) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
            if column == i32(0):
                kept_positions[place] = position
                kept_cells[place] = slot_mapping[row]
                num_draft[slot] = i32(0)
                for i in range(i32(draft_tokens.shape[1])):
                    draft_tokens[slot, i] = i32(-1)
            while column < i32(features.shape[1]):
                kept[place, column] = features[row, column]
                column += i32(cuda.gridDim.y) * i32(cuda.blockDim.x)
        row += i32(cuda.gridDim.x)
