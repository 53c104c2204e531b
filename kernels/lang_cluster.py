"""The instructions behind kernels/lang_overlap.py, absent in the simulator.

PTX ISA 7.8: `griddepcontrol`, `barrier.cluster`, `mapa`, `ld.shared::cluster`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import cuda as numba_cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from kernels.lang import i32, i64
from kernels.lang_element import early_int

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()


def _statement(text: str) -> Any:
    def typed(typingctx):
        def codegen(context, builder, sig, args):
            asm = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True)
            builder.call(asm, [], attrs=("convergent",))
            return context.get_dummy_value()

        return signature(types.void), codegen

    return intrinsic(typed)


def _special_register(name: str) -> Any:
    def typed(typingctx):
        def codegen(context, builder, sig, args):
            return builder.call(ir.InlineAsm(ir.FunctionType(_WORD, []), f"mov.u32 $0, %{name};", "=r"), [])

        return signature(types.int32), codegen

    return intrinsic(typed)


_wait = _statement("griddepcontrol.wait;")
_start = _statement("griddepcontrol.launch_dependents;")
_barrier = _statement("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;")
_rank = _special_register("cluster_ctarank")
_size = _special_register("cluster_nctarank")
_number = _special_register("clusterid.x")
_numbers = _special_register("nclusterid.x")


@intrinsic
def _address(typingctx, address, rank):
    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(_WORD, [_WORD, _WORD])
        return builder.call(ir.InlineAsm(kind, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"), args)

    return signature(types.uint32, types.uint32, types.int32), codegen


def _read(space: str) -> Any:
    def typed(typingctx, address):
        def codegen(context, builder, sig, args):
            kind = ir.FunctionType(_FLOAT, [_WORD])
            return builder.call(ir.InlineAsm(kind, f"ld.{space}.f32 $0, [$1];", "=f,r,~{memory}", side_effect=True), args)

        return signature(types.float32, types.uint32), codegen

    return intrinsic(typed)


_read_cluster, _read_block = _read("shared::cluster"), _read("shared")


def _read_four(space: str) -> Any:
    def typed(typingctx, address):
        def codegen(context, builder, sig, args):
            kind = ir.FunctionType(ir.LiteralStructType([_FLOAT] * 4), [_WORD])
            text = f"ld.{space}.v4.f32 {{$0, $1, $2, $3}}, [$4];"
            struct = builder.call(ir.InlineAsm(kind, text, "=f,=f,=f,=f,r,~{memory}", side_effect=True), args)
            return context.make_tuple(builder, sig.return_type, [builder.extract_value(struct, i) for i in range(4)])

        return signature(types.UniTuple(types.float32, 4), types.uint32), codegen

    return intrinsic(typed)


_read_four_cluster, _read_four_block = _read_four("shared::cluster"), _read_four("shared")


@intrinsic
def _element_of_block(typingctx, array, place, rank):
    def codegen(context, builder, sig, args):
        view = context.make_array(sig.args[0])(context, builder, args[0])
        own = builder.ptrtoint(builder.gep(view.data, [args[1]]), ir.IntType(64))
        text = (
            "{ .reg .u64 t; .reg .u32 a; cvta.to.shared.u64 t, $1; cvt.u32.u64 a, t; mapa.shared::cluster.u32 a, a, $2; "
            "ld.shared::cluster.s32 $0, [a]; }"
        )
        kind = ir.FunctionType(_WORD, [ir.IntType(64), _WORD])
        return builder.call(ir.InlineAsm(kind, text, "=r,l,r,~{memory}", side_effect=True), [own, args[2]])

    return signature(types.int32, array, types.int32, types.int32), codegen


def wait_form():
    _wait()


def start_form():
    _start()


def early_count_form(counts):
    return early_int(counts, i64(0))


def rank_form():
    return _rank()


def size_form():
    return _size()


def number_form():
    return _number()


def numbers_form():
    return _numbers()


def own_number_form():
    return i32(numba_cuda.blockIdx.x)


def own_numbers_form():
    return i32(numba_cuda.gridDim.x)


def barrier_form():
    _barrier()


def address_form(address, rank):
    return _address(address, rank)


def read_form(address):
    return _read_cluster(address)


def read_four_form(address):
    return _read_four_cluster(address)


def own_address_form(address, rank):
    return address


def own_read_form(address):
    return _read_block(address)


def own_read_four_form(address):
    return _read_four_block(address)


def block_form(array, place, rank):
    return _element_of_block(array, place, rank)


def own_block_form(array, place, rank):
    return array[place]
