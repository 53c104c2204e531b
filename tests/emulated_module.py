"""Modules of kernels/ read anew with an emulated warp for their hardware (tests/warp_emulator.py)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

import numpy as np

import kernels
from kernels import gated, lang, project, rotate
from tests.emulated_memory import eight_float32, load4, load16, pair_of, put4, put16, select_bytes
from tests.warp_emulator import LANES, Warp


def plain(**members: Any) -> ModuleType:
    """A stand-in for a module of kernels/ that holds these members alone."""
    module = ModuleType("stand-in")
    module.__dict__.update(members)
    return module


def block_of_warps(warp: Warp, warps: int) -> ModuleType:
    """What kernels of whole blocks take from kernels/project.py, in an emulated block."""
    members = {
        "divide": lambda a, b: np.int32(int(a) // int(b)),
        "warp_of_block": lambda: np.int32(warp.threadIdx.x // 32),
        "warps_of_block": lambda: np.int32(warps),
    }
    place = lang.source_of(project.place_of_warp)
    assert place is not None
    return plain(**members, place_of_warp=FunctionType(place.__code__, place.__globals__ | members))


def gpu_module(name: str, warp: Warp, **others: ModuleType) -> ModuleType:
    """kernels/<name>.py, read anew with `warp` for its hardware. `others`: modules of kernels/ to hand it, by name."""
    mma = ModuleType("kernels.lang_mma")
    for dtype in ("bfloat16", "float16"):
        setattr(mma, f"mma_{dtype}", lambda *registers, dtype=dtype: warp.mma(dtype, *registers))
        setattr(mma, f"pair_{dtype}", pair_of(dtype))
    mma.__dict__.update(
        load16=load16,
        copy16=warp.copy16,
        copy16_ahead=warp.copy16,
        copy16_once=lambda address, array, offset, size, policy: warp.copy16(address, array, offset, size),
        commit_copies=warp.commit_copies,
        wait_copies=lambda: warp.wait(0),
        wait_older_copies=lambda: warp.wait(3),
        wait_second_copies=lambda: warp.wait(2),
        wait_first_copies=lambda: warp.wait(1),
        read16=warp.read16,
        ring_address=lambda ring: np.uint32(int(float(ring[0]) * 4096) << 4),
    )
    mma.floats_of = lambda words: tuple(np.array(words, np.uint32).view(np.float32))  # type: ignore[attr-defined]
    mma.select_bytes = select_bytes  # type: ignore[attr-defined]
    language = ModuleType("kernels.lang")
    language.__dict__.update({key: getattr(lang, key) for key in ("f32", "i32", "i64", "u32", "u64", "NEG_INF")})
    unchanged = lambda function: function  # noqa: E731
    language.__dict__.update(cuda=warp, device_function=unchanged, kernel=lambda **options: unchanged)
    language.SIMULATED = True  # type: ignore[attr-defined]
    language.float_of_bits = lambda bits: np.int32(bits).view(np.float32)  # type: ignore[attr-defined]
    warps = ModuleType("kernels.lang_warp")
    quad = lambda lane: list(range(lane // 4 * 4, lane // 4 * 4 + 4))  # noqa: E731
    octet = lambda lane: list(range(lane // 8 * 8, lane // 8 * 8 + 8))  # noqa: E731
    everyone = lambda lane: list(range(LANES))  # noqa: E731
    warps.__dict__.update(
        lane=warp.lane,
        warp_barrier=warp.barrier,
        warp_size=lambda: np.int32(LANES),
        warp_sum=lambda value: warp.combine(value, everyone, lambda values: np.float32(np.sum(values))),
        quad_sum=lambda value: warp.combine(value, quad, lambda values: np.float32(np.sum(values))),
        quad_max=lambda value: warp.combine(value, quad, max),
        octet_sum=lambda value: warp.combine(value, octet, lambda values: np.float32(np.sum(values))),
        warp_max=lambda value: warp.combine(value, everyone, max),
        warp_broadcast=warp.broadcast,
        warp_take=warp.take,
    )
    elements = ModuleType("kernels.lang_element")
    elements.__dict__.update(
        element=lambda array, offset: array.reshape(-1)[int(offset)],
        early_int=lambda array, offset: array.reshape(-1)[int(offset)],
        early16=warp.early16,
        put_element=lambda array, offset, value: array.reshape(-1).__setitem__(int(offset), value),
        put16=put16,
        words_of=lambda floats: tuple(np.array(floats, np.float32).view(np.uint32)),
        put_bits=lambda array, offset, word: array.reshape(-1).view(np.uint16).__setitem__(int(offset), word & 0xFFFF),
        write2=warp.write2,
        write4=warp.write4,
        write8=warp.write8,
        write16=warp.write16,
        exp2=np.exp2,
        inverse=lambda value: np.float32(1) / np.float32(value),
    )
    matrices = ModuleType("kernels.lang_matrix")
    matrices.__dict__.update(
        read_matrices=warp.read_matrices,
        read_transposed=lambda address: warp.read_matrices(address, transposed=True),
        load4=load4,
        put4=put4,
        read4=warp.read4,
        larger=np.fmax,
    )
    fast = ModuleType("kernels.lang_fast")
    fast.inverse_root = lambda value: np.float32(1) / np.sqrt(np.float32(value))  # type: ignore[attr-defined]
    fast.sigmoid = lambda value: np.float32(1) / (np.float32(1) + np.exp(-value))  # type: ignore[attr-defined]
    overlap = ModuleType("kernels.lang_overlap")
    overlap.__dict__.update(
        wait_for_launches=lambda: None,
        let_next_launch_start=lambda: None,
        early_count=lambda counts: counts[0],
        cluster_rank=warp.cluster_rank,
        cluster_size=warp.cluster_size,
        cluster_number=lambda: np.int32(0),
        cluster_numbers=lambda: np.int32(1),
        cluster_barrier=warp.cluster_barrier,
        cluster_address=warp.cluster_address,
        read_cluster=warp.read_cluster,
        read_cluster_four=warp.read_cluster_four,
    )
    bulk = ModuleType("kernels.lang_bulk")
    bulk.__dict__.update(
        barrier_arrive=warp.barrier_arrive,
        barrier_begin=warp.barrier_begin,
        barriers_begun=lambda: None,
        barrier_expect=warp.barrier_expect,
        barrier_wait=warp.barrier_wait,
        copy_run=warp.copy_run,
        evict_first=lambda: np.uint64(0),
    )
    vectors = ModuleType("kernels.lang_vector")
    vectors.__dict__.update(
        EIGHT=dict.fromkeys(("float32", "uint16", "float16"), eight_float32),
        ask_for=lambda array, offset: array.reshape(-1)[int(offset)],  # refuses an element outside
    )
    stand_ins = {"kernels.lang_mma": mma, "kernels.lang": language, "kernels.lang_warp": warps, "kernels.lang_vector": vectors}
    stand_ins["kernels.lang_bulk"] = bulk
    stand_ins |= {"kernels.lang_element": elements, "kernels.lang_fast": fast, "kernels.lang_overlap": overlap}
    stand_ins["kernels.lang_matrix"] = matrices
    gate = lang.source_of(gated.gated)
    assert gate is not None
    stand_ins["kernels.gated"] = plain(gated=FunctionType(gate.__code__, {"sigmoid": fast.sigmoid}))
    stand_ins["kernels.rotate"] = plain(kept=lang.source_of(rotate.kept))
    stand_ins |= {f"kernels.{key}": module for key, module in others.items()}
    spec = importlib.util.spec_from_file_location(f"emulated.{name}", Path(kernels.__path__[0]) / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module
