"""The GPU's form of kernels/block_join.py: eight channels of a lane at a time, and every load of a row under way at once.

A join of few rows is bound by latency: constants are asked for before the launch before has ended, nothing branches between the
loads of a row, and what a block convolves stays in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.attend_pages_gpu import inverse_of, quotient
from kernels.lang import cuda, device_function, f32, i32, i64, u32
from kernels.lang_element import element, put_element
from kernels.lang_fast import inverse_root
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_vector import EIGHT, ask_for, eight_float32
from kernels.lang_warp import lane, warp_sum

_LINE = 32  # float32 of a line of memory


@device_function
def dot(a, b):
    return (a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3]) + ((a[4] * b[4] + a[5] * b[5]) + (a[6] * b[6] + a[7] * b[7]))


@device_function
def product(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3], a[4] * b[4], a[5] * b[5], a[6] * b[6], a[7] * b[7]


@device_function
def add_scaled(v, kernel, shift, x):
    """v + (kernel + shift) * x."""
    return (
        v[0] + (kernel[0] + shift) * x[0],
        v[1] + (kernel[1] + shift) * x[1],
        v[2] + (kernel[2] + shift) * x[2],
        v[3] + (kernel[3] + shift) * x[3],
        v[4] + (kernel[4] + shift) * x[4],
        v[5] + (kernel[5] + shift) * x[5],
        v[6] + (kernel[6] + shift) * x[6],
        v[7] + (kernel[7] + shift) * x[7],
    )


@device_function
def times(v, factor):
    return product(v, (factor, factor, factor, factor, factor, factor, factor, factor))


@device_function
def joined_eight(residual, added, done_kernel, done_delta, row, inside, octet, width, groups, share):
    """`joined` of kernels/block_join.py for channels 8 * octet .. + 7; zeros behind the last. `added` None: the residual alone."""
    column = i32(min(octet, i32((width >> i32(3)) - i32(1))) * i32(8))
    at = i64(i32(row * width + column))
    v = eight_float32(residual, at)
    if added is not None:
        delta = i32(row * i32(4) * groups + quotient(column, share))
        before = at - i64(width) if inside > i32(0) else at
        near = element(done_delta, i64(i32(delta + i32(2) * groups)))
        far = element(done_delta, i64(i32(delta + i32(3) * groups)))
        v = add_scaled(v, eight_float32(done_kernel, i64(i32(i32(2) * width + column))), near, eight_float32(added, at))
        last = times(eight_float32(added, before), f32(1.0) if inside > i32(0) else f32(0.0))
        v = add_scaled(v, eight_float32(done_kernel, i64(i32(i32(3) * width + column))), far, last)
    return times(v, f32(1.0) if i32(octet * i32(8)) < width else f32(0.0))


@device_function
def keep_own(values, v, octet, first, count, at):
    """The channels of a lane's octet that are among octets first .. first + count - 1, to shared memory."""
    if octet >= first and octet < i32(first + count):
        to = i32(at + (octet - first) * i32(8))
        values[to], values[to + i32(1)], values[to + i32(2)], values[to + i32(3)] = v[0], v[1], v[2], v[3]
        values[to + i32(4)], values[to + i32(5)], values[to + i32(6)], values[to + i32(7)] = v[4], v[5], v[6], v[7]


@device_function
def ask_for_row(array, begin, length, line):
    """Line number `line` of float32 elements begin .. begin + length - 1."""
    ask_for(array, i64(i32(begin + min(i32(line * i32(_LINE)), i32(length - i32(1))))))


