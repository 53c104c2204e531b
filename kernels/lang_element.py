"""Single elements as a GPU has them: of contiguous arrays by their offset, of shared memory by its address; and two fast functions.

Imported by the GPU forms of primitives alone; absent in the simulator. `array[i, j]` multiplies 64-bit strides and looks whether an
index is negative: in kernels of a few microseconds that is most of what they do.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from kernels.lang_mma import _address, _asm

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()


@intrinsic
def element(typingctx, array, offset):
    """Element `offset` (int64) of a contiguous array, whatever its axes: without the strides that array[i, j] multiplies."""

    def codegen(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], *args)
        return context.unpack_value(builder, sig.args[0].dtype, pointer)

    return signature(array.dtype, array, types.int64), codegen


@intrinsic
def put_element(typingctx, array, offset, value):
    """Store to element `offset` (int64) of a contiguous array."""

    def codegen(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], args[0], args[1])
        context.pack_value(builder, sig.args[0].dtype, args[2], pointer)
        return context.get_dummy_value()

    return signature(types.void, array, types.int64, array.dtype), codegen


@intrinsic
def put_bits(typingctx, array, offset, word):
    """Store the low 16 bits of a uint32 as element `offset` (int64) of a contiguous array of a 16-bit type."""

    def codegen(context, builder, sig, args):
        pointer = builder.bitcast(_address(context, builder, sig.args[0], args[0], args[1]), ir.PointerType(ir.IntType(16)))
        builder.store(builder.trunc(args[2], ir.IntType(16)), pointer)
        return context.get_dummy_value()

    return signature(types.void, array, types.int64, types.uint32), codegen


@intrinsic
def put16(typingctx, array, offset, words):
    """Store four uint32 as the 16 bytes from element `offset` (int64) of a contiguous array on; aligned to 16."""

    def codegen(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], args[0], args[1])
        vector = ir.Constant(ir.VectorType(_WORD, 4), ir.Undefined)
        for i, word in enumerate(cgutils.unpack_tuple(builder, args[2], 4)):
            vector = builder.insert_element(vector, word, ir.Constant(_WORD, i))
        store = builder.store(vector, builder.bitcast(pointer, ir.PointerType(ir.VectorType(_WORD, 4))))
        store.align = 16
        return context.get_dummy_value()

    return signature(types.void, array, types.int64, types.UniTuple(types.uint32, 4)), codegen


@intrinsic
def words_of(typingctx, floats):
    """Four uint32 from the bits of four float32."""

    def codegen(context, builder, sig, args):
        words = [builder.bitcast(value, _WORD) for value in cgutils.unpack_tuple(builder, args[0], 4)]
        return context.make_tuple(builder, sig.return_type, words)

    return signature(types.UniTuple(types.uint32, 4), types.UniTuple(types.float32, 4)), codegen


@intrinsic
def early_int(typingctx, array, offset):
    """Element `offset` (int64) of a contiguous int32 array, loaded here and nowhere later, from L2: for reads before
    `wait_for_launches` (kernels/lang_overlap.py), when L1 may hold what another kernel has replaced."""

    def codegen(context, builder, sig, args):
        pointer = builder.ptrtoint(_address(context, builder, sig.args[0], *args), ir.IntType(64))
        return builder.call(_asm("ld.global.cg.s32 $0, [$1];", "=r,l", _WORD, [ir.IntType(64)], convergent=True), [pointer])

    return signature(types.int32, array, types.int64), codegen


_EARLY16 = """{
\t.reg .pred p;
\tsetp.ne.u32 p, $5, 0;
\t@p ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v4.u32 {$0, $1, $2, $3}, [$4];
\t}"""


@intrinsic
def early16(typingctx, array, offset, wanted):
    """Four uint32, the 16 bytes from element `offset` (int64) of a contiguous array on, aligned to 16: loaded here and nowhere
    later, past L1. A plain load would be moved down to where it is used, behind `wait_for_launches` for one.

    wanted: uint32; 0: nothing is read, and what is returned is whatever was in the registers.
    """

    def codegen(context, builder, sig, args):
        pointer = builder.ptrtoint(_address(context, builder, sig.args[0], args[0], args[1]), ir.IntType(64))
        kind = ir.FunctionType(ir.LiteralStructType([_WORD] * 4), [ir.IntType(64), _WORD])
        asm = ir.InlineAsm(kind, _EARLY16, "=r,=r,=r,=r,l,r,~{memory}", side_effect=True)
        struct = builder.call(asm, [pointer, args[2]])
        return context.make_tuple(builder, sig.return_type, [builder.extract_value(struct, i) for i in range(4)])

    return signature(types.UniTuple(types.uint32, 4), array, types.int64, types.uint32), codegen


def _float_function(instruction: str) -> Any:
    def typed(typingctx, value):
        def codegen(context, builder, sig, args):
            return builder.call(_asm(f"{instruction} $0, $1;", "=f,f", _FLOAT, [_FLOAT]), args)

        return signature(types.float32, types.float32), codegen

    return typed


exp2 = intrinsic(_float_function("ex2.approx.ftz.f32"))
"""2 ** value; 0 for -inf."""

inverse = intrinsic(_float_function("rcp.approx.ftz.f32"))
"""1 / value."""

inverse_root = intrinsic(_float_function("rsqrt.approx.ftz.f32"))
"""1 / sqrt(value)."""


@intrinsic
def write2(typingctx, address, word):
    """The low 16 bits of a uint32 to a shared address."""

    def codegen(context, builder, sig, args):
        text = "{ .reg .u16 t; cvt.u16.u32 t, $1; st.shared.u16 [$0], t; }"
        kind = ir.FunctionType(ir.VoidType(), [_WORD, _WORD])
        builder.call(ir.InlineAsm(kind, text, "r,r,~{memory}", side_effect=True), args)
        return context.get_dummy_value()

    return signature(types.void, types.uint32, types.uint32), codegen


@intrinsic
def write4(typingctx, address, value):
    """A float32 to a shared address."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [_WORD, _FLOAT])
        builder.call(ir.InlineAsm(kind, "st.shared.f32 [$0], $1;", "r,f,~{memory}", side_effect=True), args)
        return context.get_dummy_value()

    return signature(types.void, types.uint32, types.float32), codegen


@intrinsic
def write8(typingctx, address, a, b):
    """Two float32 to the 8 bytes at a shared address."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [_WORD, _FLOAT, _FLOAT])
        builder.call(ir.InlineAsm(kind, "st.shared.v2.f32 [$0], {$1, $2};", "r,f,f,~{memory}", side_effect=True), args)
        return context.get_dummy_value()

    return signature(types.void, types.uint32, types.float32, types.float32), codegen


@intrinsic
def write16(typingctx, address, a, b, c, d):
    """Four float32 to the 16 bytes at a shared address."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [_WORD, *[_FLOAT] * 4])
        text = "st.shared.v4.f32 [$0], {$1, $2, $3, $4};"
        builder.call(ir.InlineAsm(kind, text, "r,f,f,f,f,~{memory}", side_effect=True), args)
        return context.get_dummy_value()

    return signature(types.void, types.uint32, *[types.float32] * 4), codegen
