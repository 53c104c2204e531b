"""What the warps of a ring of chunks wait for, and what they begin with: instructions behind kernels/wide_group_gpu.py.

Absent in the simulator. PTX ISA 8: `bar.sync`, `cp.async.wait_group`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

_FLOAT = ir.FloatType()

LINE = 128
"""Bytes of a row in a chunk: 64 elements of 16 bits."""


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
