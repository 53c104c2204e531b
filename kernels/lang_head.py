"""Sums of a warp group's products (kernels/lang_group.py) as logits: stored from registers, and the best of a row among them.

Absent in the simulator. PTX ISA 8: `st.global.v2.f32`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from kernels.lang_mma import _address

_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_BEST = types.Tuple((types.float32, types.int32))


def store_sums(width: int, side: int) -> Any:
    """store_sums(array, offset, sums, column, end): a row's sums to element `offset` (int64) of a contiguous float32 array and on,
    as far as their columns, column + 8 j + (0, 1), are below `end`, a multiple of 8.

    sums: of `group_products`; side 0: of the near row, 1: of that eight rows below. offset: even.
    """
    count = width // 2
    floats = types.UniTuple(types.float32, count)

    def typed(typingctx, array, offset, sums, column, end):
        def codegen(context, builder, sig, args):
            pointer = builder.ptrtoint(_address(context, builder, sig.args[0], args[0], args[1]), _LONG)
            totals = cgutils.unpack_tuple(builder, args[2], count)
            kind = ir.FunctionType(ir.VoidType(), [_LONG, _FLOAT, _FLOAT, _WORD, _WORD])
            for j in range(count // 4):
                text = (
                    f"{{ .reg .pred p; .reg .s32 c; add.s32 c, $3, {8 * j}; setp.lt.s32 p, c, $4; "
                    f"@p st.global.v2.f32 [$0+{32 * j}], {{$1, $2}}; }}"
                )
                pair = totals[4 * j + 2 * side :][:2]
                asm = ir.InlineAsm(kind, text, "l,f,f,r,r,~{memory}", side_effect=True)
                builder.call(asm, [pointer, *pair, args[3], args[4]])
            return context.get_dummy_value()

        return signature(types.void, array, types.int64, floats, types.int32, types.int32), codegen

    return intrinsic(typed)


def best_of_sums(width: int, side: int) -> Any:
    """best_of_sums(sums, value, best, column, end): (value, best), or the largest of a row's sums that is larger, and its column,
    the lowest of equals. NaN is not larger, and columns from `end` on are not looked at.

    sums, column, side: as in `store_sums`. value: float32. best: int32.
    """
    count = width // 2
    floats = types.UniTuple(types.float32, count)

    def typed(typingctx, sums, value, best, column, end):
        def codegen(context, builder, sig, args):
            totals = cgutils.unpack_tuple(builder, args[0], count)
            value, best = args[1], args[2]
            for j in range(count // 4):
                for place, total in enumerate(totals[4 * j + 2 * side :][:2]):
                    at = builder.add(args[3], ir.Constant(_WORD, 8 * j + place))
                    larger = builder.and_(builder.fcmp_ordered(">", total, value), builder.icmp_signed("<", at, args[4]))
                    value, best = builder.select(larger, total, value), builder.select(larger, at, best)
            return context.make_tuple(builder, sig.return_type, [value, best])

        return signature(_BEST, floats, types.float32, types.int32, types.int32, types.int32), codegen

    return intrinsic(typed)
