"""What a feed-forward layer makes of its two halves, where kernels have both of them at hand."""

from __future__ import annotations

from kernels.lang import device_function
from kernels.lang_fast import sigmoid


@device_function
def gated(gate, up):
    """silu(gate) * up, of float32."""
    return gate * sigmoid(gate) * up
