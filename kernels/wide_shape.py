"""Sizes that the wide kernels (kernels/wide_tile.py, kernels/wide_head.py) and Hopper's forms of them agree on."""

HEIGHT = 192
"""Weight rows of a tile."""

WIDTH = HEIGHT // 2
"""Weight rows of a warp group."""

WARPS = 8
"""Warps of a block that multiply, on a GPU: two groups."""

THREADS = 32 * WARPS

STAGES = 6
"""Chunks of a tile that are under way at once."""
