"""Random weights, made where they are used: element i of a tensor is a hash of its seed and of i, the same on every device."""

from __future__ import annotations

from kernels.lang import cuda, f32, kernel, u32
from kernels.lang_storage import narrow
from kernels.mix import mix32


@kernel(writes=("out",))
def fill_random(out, bound, seed):
    """out[i] = bound * u with u uniform in [-1, 1), 24 bits of it.

    Args:
        out: [n], any storage type.
        bound: float32; the standard deviation is bound / sqrt(3).
        seed: int32 >= 0, of this tensor alone.

    Launch: any grid, threads over the elements. Thread `i` owns out[i]. No barrier, nothing is allocated: safe under capture.
    Oracle: oracle_forward.fill_random.
    """
    first = mix32(u32(seed))
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        bits = mix32(u32(u32(i) ^ first))
        out[i] = narrow(f32(bound * f32(f32(f32(u32(bits >> u32(8))) * f32(2.0**-23)) - f32(1.0))), out)
