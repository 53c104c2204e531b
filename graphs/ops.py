"""The seam between what a decoder computes and how: composite operations, of which more than one set exists.

graphs/transformer.py calls these in the order of the model and knows nothing of devices. The sets: graphs/plain_ops.py, a launch
for each step and a library's matrix product, for any number of rows; graphs/fused_ops.py, few launches of our own products, for
the few rows of a decode or verify step, or for every step where numerics must not depend on the batch. Which set records a step is
decided when an engine is assembled, by device, types and rows (`OpTable`); both run on every executor, so that a laptop compares
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from graphs.arrays import LayerArrays, ModelArrays, Scratch, SlotState, StepArrays
from graphs.launch import Array, Launcher
from graphs.taps import Tap


@dataclass(frozen=True)
class ForwardPass:
    """What every operation of one recording works on: T = num_tokens rows at most, of which step.inputs.num_tokens are live."""

    launch: Launcher
    model: ModelArrays
    scratch: Scratch
    state: SlotState
    step: StepArrays
    num_tokens: int
    tap: Tap | None = None  # of the block that is being recorded

    def record_tap(self) -> None:
        """In a launch of its own, where there is a tap."""
        if self.tap is not None:
            self.tap.record(self.launch, self.residual, self.live)

    @property
    def live(self) -> Array:
        """int32 [1]: live token rows."""
        return self.step.inputs.num_tokens

    @property
    def residual(self) -> Array:
        """float32 [T, H]: the residual stream, where every set keeps it."""
        return self.scratch.residual[: self.num_tokens]

    @property
    def most_requests(self) -> int:
        """Requests that the rows may belong to."""
        return min(self.num_tokens, self.step.inputs.idx_mapping.shape[0])


class Ops(Protocol):
    """Operations in the order in which a pass calls them. `norm` arguments are the gain of the norm that comes next.

    Between two operations the residual stream is complete in `ForwardPass.residual`; whatever else one leaves for the next (a
    normalised copy, sums of squares) is the set's own business.
    """

    def embed(self, run: ForwardPass, norm: Array) -> None:
        """Input ids -> residual."""
        ...

    def attention_inputs(self, run: ForwardPass, layer: LayerArrays) -> None:
        """Residual -> norm -> scratch.qkv, bias included."""
        ...

    def attention(self, run: ForwardPass, layer: LayerArrays) -> None:
        """scratch.qkv -> head norms, rotation, keys and values into the cache -> scratch.attention."""
        ...

    def attention_output(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        """residual += scratch.attention @ out.T."""
        ...

    def feed_forward(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        """residual += (silu(gate) * up) @ down.T of the normed residual, which then goes to run.tap where there is one."""
        ...

    def logits(self, run: ForwardPass, num_logits: int) -> None:
        """Final norm, the rows of step.logits_indices, scratch.logits and scratch.row_argmax."""
        ...


class AttentionOps(Protocol):
    """How a set computes `Ops.attention`."""

    def record(self, run: ForwardPass, layer: LayerArrays) -> None: ...


@dataclass(frozen=True)
class HeadOps:
    """The layers of one set, the head of another; a head reads nothing but the residual stream."""

    layers: Ops
    head: Ops

    def embed(self, run: ForwardPass, norm: Array) -> None:
        self.layers.embed(run, norm)

    def attention_inputs(self, run: ForwardPass, layer: LayerArrays) -> None:
        self.layers.attention_inputs(run, layer)

    def attention(self, run: ForwardPass, layer: LayerArrays) -> None:
        self.layers.attention(run, layer)

    def attention_output(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        self.layers.attention_output(run, layer, norm)

    def feed_forward(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        self.layers.feed_forward(run, layer, norm)

    def logits(self, run: ForwardPass, num_logits: int) -> None:
        self.head.logits(run, num_logits)


@dataclass(frozen=True)
class OpTable:
    """Which set records a step, by its captured rows alone: the same step is always recorded the same way.

    Attributes:
        many: for steps of more rows than `few` knows.
        few: (most token rows, set), in ascending order.
    """

    many: Ops
    few: tuple[tuple[int, Ops], ...] = ()

    def for_rows(self, num_tokens: int) -> Ops:
        return next((ops for rows, ops in self.few if num_tokens <= rows), self.many)
