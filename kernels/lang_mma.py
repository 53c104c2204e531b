"""What only a GPU has, as intrinsics: 16-byte loads, pairs of 16-bit floats, and the tensor cores' product of a warp.

Imported by the GPU forms of primitives (kernels/tile.py, kernels/attend_tile.py) alone; absent in the simulator.
PTX ISA 8: `mma.sync.aligned.m16n8k16`, `cvt.rn.{bf16x2,f16x2}.f32`, `ld.global.nc`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()
_FOUR_WORDS = types.UniTuple(types.uint32, 4)
_FOUR_FLOATS = types.UniTuple(types.float32, 4)


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Pointer to element `offset` of a contiguous array."""
    view = context.make_array(array_type)(context, builder, array)
    return builder.gep(view.data, [offset])


def _tuple_of(context: Any, builder: Any, kind: Any, values: list[Any]) -> Any:
    return context.make_tuple(builder, kind, values)


@intrinsic
def load16(typingctx, array, offset):
    """load16(array, offset): four uint32, the 16 bytes from element `offset` (int64) of a contiguous array on; aligned to 16."""

    def codegen(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], *args)
        vector = builder.load(builder.bitcast(pointer, ir.PointerType(ir.VectorType(_WORD, 4))))
        vector.align = 16
        words = [builder.extract_element(vector, ir.Constant(_WORD, i)) for i in range(4)]
        return _tuple_of(context, builder, sig.return_type, words)

    return signature(_FOUR_WORDS, array, types.int64), codegen


@intrinsic
def stream16(typingctx, array, offset):
    """As `load16`, for global memory that no kernel of the launch writes and that is read once: it does not displace L1."""

    def codegen(context, builder, sig, args):
        pointer = builder.ptrtoint(_address(context, builder, sig.args[0], *args), ir.IntType(64))
        kind = ir.FunctionType(ir.LiteralStructType([_WORD] * 4), [ir.IntType(64)])
        text = "ld.global.nc.L1::no_allocate.v4.u32 {$0, $1, $2, $3}, [$4];"
        struct = builder.call(ir.InlineAsm(kind, text, "=r,=r,=r,=r,l", side_effect=False), [pointer])
        return _tuple_of(context, builder, sig.return_type, [builder.extract_value(struct, i) for i in range(4)])

    return signature(_FOUR_WORDS, array, types.int64), codegen


@intrinsic
def floats_of(typingctx, words):
    """Four float32 from the bits of four uint32."""

    def codegen(context, builder, sig, args):
        floats = [builder.bitcast(word, _FLOAT) for word in cgutils.unpack_tuple(builder, args[0], 4)]
        return _tuple_of(context, builder, sig.return_type, floats)

    return signature(_FOUR_FLOATS, _FOUR_WORDS), codegen


def _asm(text: str, constraints: str, result: Any, argument_types: list[Any], *, convergent: bool = False) -> ir.InlineAsm:
    return ir.InlineAsm(ir.FunctionType(result, argument_types), text, constraints, side_effect=convergent)


def _pair(instruction: str) -> Any:
    def typed(typingctx, low, high):
        def codegen(context, builder, sig, args):
            asm = _asm(f"{instruction} $0, $2, $1;", "=r,f,f", _WORD, [_FLOAT, _FLOAT])
            return builder.call(asm, args)

        return signature(types.uint32, types.float32, types.float32), codegen

    return typed


pair_bfloat16 = intrinsic(_pair("cvt.rn.bf16x2.f32"))
pair_float16 = intrinsic(_pair("cvt.rn.f16x2.f32"))


@intrinsic
def select_bytes(typingctx, low, high, selector):
    """`prmt`: four bytes out of the eight of (low, high)."""

    def codegen(context, builder, sig, args):
        return builder.call(_asm("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", _WORD, [_WORD] * 3), args)

    return signature(types.uint32, types.uint32, types.uint32, types.uint32), codegen


def _mma(kind: str) -> Any:
    def typed(typingctx, sums, a0, a1, a2, a3, b0, b1):
        def codegen(context, builder, sig, args):
            text = (
                f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
                "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
            )
            result = ir.LiteralStructType([_FLOAT] * 4)
            asm = _asm(text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", result, [_WORD] * 6 + [_FLOAT] * 4, convergent=True)
            # Convergent: a copy of it in each arm of a branch would run with half a warp.
            struct = builder.call(asm, [*args[1:], *cgutils.unpack_tuple(builder, args[0], 4)], attrs=("convergent",))
            return _tuple_of(context, builder, sig.return_type, [builder.extract_value(struct, i) for i in range(4)])

        words = [types.uint32] * 6
        return signature(_FOUR_FLOATS, _FOUR_FLOATS, *words), codegen

    return typed


mma_bfloat16 = intrinsic(_mma("bf16"))
mma_float16 = intrinsic(_mma("f16"))
