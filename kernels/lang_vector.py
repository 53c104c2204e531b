"""Eight neighbouring elements at once, and memory asked for ahead: how the kernels of few rows load on a GPU.

Imported by the GPU forms of primitives alone; absent in the simulator. PTX ISA 8: `prefetch.global.L2`, `cvt.f32.f16`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from kernels.lang import device_function, i64
from kernels.lang_mma import _address, _tuple_of, floats_of, load16

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()
_TWO_FLOATS = types.UniTuple(types.float32, 2)


@intrinsic
def ask_for(typingctx, array, offset):
    """Bring the line of element `offset` (int64) of a contiguous array into L2. Nothing is read of it."""

    def codegen(context, builder, sig, args):
        pointer = builder.ptrtoint(_address(context, builder, sig.args[0], *args), ir.IntType(64))
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(ir.InlineAsm(kind, "prefetch.global.L2 [$0];", "l", side_effect=True), [pointer])
        return context.get_dummy_value()

    return signature(types.void, array, types.int64), codegen


def _pair(text: str) -> Any:
    def typed(typingctx, word):
        def codegen(context, builder, sig, args):
            result = ir.LiteralStructType([_FLOAT] * 2)
            struct = builder.call(ir.InlineAsm(ir.FunctionType(result, [_WORD]), text, "=f,=f,r"), args)
            return _tuple_of(context, builder, sig.return_type, [builder.extract_value(struct, i) for i in range(2)])

        return signature(_TWO_FLOATS, types.uint32), codegen

    return intrinsic(typed)


_of_float16 = _pair("{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }")
_of_bfloat16 = _pair("{ .reg .b32 t; shl.b32 t, $2, 16; mov.b32 $0, t; and.b32 t, $2, 0xFFFF0000; mov.b32 $1, t; }")


@device_function
def eight_float32(array, offset):
    """Elements offset .. offset + 7 (int64) of a contiguous array that are aligned to 16 bytes, as eight float32."""
    a, b = floats_of(load16(array, offset)), floats_of(load16(array, offset + i64(4)))
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


def _eight_with(pair: Any) -> Any:
    @device_function
    def eight(array, offset):
        words = load16(array, offset)
        a, b, c, d = pair(words[0]), pair(words[1]), pair(words[2]), pair(words[3])
        return a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]

    return eight


EIGHT = {"float32": eight_float32, "uint16": _eight_with(_of_bfloat16), "float16": _eight_with(_of_float16)}
"""`eight_float32` by the type of the array."""