def _join(eight: Any) -> Callable[..., Any]:
    @device_function
    def quarter(residual, added, done_kernel, done_delta, gain, projection, row, inside, octet, own, width, groups, share):
        """Of one octet: its channels, and its shares of the sum of squares and of the four dynamic kernels of group `own`."""
        v = joined_eight(residual, added, done_kernel, done_delta, row, inside, octet, width, groups, share)
        column = i32(min(octet, i32((width >> i32(3)) - i32(1))) * i32(8))
        n = product(v, eight_float32(gain, i64(column)))
        at, step = i64(i32(own * width + column)), i64(i32(groups * width))
        a, b = dot(eight(projection, at), n), dot(eight(projection, at + step), n)
        c, d = dot(eight(projection, at + step + step), n), dot(eight(projection, at + step + step + step), n)
        return v, dot(v, v), a, b, c, d

    @device_function
    def row_of_group(
        values, kernels, scale, delta, residual, added, done_kernel, done_delta, gain, projection, eps, row, inside, own, width,
        groups, share,
    ):  # fmt: skip
        """One row by one warp: its dynamic kernels of group `own`, and the group's channels in `values`."""
        size, octet = i32(quotient(width, inverse_of(groups))), i32(lane())
        rest = (added, done_kernel, done_delta, gain, projection, row, inside)
        second, third, fourth = i32(octet + i32(32)), i32(octet + i32(64)), i32(octet + i32(96))
        v0, s, a, b, c, d = quarter(residual, *rest, octet, own, width, groups, share)
        v1, s1, a1, b1, c1, d1 = quarter(residual, *rest, second, own, width, groups, share)
        v2, s2, a2, b2, c2, d2 = quarter(residual, *rest, third, own, width, groups, share)
        s, a, b, c, d = s + s1 + s2, a + a1 + a2, b + b1 + b2, c + c1 + c2, d + d1 + d2
        first, count, at = i32(own * (size >> i32(3))), i32(size >> i32(3)), i32(inside * size)
        if width > i32(768):
            v3, s3, a3, b3, c3, d3 = quarter(residual, *rest, fourth, own, width, groups, share)
            s, a, b, c, d = s + s3, a + a3, b + b3, c + c3, d + d3
            keep_own(values, v3, fourth, first, count, at)
        keep_own(values, v0, octet, first, count, at)
        keep_own(values, v1, second, first, count, at)
        keep_own(values, v2, third, first, count, at)
        s, a, b, c, d = warp_sum(s), warp_sum(a), warp_sum(b), warp_sum(c), warp_sum(d)
        shrink = inverse_root(s * inverse_of(width) + eps)
        a, b, c, d = a * shrink, b * shrink, c * shrink, d * shrink
        if lane() == i32(0):
            scale[inside] = shrink
            kernels[i32(2) * inside] = a
            kernels[i32(2) * inside + i32(1)] = b
            to = i64(i32(row * i32(4) * groups + own))
            put_element(delta, to, a)
            put_element(delta, to + i64(groups), b)
            put_element(delta, to + i64(i32(2) * groups), c)
            put_element(delta, to + i64(i32(3) * groups), d)

    def join_form(
        total, out, delta, residual, added, done_kernel, done_delta, gain, base_kernel, projection, eps, joins, queries,
        num_requests, kernels, scale, values,
    ):  # fmt: skip
        width, groups = i32(residual.shape[1]), i32(i32(delta.shape[1]) >> i32(2))
        size = i32(quotient(width, inverse_of(groups)))
        share = inverse_of(size)
        tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
        own = i32(cuda.blockIdx.x)
        line = tid
        while line < i32(4) * _LINE and own < groups:
            part, place = i32(line >> i32(5)), i32(line & i32(31))
            ask_for_row(projection, i32((part * groups + own) * width), width, place)
            ask_for_row(gain, i32(0), width, place)
            if joins > i32(0):
                ask_for_row(done_kernel, i32((i32(2) + (part & i32(1))) * width), width, place)
            line = i32(line + threads)
        wait_for_launches()
        let_next_launch_start()
        live = i32(num_requests[0])
        request = i32(cuda.blockIdx.y)
        while request < live:
            first = i32(request * queries)
            own = i32(cuda.blockIdx.x)
            while own < groups:
                inside = i32(tid >> i32(5))
                while inside < queries:
                    row = i32(first + inside)
                    if joins > i32(0):
                        row_of_group(
                            values, kernels, scale, delta, residual, added, done_kernel, done_delta, gain, projection, eps, row,
                            inside, own, width, groups, share,
                        )  # fmt: skip
                    else:
                        row_of_group(
                            values, kernels, scale, delta, residual, None, done_kernel, done_delta, gain, projection, eps, row,
                            inside, own, width, groups, share,
                        )  # fmt: skip
                    inside = i32(inside + (threads >> i32(5)))
                cuda.syncthreads()
                item = tid
                while item < i32(queries * size):
                    inside = quotient(item, share)
                    column = i32(own * size + item - inside * size)
                    at = i64(i32((first + inside) * width + column))
                    value = values[item]
                    put_element(total, at, value)
                    result = (element(base_kernel, i64(column)) + kernels[i32(2) * inside]) * (value * scale[inside])
                    if inside > i32(0):
                        weight = element(base_kernel, i64(i32(width + column))) + kernels[i32(2) * inside + i32(1)]
                        result += weight * (values[item - size] * scale[inside - i32(1)])
                    put_element(out, at, narrow(result * element(gain, i64(column)), out))
                    item = i32(item + threads)
                cuda.syncthreads()
                own = i32(own + i32(cuda.gridDim.x))
            request = i32(request + i32(cuda.gridDim.y))

    return join_form


