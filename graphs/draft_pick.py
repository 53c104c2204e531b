"""From hidden states of a draft block to the drafts in the pool: head, arg max or candidate selector."""

from __future__ import annotations

from graphs.draft_layers import LayersAsTarget
from graphs.draft_pass import DraftPass
from graphs.launch import Array
from graphs.plain_ops import THREADS, Stripes
from kernels.argmax import argmax, stripe_argmax
from kernels.candidates import top_candidates
from kernels.draft_store import store_drafts
from kernels.gather import gather_rows
from kernels.head import best_of_stripes
from kernels.logit_scale import logit_scale
from kernels.selector import edge_scores, selector_walk

ROW_THREADS = 32
RANKING_THREADS = 512
WALK_THREADS = 512


def record_pick(run: DraftPass, stripes: Stripes | None, layers: LayersAsTarget | None) -> None:
    """Hidden states -> logits of the masks' rows -> drafts of the rows that have just committed tokens.

    stripes: scratch of an arg max that several blocks share a row of; None: one block a row.
    layers: what recorded the layers, and knows the final norm of their rows; None: it is in scratch.normed.
    """
    arrays, scratch, shape, rows, k = run.arrays, run.scratch, run.arrays.shape, run.requests, run.k
    picks, launch, live = rows * k, run.launch, run.live_picks
    hidden = _hidden(run, picks) if layers is None else layers.record_hidden(run, picks)
    logits, chosen = scratch.logits[:picks], scratch.chosen[:picks]
    scaled = shape.output_multiplier != 1.0 or bool(shape.logit_cap)
    best = None if layers is None or scaled or arrays.selector is not None else layers.record_best(run, logits, hidden)
    if best is None:
        run.product(logits, hidden, arrays.head, live)
    if scaled:
        blocks = (picks, -(-shape.vocab_size // (8 * THREADS)))
        launch.launch(logit_scale, blocks, THREADS, logits, shape.output_multiplier, shape.logit_cap, live)
    if arrays.selector is not None:
        _record_selector(run, hidden, logits)
        return
    if best is not None:
        launch.launch(best_of_stripes, picks, THREADS, chosen, *best, live)
    elif stripes is None:
        launch.launch(argmax, picks, THREADS, chosen, logits, shape.vocab_size, live)
    else:
        value, column = stripes.for_rows(picks)
        launch.launch(stripe_argmax, (picks, value.shape[0]), THREADS, value, column, logits, shape.vocab_size, live)
        launch.launch(best_of_stripes, picks, THREADS, chosen, value, column, live)
    launch.launch(
        store_drafts,
        1,
        ROW_THREADS,
        run.state.draft_tokens,
        run.state.num_draft,
        chosen,
        scratch.block_lens[:rows],
        run.state.finished,
        run.step.inputs.idx_mapping[:rows],
        run.step.num_sampled[:rows],
        run.step.inputs.num_requests,
    )


def _hidden(run: DraftPass, picks: int) -> Array:
    """The final norm of the masks' rows; those of one request lie together as they are."""
    normed = run.scratch.normed[: run.count]
    if run.requests == 1:
        return normed[1:]
    hidden = run.scratch.pick_hidden[:picks]
    run.launch.launch(gather_rows, picks, THREADS, hidden, normed, run.scratch.pick_rows[:picks], run.live_picks)
    return hidden


def _record_selector(run: DraftPass, hidden: Array, logits: Array) -> None:
    """Candidates of each row, scores of all pairs of neighbours, and the walk through them from the anchor on."""
    selector, scratch, launch, live = run.arrays.selector, run.scratch.selector, run.launch, run.live_picks
    assert selector is not None
    assert scratch is not None
    picks, vocab_size = logits.shape[0], run.arrays.shape.vocab_size
    ids, values = scratch.ids[:picks], scratch.values[:picks]
    gate, scores = scratch.gate[:picks], scratch.scores[:picks]
    launch.launch(top_candidates, picks, RANKING_THREADS, ids, values, logits, vocab_size, live)
    run.product(gate, hidden, selector.projection, live)
    launch.launch(
        edge_scores,
        (picks, ids.shape[1]),
        min(32 * ids.shape[1], 512),
        scores,
        ids,
        values,
        gate,
        selector.predecessors,
        selector.successors,
        run.scratch.block_ids[: run.count],
        run.k,
        live,
    )
    rows, state = run.requests, run.state
    launch.launch(
        selector_walk,
        rows,
        WALK_THREADS,
        state.draft_tokens,
        state.num_draft,
        scratch.distribution.ids,
        scratch.distribution.probs,
        ids,
        scores,
        run.scratch.context_lens[:rows],
        run.scratch.block_lens[:rows],
        state.finished,
        run.step.inputs.idx_mapping[:rows],
        run.step.num_sampled[:rows],
        state.sampling.temperature,
        state.sampling.seed,
        run.step.inputs.num_requests,
    )
