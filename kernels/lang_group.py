"""A chunk of a wide product by warp groups, Hopper's own tensor core instruction: behind kernels/wide_group_gpu.py.

A group is four warps. It multiplies what lies in shared memory, named by descriptors, while its threads do something else; what
was copied there by threads is made known to it first. Absent in the simulator. PTX ISA 8, sm_90a: `wgmma.mma_async.sync.aligned`,
`fence.proxy.async`; layouts: section "Asynchronous warpgroup level matrix instructions", 128-byte swizzle, K-major.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()

GROUP_TOKENS = 64
"""Rows of activations that one instruction takes."""

_STEPS = 4
"""Instructions over a chunk, of sixteen columns each."""

ATOM = 1024
"""Bytes of eight lines, within which pieces change places: operands begin at a multiple of it."""

_LAYOUT = 1 << 62 | (ATOM >> 4) << 32 | 1 << 16
"""Of a descriptor: 128-byte swizzle, eight lines from eight lines; the other distance is not used. Beside it the address / 16."""


@intrinsic
def let_groups_see_copies(typingctx):
    """What this thread copied to shared memory and waited for is seen by warp groups from the next barrier on."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(kind, "fence.proxy.async.shared::cta;", "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return signature(types.void), codegen


def group_products(kind: str, width: int) -> Any:
    """group_products(sums, rows, weights): begin to add to sums the products of GROUP_TOKENS rows of activations with `width` rows
    of weights over a chunk. Called by all threads of a warp group, which touch neither sums nor operands before `group_sums`.

    sums: tuple of width / 2 float32: of weight rows 8 j + 2 (lane % 4) + (0, 1) those of row 16 warp + lane / 4, then those eight
    rows below. rows, weights: uint32, shared addresses of the first lines, multiples of ATOM. kind: bf16 or f16.
    """
    count = width // 2
    floats = types.UniTuple(types.float32, count)
    totals = ", ".join(f"${i}" for i in range(count))
    lines = ["wgmma.fence.sync.aligned;"]
    for step in range(_STEPS):
        operands = f"${2 * count + step}, ${2 * count + _STEPS + step}"
        lines.append(f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} {{{totals}}}, {operands}, 1, 1, 1, 0, 0;")
    lines.append("wgmma.commit_group.sync.aligned;")
    statement = _on_sums("\n".join(lines), count, 2 * _STEPS)

    def typed(typingctx, sums, rows, weights):
        def codegen(context, builder, sig, args):
            descriptors = []
            for address in args[1:]:
                first = builder.zext(builder.lshr(address, ir.Constant(_WORD, 4)), _LONG)
                first = builder.or_(first, ir.Constant(_LONG, _LAYOUT))
                descriptors += [builder.add(first, ir.Constant(_LONG, 2 * step)) for step in range(_STEPS)]
            struct = builder.call(statement, [*cgutils.unpack_tuple(builder, args[0], count), *descriptors], attrs=("convergent",))
            return context.make_tuple(builder, sig.return_type, [builder.extract_value(struct, i) for i in range(count)])

        return signature(floats, floats, types.uint32, types.uint32), codegen

    return intrinsic(typed)


def group_sums(width: int, left: int) -> Any:
    """group_sums(sums): the sums of `group_products`, when all products of this warp group but those of the last `left` calls are
    done: with left > 0 more may still be under way to them."""
    count = width // 2
    floats = types.UniTuple(types.float32, count)
    statement = _on_sums(f"wgmma.wait_group.sync.aligned {left};", count)

    def typed(typingctx, sums):
        def codegen(context, builder, sig, args):
            struct = builder.call(statement, cgutils.unpack_tuple(builder, args[0], count), attrs=("convergent",))
            return context.make_tuple(builder, sig.return_type, [builder.extract_value(struct, i) for i in range(count)])

        return signature(floats, floats), codegen

    return intrinsic(typed)


def _on_sums(text: str, count: int, descriptors: int = 0) -> ir.InlineAsm:
    """A statement whose first `count` operands are registers that it adds to, as $0 and on; then come descriptors."""
    tied = [str(i) for i in range(count)]
    constraints = ",".join(["=f"] * count + tied + ["l"] * descriptors + ["~{memory}"])
    operands = [_FLOAT] * count + [_LONG] * descriptors
    kind = ir.FunctionType(ir.LiteralStructType([_FLOAT] * count), operands)
    return ir.InlineAsm(kind, text, constraints, side_effect=True)
