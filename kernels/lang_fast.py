"""Functions that a GPU has an instruction for, a few units in the last place off; elsewhere they are what they are called."""

from __future__ import annotations

import math

from kernels.lang import SIMULATED, f32
from kernels.lang_warp import primitive

if not SIMULATED:
    from kernels import lang_element


def _gpu_inverse_root(value):
    return lang_element.inverse_root(value)


def _gpu_sigmoid(value):
    return lang_element.inverse(f32(1.0) + lang_element.exp2(value * f32(-1.44269504)))


@primitive(lambda value: _gpu_sigmoid)
def sigmoid(value):
    """1 / (1 + exp(-value)) of a float32; 0 where exp(-value) is infinite."""
    return f32(1.0) / (f32(1.0) + f32(math.exp(min(-value, f32(88.0)))))


@primitive(lambda value: _gpu_inverse_root)
def inverse_root(value):
    """1 / sqrt(value) of a positive float32."""
    return f32(1.0) / f32(math.sqrt(value))
