"""exp in float32 that a CPU can vectorise: `math.exp` there is a call of libm for each element.

Cody and Waite's reduction, exp(x) = 2**n * exp(r) with |r| <= ln(2) / 2, and the minimax polynomial of the Cephes library
(S. Moshier, expf). On a GPU it costs about what the hardware's own exp costs.
"""

from __future__ import annotations

from kernels.lang import device_function, f32, float_of_bits, i32

_LOWEST = f32(-87.0)  # below, the result would be subnormal
_HIGHEST = f32(88.0)
_INFINITY = f32(float("inf"))


@device_function
def exp(x):
    """e**x for float32; 0 below -87, infinity above 88, NaN for NaN.

    Relative error below 3e-7; on a CPU without fused multiply-add, where the two parts of ln(2) are added up again, 6e-8 * |x|.
    """
    inside = _LOWEST  # also for NaN, which has no integer part
    if x > _LOWEST:
        inside = min(x, _HIGHEST)
    # Biased exponent: the sum is positive, so that the cut towards zero is a floor.
    exponent = i32(inside * f32(1.44269504) + f32(127.5))
    # Subtracted as integers: as floats, a compiler that may reassociate would distribute the 127 over the next line.
    n = f32(i32(exponent - i32(127)))
    # ln(2) in two parts, the first short enough for n * part to be exact.
    r = (inside - n * f32(0.693359375)) - n * f32(-2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    result = p * float_of_bits(i32(exponent << i32(23)))
    if x < _LOWEST:
        result = f32(0.0)
    if x > _HIGHEST:
        result = _INFINITY
    if x != x:
        result = x
    return result
