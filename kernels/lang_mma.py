"""What only a GPU has, as intrinsics: 16-byte loads, pairs of 16-bit floats, and the tensor cores' product of a warp.

Imported by the GPU forms of primitives (kernels/tile.py, kernels/attend.py) alone; absent in the simulator.
PTX ISA 8: `mma.sync.aligned.m16n8k16`, `cvt.rn.{bf16x2,f16x2}.f32`, `cp.async.cg`.
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
def ring_address(typingctx, ring):
    """Shared-memory address of the first 16-byte boundary of a shared array."""

    def codegen(context, builder, sig, args):
        view = context.make_array(sig.args[0])(context, builder, args[0])
        text = "{ .reg .u64 t; cvta.to.shared.u64 t, $1; add.u64 t, t, 15; and.b64 t, t, -16; cvt.u32.u64 $0, t; }"
        asm = _asm(text, "=r,l", _WORD, [ir.IntType(64)])
        return builder.call(asm, [builder.ptrtoint(view.data, ir.IntType(64))])

    return signature(types.uint32, ring), codegen


def _copy16(instruction: str) -> Any:
    def typed(typingctx, address, array, offset, size):
        def codegen(context, builder, sig, args):
            pointer = builder.ptrtoint(_address(context, builder, sig.args[1], args[1], args[2]), ir.IntType(64))
            kind = ir.FunctionType(ir.VoidType(), [_WORD, ir.IntType(64), _WORD])
            asm = ir.InlineAsm(kind, f"{instruction} [$0], [$1], 16, $2;", "r,l,r,~{memory}", side_effect=True)
            builder.call(asm, [args[0], pointer, args[3]])
            return context.get_dummy_value()

        return signature(types.void, types.uint32, array, types.int64, types.uint32), codegen

    return typed


copy16_ahead = intrinsic(_copy16("cp.async.cg.shared.global.L2::256B"))
"""`copy16` that brings the 256 bytes around it into L2: for data that is read on from there."""


@intrinsic
def copy16_once(typingctx, address, array, offset, size, policy):
    """`copy16_ahead` with a policy of L2 (uint64), as `evict_first` (kernels/lang_bulk.py) makes it for data that nobody reads
    again."""

    def codegen(context, builder, sig, args):
        long = ir.IntType(64)
        pointer = builder.ptrtoint(_address(context, builder, sig.args[1], args[1], args[2]), long)
        text = "cp.async.cg.shared.global.L2::cache_hint.L2::256B [$0], [$1], 16, $2, $3;"
        kind = ir.FunctionType(ir.VoidType(), [_WORD, long, _WORD, long])
        asm = ir.InlineAsm(kind, text, "r,l,r,l,~{memory}", side_effect=True)
        builder.call(asm, [args[0], pointer, args[3], args[4]])
        return context.get_dummy_value()

    return signature(types.void, types.uint32, array, types.int64, types.uint32, types.uint64), codegen


copy16 = intrinsic(_copy16("cp.async.cg.shared.global"))
"""copy16(address, array, offset, size): begin to copy 16 bytes from element `offset` (int64) of a contiguous array to shared
`address`, past the registers and L1.

`size` (uint32) is 16, or 0 for zeros instead, and nothing is read then. Only `wait_copies` says when they are there. Unlike a
load into registers, which ptxas moves down to its first use, it starts where it stands: it is what keeps memory busy."""


def _statement(text: str) -> Any:
    def typed(typingctx):
        def codegen(context, builder, sig, args):
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return signature(types.void), codegen

    return typed


commit_copies = intrinsic(_statement("cp.async.commit_group;"))
"""End a group of copies of this thread."""

wait_older_copies = intrinsic(_statement("cp.async.wait_group 3;"))
"""Wait until all groups of this thread but the last three are there."""

wait_second_copies = intrinsic(_statement("cp.async.wait_group 2;"))
"""Wait until all groups of this thread but the last two are there."""

wait_first_copies = intrinsic(_statement("cp.async.wait_group 1;"))
"""Wait until all groups of this thread but the last are there."""

wait_copies = intrinsic(_statement("cp.async.wait_group 0;"))
"""Wait until all groups of this thread are there."""


@intrinsic
def read16(typingctx, address):
    """The 16 bytes at a shared address, as four uint32."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.LiteralStructType([_WORD] * 4), [_WORD])
        asm = ir.InlineAsm(kind, "ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r,~{memory}", side_effect=True)
        struct = builder.call(asm, args)
        return _tuple_of(context, builder, sig.return_type, [builder.extract_value(struct, i) for i in range(4)])

    return signature(_FOUR_WORDS, types.uint32), codegen


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
