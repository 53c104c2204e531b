"""A chunk of a wide product on the tensor cores, and where its sums go: instructions behind kernels/wide_tile_gpu.py.

Absent in the simulator. PTX ISA 8: `ldmatrix`, `mma.sync.aligned.m16n8k16`, `bar.sync`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()

LINE = 128
"""Bytes of a row in a chunk: 64 elements of 16 bits."""

PAIR_TOKENS = 16
"""Rows of activations that four matrices of `ldmatrix` hold over sixteen columns: a pair of tiles of eight."""

MOST_PAIRS = 4


def barrier_of(threads: int) -> Any:
    """A barrier of the first `threads` threads of a block, whole warps: those behind them do something else meanwhile."""

    def typed(typingctx):
        def codegen(context, builder, sig, args):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(ir.InlineAsm(kind, f"bar.sync 1, {threads};", "~{memory}", side_effect=True), [], attrs=("convergent",))
            return context.get_dummy_value()

        return signature(types.void), codegen

    return intrinsic(typed)


def wait_all_but(groups: int) -> Any:
    """Wait until all groups of copies of this thread (kernels/lang_mma.py) but the last so many are there."""

    def typed(typingctx):
        def codegen(context, builder, sig, args):
            text, kind = f"cp.async.wait_group {groups};", ir.FunctionType(ir.VoidType(), [])
            builder.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return signature(types.void), codegen

    return intrinsic(typed)


def zeros_of(count: int) -> Any:
    """A tuple of so many float32 zeros."""

    def typed(typingctx):
        def codegen(context, builder, sig, args):
            return context.make_tuple(builder, sig.return_type, [ir.Constant(_FLOAT, 0.0)] * count)

        return signature(types.UniTuple(types.float32, count)), codegen

    return intrinsic(typed)


def _matrices(builder: Any, address: Any, offset: int) -> list[Any]:
    """Four matrices of eight rows of 16 bytes; each lane has the address of a row."""
    kind = ir.FunctionType(ir.LiteralStructType([_WORD] * 4), [_WORD])
    text = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
    asm = ir.InlineAsm(kind, text, "=r,=r,=r,=r,r,~{memory}", side_effect=True)
    struct = builder.call(asm, [address], attrs=("convergent",))
    return [builder.extract_value(struct, i) for i in range(4)]


def _product(builder: Any, kind: str, sums: list[Any], a: list[Any], b: list[Any]) -> list[Any]:
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    result = ir.LiteralStructType([_FLOAT] * 4)
    operands = ir.FunctionType(result, [_WORD] * 6 + [_FLOAT] * 4)
    asm = ir.InlineAsm(operands, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=True)
    struct = builder.call(asm, [*a, *b, *sums], attrs=("convergent",))
    return [builder.extract_value(struct, i) for i in range(4)]


def chunk_products(kind: str, tiles: int, pairs: int) -> Any:
    """chunk_products(sums, weights, rows): sums + the products of `tiles` times 16 weight rows with `pairs` times 16 rows of
    activations over 32 columns, half of a chunk.

    sums: tuple of tiles * MOST_PAIRS * 8 float32: by pair, half of it, tile; of each the four of a lane. weights, rows: uint32,
    shared addresses of this lane's rows for `ldmatrix`, first sixteen columns. kind: bf16 or f16.
    """
    count = tiles * MOST_PAIRS * 8
    floats = types.UniTuple(types.float32, count)

    def typed(typingctx, sums, weights, rows):
        def codegen(context, builder, sig, args):
            totals = cgutils.unpack_tuple(builder, args[0], count)
            for step in range(2):  # sixteen columns: two of the eight pieces of a line, which change places by exclusive or
                columns = ir.Constant(_WORD, step * 32)
                near, far = builder.xor(args[1], columns), builder.xor(args[2], columns)
                a = [_matrices(builder, near, tile * 16 * LINE) for tile in range(tiles)]
                b = [_matrices(builder, far, pair * PAIR_TOKENS * LINE) for pair in range(pairs)]
                for half in range(2 * pairs):
                    operands = b[half // 2][half % 2 * 2 :][:2]
                    for tile in range(tiles):
                        at = slice((half * tiles + tile) * 4, (half * tiles + tile) * 4 + 4)
                        totals[at] = _product(builder, kind, totals[at], a[tile], operands)
            return context.make_tuple(builder, sig.return_type, totals)

        return signature(floats, floats, types.uint32, types.uint32), codegen

    return intrinsic(typed)


def put_sums(tiles: int, pairs: int, pitch: int) -> Any:
    """put_sums(address, sums): sums of `chunk_products` to shared memory as [tokens, pitch] float32.

    address: uint32, of this lane's first: row 2 (lane % 4) of the warp's tokens, column lane / 4 of its weight rows.
    """
    floats = types.UniTuple(types.float32, tiles * MOST_PAIRS * 8)

    def typed(typingctx, address, sums):
        def codegen(context, builder, sig, args):
            totals = cgutils.unpack_tuple(builder, args[1], tiles * MOST_PAIRS * 8)
            kind = ir.FunctionType(ir.VoidType(), [_WORD, _FLOAT])
            for index, total in enumerate(totals[: tiles * pairs * 8]):
                of_tile, place = divmod(index, 4)
                half, tile = divmod(of_tile, tiles)
                token = half // 2 * PAIR_TOKENS + half % 2 * 8 + place % 2
                offset = (token * pitch + tile * 16 + place // 2 * 8) * 4
                asm = ir.InlineAsm(kind, f"st.shared.f32 [$0+{offset}], $1;", "r,f,~{memory}", side_effect=True)
                builder.call(asm, [args[0], total])
            return context.get_dummy_value()

        return signature(types.void, types.uint32, floats), codegen

    return intrinsic(typed)
