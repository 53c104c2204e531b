"""The sums of a step's attention: how the warps of a cluster add up what each has left in shared memory."""

from __future__ import annotations

from typing import Any

from kernels.attend_layout import Layout
from kernels.attend_pages_gpu import inverse_of, quotient
from kernels.lang import NEG_INF, device_function, f32, i32, i64, u32
from kernels.lang_element import exp2, inverse, put_element
from kernels.lang_overlap import cluster_address, read_cluster, read_cluster_four
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, warp_broadcast, warp_max, warp_sum

STAT_BYTES = 2 * 16 * 4
"""Of a warp's maxima and totals of sixteen pairs."""


@device_function
def sums_of(area, byte, j):
    """Four dims of the sums of the warp that lane j knows."""
    return read_cluster_four(u32(warp_broadcast(area, j) + byte))


@device_function
def weighed(sums, more, weight):
    return (
        sums[0] + weight * more[0],
        sums[1] + weight * more[1],
        sums[2] + weight * more[2],
        sums[3] + weight * more[3],
    )


@device_function
def fold_eight(sums, area, weight, byte, j):
    """The sums of eight more warps, weighed; a lane beyond the last has weight 0."""
    a, b = sums_of(area, byte, j), sums_of(area, byte, i32(j + i32(1)))
    c, d = sums_of(area, byte, i32(j + i32(2))), sums_of(area, byte, i32(j + i32(3)))
    e, f = sums_of(area, byte, i32(j + i32(4))), sums_of(area, byte, i32(j + i32(5)))
    g, h = sums_of(area, byte, i32(j + i32(6))), sums_of(area, byte, i32(j + i32(7)))
    sums = weighed(sums, a, warp_broadcast(weight, j))
    sums = weighed(sums, b, warp_broadcast(weight, i32(j + i32(1))))
    sums = weighed(sums, c, warp_broadcast(weight, i32(j + i32(2))))
    sums = weighed(sums, d, warp_broadcast(weight, i32(j + i32(3))))
    sums = weighed(sums, e, warp_broadcast(weight, i32(j + i32(4))))
    sums = weighed(sums, f, warp_broadcast(weight, i32(j + i32(5))))
    sums = weighed(sums, g, warp_broadcast(weight, i32(j + i32(6))))
    return weighed(sums, h, warp_broadcast(weight, i32(j + i32(7))))


def fold_with(layout: Layout) -> Any:
    part_bytes, sum_byte = 2 * layout.tile_bytes, layout.sum_byte

    @device_function
    def fold(out, base, stat_base, token, group, share, kv_head, head_dim, first_pair, pairs, active, place, places, warps):
        """out = the softmax over the `active` warps of the cluster that had keys, 32 at most, in order: each rescaled to the
        largest.

        The warps of the cluster share the pairs; a lane takes four neighbouring dims, and knows where one of those has its sums.
        """
        whose = min(lane(), i32(active - i32(1)))
        rank = quotient(whose, inverse_of(warps))
        local = i32(whose - rank * warps)
        area, stat = (
            i32(cluster_address(u32(base + u32(local * i32(part_bytes))), rank)),
            cluster_address(u32(stat_base + u32(local * i32(STAT_BYTES))), rank),
        )
        d = i32(lane() * i32(4))
        p = i32(place)
        while p < pairs:
            top, total = read_cluster(u32(stat + u32(p * i32(4)))), read_cluster(u32(stat + u32(p * i32(4) + i32(64))))
            if lane() >= active:
                top, total = NEG_INF, f32(0.0)
            byte, j = sum_byte(head_dim, p, min(d, i32(head_dim - i32(4)))), i32(0)
            weight = exp2(top - warp_max(top))
            normalizer = warp_sum(total * weight)
            sums = (f32(0.0), f32(0.0), f32(0.0), f32(0.0))
            while j < active:  # eight at a time: their loads are under way together
                sums = fold_eight(sums, area, weight, byte, j)
                j = i32(j + i32(8))
            if d < head_dim:
                row, part = quotient(i32(first_pair + p), share), inverse(normalizer)
                head = i32(kv_head * group + first_pair + p - row * group)
                at = i64(i32(token + row)) * i64(i32(out.shape[1])) + i64(i32(head * head_dim + d))
                put_element(out, at, narrow(sums[0] * part, out))
                put_element(out, at + i64(1), narrow(sums[1] * part, out))
                put_element(out, at + i64(2), narrow(sums[2] * part, out))
                put_element(out, at + i64(3), narrow(sums[3] * part, out))
            p = i32(p + places)

    return fold
