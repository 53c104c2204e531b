"""Taps of the target: the residual stream behind some of its blocks, written where a drafter reads it."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.launch import Array, Launcher
from kernels.tap import tap

TAP_THREADS = 128


@dataclass(frozen=True)
class TargetTaps:
    """Attributes:
    features: [T, len(layer_ids) * H], one row a token of the step, taps side by side.
    layer_ids: 0-based blocks in the order of the columns.
    """

    features: Array
    layer_ids: tuple[int, ...]

    def record(self, launch: Launcher, layer: int, residual: Array, num_tokens: Array) -> None:
        """To be called behind every block, when both of its additions are in `residual` [T, H]."""
        rows, width = residual.shape
        for place, layer_id in enumerate(self.layer_ids):
            if layer_id == layer:
                launch.launch(tap, rows, TAP_THREADS, self.features[:rows], residual, place * width, num_tokens)
