"""How a race is cut into stripes: every GPU full, nothing of the vocabulary left out, sums always cut alike."""

from __future__ import annotations

import pytest

from graphs.sampled_step import FEWEST_TILES, MOST_TILES, RACE_BLOCKS, RESIDUAL_BLOCKS, Sampler, stripes_of, tiles_for
from graphs.sampling_state import DraftDistribution
from kernels.random import TILE


@pytest.mark.parametrize("vocab_size", [1, 100, 8193, 10_000, 49_152, 151_936])
@pytest.mark.parametrize("rows", [1, 8, 64, 2048])
@pytest.mark.parametrize("blocks", [RACE_BLOCKS, RESIDUAL_BLOCKS])
def test_stripes_cover_the_vocabulary(rows: int, vocab_size: int, blocks: int) -> None:
    tiles = tiles_for(rows, vocab_size, blocks)
    stripes = stripes_of(vocab_size, tiles)
    assert FEWEST_TILES <= tiles <= MOST_TILES
    assert (stripes - 1) * tiles * TILE < vocab_size <= stripes * tiles * TILE
    assert stripes <= stripes_of(vocab_size)
    assert tiles == FEWEST_TILES or rows * stripes >= blocks


def test_a_distribution_needs_its_arrays() -> None:
    nothing: object = None
    drafts = DraftDistribution(nothing, nothing)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="belong together"):
        Sampler(nothing, nothing, nothing, drafts)  # type: ignore[arg-type]
