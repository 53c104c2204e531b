"""Prompts of the scheduler's tests, and the depths and draft counts that they are played at."""

from __future__ import annotations

from tests.plan_executor import Loop, always

ALL_K = [0, 1, 3, 5, 7]
DEPTHS = [0, 1, 2]


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 5 + 3 * index) % 31 + 1 for index in range(length)]


def crowd(k: int, num_blocks: int = 12) -> Loop:
    """Two requests that outgrow the pool together: the first needs the blocks of the second after some steps."""
    loop = Loop(k=k, num_blocks=num_blocks, block_size=2, max_model_len=24, script=always("R"))
    loop.add("old", prompt(3), 18)
    loop.add("new", prompt(3, 1), 12)
    return loop
