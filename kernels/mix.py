"""A 32-bit hash for counters: random bits that depend on what is counted, and on nothing that ran before."""

from __future__ import annotations

from kernels.lang import device_function, u32, u64


@device_function
def times32(a, b):
    """The low 32 bits of a product. In 64 bits, because the simulator's scalars warn when 32 overflow."""
    return u32(u64(u64(u64(a) * u64(b)) & u64(0xFFFFFFFF)))


@device_function
def mix32(x):
    """uint32 -> uint32, one to one; every bit of `x` reaches every bit of the result (Wellons, "lowbias32")."""
    x = u32(x ^ u32(x >> u32(16)))
    x = times32(x, u32(0x7FEB352D))
    x = u32(x ^ u32(x >> u32(15)))
    x = times32(x, u32(0x846CA68B))
    return u32(x ^ u32(x >> u32(16)))
