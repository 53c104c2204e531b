"""Copies of whole runs of memory into shared memory, by an engine beside the multiprocessor: GPUs from compute capability 9 on.

A lane asks for a run of bytes with one instruction, and a barrier in shared memory counts the bytes that have arrived. Imported by
the GPU forms of primitives alone; absent in the simulator. PTX ISA 8: `mbarrier`, `cp.async.bulk`, `createpolicy`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from kernels.lang_mma import _address

_WORD, _LONG = ir.IntType(32), ir.IntType(64)


def _statement(text: str, *kinds: Any) -> Any:
    """An instruction without a result on operands of these Numba types."""
    constraints = [{32: "r", 64: "l"}[kind.bitwidth] for kind in kinds]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        operands = ir.FunctionType(ir.VoidType(), [ir.IntType(kind.bitwidth) for kind in kinds])
        asm = ir.InlineAsm(operands, text, ",".join([*constraints, "~{memory}"]), side_effect=True)
        builder.call(asm, args)
        return context.get_dummy_value()

    return signature(types.void, *kinds), codegen


@intrinsic
def barrier_begin(typingctx, barrier, arrivals):
    """Make the 8 bytes at a shared address (uint32, a multiple of 8) a barrier whose phase ends when so many (uint32) arrived and
    all bytes that were announced are there. `barriers_begun` comes behind it."""
    return _statement("mbarrier.init.shared::cta.b64 [$0], $1;", types.uint32, types.uint32)


@intrinsic
def barriers_begun(typingctx):
    """The engine sees the barriers that this thread made. For others: cuda.syncthreads() or `warp_barrier` behind it."""
    return _statement("fence.mbarrier_init.release.cluster;")


@intrinsic
def barrier_arrive(typingctx, barrier):
    """Arrive."""
    return _statement("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [$0]; }", types.uint32)


@intrinsic
def barrier_expect(typingctx, barrier, size):
    """Arrive, and announce bytes (uint32) of this phase; they may be there already, or be none."""
    return _statement("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [$0], $1; }", types.uint32, types.uint32)


@intrinsic
def barrier_wait(typingctx, barrier, parity):
    """Wait until a barrier's phase of this parity (uint32, 0 for its first) has ended; what was copied is seen then."""
    text = "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra there; bra again; there: }"
    return _statement(text, types.uint32, types.uint32)


@intrinsic
def evict_first(typingctx):
    """A policy of L2 for data that nobody reads again: uint64, for `copy_run`."""

    def codegen(context, builder, sig, args):
        text = "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;"
        return builder.call(ir.InlineAsm(ir.FunctionType(_LONG, []), text, "=l"), [])

    return signature(types.uint64), codegen


@intrinsic
def copy_run(typingctx, address, array, offset, size, barrier, policy):
    """Begin to copy `size` bytes (uint32) from element `offset` (int64) of a contiguous array to shared `address`; `barrier` counts
    them. Addresses and size are multiples of 16. Everything that read the place before has passed a barrier of the warp or block.

    policy: uint64, of `evict_first`.
    """

    def codegen(context, builder, sig, args):
        pointer = builder.ptrtoint(_address(context, builder, sig.args[1], args[1], args[2]), _LONG)
        text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], $2, [$3], $4;"
        kind = ir.FunctionType(ir.VoidType(), [_WORD, _LONG, _WORD, _WORD, _LONG])
        asm = ir.InlineAsm(kind, text, "r,l,r,r,l,~{memory}", side_effect=True)
        builder.call(asm, [args[0], pointer, args[3], args[4], args[5]])
        return context.get_dummy_value()

    arguments = types.uint32, array, types.int64, types.uint32, types.uint32, types.uint64
    return signature(types.void, *arguments), codegen
