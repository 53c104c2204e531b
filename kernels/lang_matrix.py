"""Matrices of eight rows of 16 bytes from shared memory into the operands of the tensor cores, and what goes with them.

Imported by GPU forms alone; absent in the simulator. PTX ISA 8: `ldmatrix`, `max.f32`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from kernels.lang_mma import _address, _asm, _tuple_of

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()
_FOUR_WORDS = types.UniTuple(types.uint32, 4)


def _matrices(instruction: str) -> Any:
    def typed(typingctx, address):
        def codegen(context, builder, sig, args):
            kind = ir.FunctionType(ir.LiteralStructType([_WORD] * 4), [_WORD])
            text = f"{instruction} {{$0, $1, $2, $3}}, [$4];"
            asm = ir.InlineAsm(kind, text, "=r,=r,=r,=r,r,~{memory}", side_effect=True)
            struct = builder.call(asm, args, attrs=("convergent",))
            return _tuple_of(context, builder, sig.return_type, [builder.extract_value(struct, i) for i in range(4)])

        return signature(_FOUR_WORDS, types.uint32), codegen

    return typed


read_matrices = intrinsic(_matrices("ldmatrix.sync.aligned.m8n8.x4.shared.b16"))
"""read_matrices(address): a word of each of four matrices of 16-bit elements, eight rows of 16 bytes each; lane 8 i + r brings the
shared address of row r of matrix i. Lane 4 g + q gets elements 2 q and 2 q + 1 of row g of each."""

read_transposed = intrinsic(_matrices("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"))
"""The same of the transposed matrices: lane 4 g + q gets element g of rows 2 q and 2 q + 1 of each."""


@intrinsic
def load4(typingctx, array, offset):
    """A uint32: elements `offset` (int64, even) and the next of a contiguous array of a 16-bit type."""

    def codegen(context, builder, sig, args):
        pointer = builder.bitcast(_address(context, builder, sig.args[0], *args), ir.PointerType(_WORD))
        word = builder.load(pointer)
        word.align = 4
        return word

    return signature(types.uint32, array, types.int64), codegen


@intrinsic
def put4(typingctx, array, offset, word):
    """Store a uint32 as elements `offset` (int64, even) and the next of a contiguous array of a 16-bit type."""

    def codegen(context, builder, sig, args):
        pointer = builder.bitcast(_address(context, builder, sig.args[0], args[0], args[1]), ir.PointerType(_WORD))
        store = builder.store(args[2], pointer)
        store.align = 4
        return context.get_dummy_value()

    return signature(types.void, array, types.int64, types.uint32), codegen


@intrinsic
def read4(typingctx, address):
    """The float32 at a shared address."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(_FLOAT, [_WORD])
        return builder.call(ir.InlineAsm(kind, "ld.shared.f32 $0, [$1];", "=f,r,~{memory}", side_effect=True), args)

    return signature(types.float32, types.uint32), codegen


@intrinsic
def larger(typingctx, a, b):
    """The larger of two float32, the other one of a NaN: one instruction, where `max` compares and selects."""

    def codegen(context, builder, sig, args):
        return builder.call(_asm("max.f32 $0, $1, $2;", "=f,f,f", _FLOAT, [_FLOAT, _FLOAT]), args)

    return signature(types.float32, types.float32, types.float32), codegen
