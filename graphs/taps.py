"""Taps of the target: the residual stream behind some of its blocks, written where a drafter reads it."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.launch import Array, Launcher
from kernels.tap import tap

TAP_THREADS = 128


@dataclass(frozen=True)
class Tap:
    """Where the residual stream behind a block goes: columns from `column` on of features [T, F]."""

    features: Array
    column: int

    def record(self, launch: Launcher, residual: Array, num_tokens: Array) -> None:
        """A launch of its own, for `residual` [T, H]."""
        rows = residual.shape[0]
        launch.launch(tap, rows, TAP_THREADS, self.features[:rows], residual, self.column, num_tokens)


@dataclass(frozen=True)
class TargetTaps:
    """Attributes:
    features: [T, len(layer_ids) * H], one row a token of the step, taps side by side.
    layer_ids: 0-based blocks in the order of the columns.
    """

    features: Array
    layer_ids: tuple[int, ...]

    def only(self, layer: int, width: int) -> Tap | None:
        """The tap of a block whose residual stream of `width` columns goes to one place; None: to none, or to several."""
        places = self._places(layer)
        return Tap(self.features, places[0] * width) if len(places) == 1 else None

    def record(self, launch: Launcher, layer: int, residual: Array, num_tokens: Array) -> None:
        """To be called behind every block, when both of its additions are in `residual` [T, H]."""
        for place in self._places(layer):
            Tap(self.features, place * residual.shape[1]).record(launch, residual, num_tokens)

    def _places(self, layer: int) -> list[int]:
        return [place for place, layer_id in enumerate(self.layer_ids) if layer_id == layer]