JOIN = {kind: _join(eight) for kind, eight in EIGHT.items()}
"""By the type of the projection."""


@device_function
def put_octet(out, gain, v, shrink, row, step, width, slice, slices):
    """The normed channels of a lane's octet number `step`, if that is one of this warp's slice."""
    column = i32((lane() + i32(step) * i32(32)) * i32(8))
    if column < width and i32(u32(step) % u32(slices)) == slice:
        at, x = i64(i32(row * width + column)), product(times(v, shrink), eight_float32(gain, i64(column)))
        put_element(out, at, narrow(x[0], out))
        put_element(out, at + i64(1), narrow(x[1], out))
        put_element(out, at + i64(2), narrow(x[2], out))
        put_element(out, at + i64(3), narrow(x[3], out))
        put_element(out, at + i64(4), narrow(x[4], out))
        put_element(out, at + i64(5), narrow(x[5], out))
        put_element(out, at + i64(6), narrow(x[6], out))
        put_element(out, at + i64(7), narrow(x[7], out))


def norm_form(out, residual, added, done_kernel, done_delta, gain, eps, queries, num_tokens):
    width, groups = i32(residual.shape[1]), i32(i32(done_delta.shape[1]) >> i32(2))
    share, block = inverse_of(quotient(width, inverse_of(groups))), inverse_of(queries)
    warp, warps = i32(cuda.threadIdx.x >> 5), i32(cuda.blockDim.x >> 5)
    slice, slices = i32(cuda.blockIdx.y * warps + warp), i32(cuda.gridDim.y * warps)
    if warp == i32(0):
        ask_for_row(gain, i32(0), width, lane())
        ask_for_row(done_kernel, i32(i32(2) * width), width, lane())
        ask_for_row(done_kernel, i32(i32(3) * width), width, lane())
    wait_for_launches()
    let_next_launch_start()
    live = i32(num_tokens[0])
    row = i32(cuda.blockIdx.x)
    while row < live:
        inside, octet = i32(row - quotient(row, block) * queries), i32(lane())
        second, third, fourth = i32(octet + i32(32)), i32(octet + i32(64)), i32(octet + i32(96))
        rest = (residual, added, done_kernel, done_delta, row, inside)
        v0 = joined_eight(*rest, octet, width, groups, share)
        v1 = joined_eight(*rest, second, width, groups, share)
        v2 = joined_eight(*rest, third, width, groups, share)
        v3 = times(v2, f32(0.0))
        if width > i32(768):
            v3 = joined_eight(*rest, fourth, width, groups, share)
        squares = warp_sum(dot(v0, v0) + dot(v1, v1) + dot(v2, v2) + dot(v3, v3))
        shrink = inverse_root(squares * inverse_of(width) + eps)
        put_octet(out, gain, v0, shrink, row, i32(0), width, slice, slices)
        put_octet(out, gain, v1, shrink, row, i32(1), width, slice, slices)
        put_octet(out, gain, v2, shrink, row, i32(2), width, slice, slices)
        put_octet(out, gain, v3, shrink, row, i32(3), width, slice, slices)
        row = i32(row + i32(cuda.gridDim.x))


def yes():
    return True
