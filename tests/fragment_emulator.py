"""kernels/lang_wide.py and lang_group.py in emulated warps: their own code is run, and the instructions that it writes carried out.

What tests/warp_emulator.py hands to kernels are functions in the place of intrinsics; here the intrinsics themselves are tested,
so that an offset in the text of an instruction is too. Layouts: PTX ISA 8, `ldmatrix`, "Matrix fragments for mma.m16n8k16" and
"Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import kernels
from tests.group_emulator import WarpGroups
from tests.warp_emulator import LANES, Warp

_KINDS = {"bf16": "bfloat16", "f16": "float16"}


class _Builder:
    """Of llvmlite's IRBuilder what these modules use, on numbers."""

    def __init__(self, warp: Warp) -> None:
        self._warp = warp
        self._groups = WarpGroups(warp)
        self._barriers: dict[tuple[int, int], threading.Barrier] = {}
        self._lock = threading.Lock()

    def xor(self, value: Any, constant: Any) -> np.uint32:
        return np.uint32(int(value) ^ int(constant.constant))

    def lshr(self, value: Any, constant: Any) -> int:
        return int(value) >> int(constant.constant)

    def zext(self, value: Any, kind: Any) -> int:
        return int(value)

    def or_(self, value: Any, constant: Any) -> int:
        return int(value) | int(constant.constant)

    def add(self, value: Any, constant: Any) -> int:
        return int(value) + int(constant.constant)

    def extract_value(self, values: Any, index: int) -> Any:
        return values[index]

    def call(self, asm: Any, args: Any, attrs: Any = ()) -> Any:
        text = asm.asm
        operation = text.split(".")[0]
        if operation in ("ldmatrix", "mma", "bar", "wgmma"):
            assert "convergent" in attrs, f"{text}: a copy of it in each arm of a branch would run with half a warp"
        if operation != "mma":
            assert "~{memory}" in asm.constraint, text
            assert asm.side_effect, text
        if operation == "wgmma":
            return self._groups.multiply(text, asm.constraint, args)
        return getattr(self, f"_{operation}")(text, args)

    def _ldmatrix(self, text: str, args: Any) -> tuple[np.uint32, ...]:
        assert text.startswith("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4")
        rows = self._warp.combine(int(args[0]) + _offset(text), lambda lane: list(range(LANES)), lambda values: values)
        banks = [{row // 16 % 8 for row in rows[8 * i : 8 * i + 8]} for i in range(4)]
        assert all(len(of_matrix) == 8 for of_matrix in banks), "rows of a matrix meet in a bank"
        group, quad = divmod(int(self._warp.lane()), 4)
        return tuple(self._warp.read16(rows[8 * i + group])[quad] for i in range(4))

    def _mma(self, text: str, args: Any) -> tuple[np.float32, ...]:
        kind = re.match(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(\w+)\.\1\.f32", text)
        assert kind is not None
        return self._warp.mma(_KINDS[kind[1]], tuple(args[6:]), *args[:6])

    def _st(self, text: str, args: Any) -> None:
        """Lanes that store eight bytes each do so by halves of a warp."""
        address, (_, *values) = int(args[0]) + _offset(text), args
        lanes = self._warp.combine(address, lambda lane: list(range(LANES)), lambda values: values)
        for first in range(0, LANES, LANES // len(values)):
            words = {other // 4 % 32 + i for other in lanes[first:][: LANES // len(values)] for i in range(len(values))}
            assert len(words) == LANES, "lanes that store together meet in a bank"
        for i, value in enumerate(values):
            self._warp.write4(address + 4 * i, value)

    def _fence(self, text: str, args: Any) -> None:
        assert text == "fence.proxy.async.shared::cta;"
        self._warp.show_copies()

    def _cp(self, text: str, args: Any) -> None:
        assert text.startswith("cp.async.wait_group ")
        self._warp.wait(int(re.findall(r"\d+", text)[0]))

    def _bar(self, text: str, args: Any) -> None:
        name, threads = (int(number) for number in re.findall(r"\d+", text))
        assert name > 0, "that is cuda.syncthreads()"
        with self._lock:
            key = (int(self._warp.cluster_rank()), name)
            barrier = self._barriers.setdefault(key, threading.Barrier(threads, timeout=60))
        barrier.wait()


def _offset(text: str) -> int:
    return int(re.search(r"\+(\d+)\]", text)[1])  # type: ignore[index]


def fragments_module(warp: Warp, name: str) -> ModuleType:
    """kernels/<name>.py, read anew, its intrinsics as functions of numbers."""
    builder = _Builder(warp)
    number = lambda value: np.float32(getattr(value, "constant", value))  # noqa: E731
    context = SimpleNamespace(make_tuple=lambda builder, kind, values: tuple(map(number, values)), get_dummy_value=lambda: None)

    def intrinsic(typed: Any) -> Any:
        def call(*args: Any) -> Any:
            sig, codegen = typed(None, *args)
            return codegen(context, builder, sig, args)

        return call

    cuda, extending, typing = (ModuleType(name) for name in ("numba.cuda", "numba.cuda.extending", "numba.cuda.typing"))
    cuda.cgutils = SimpleNamespace(unpack_tuple=lambda builder, values, count: list(values[:count]))  # type: ignore[attr-defined]
    cuda.types = SimpleNamespace(UniTuple=lambda kind, count: None, float32=None, uint32=None, int64=None, void=None)  # type: ignore[attr-defined]
    extending.intrinsic = intrinsic  # type: ignore[attr-defined]
    typing.signature = lambda result, *arguments: SimpleNamespace(return_type=result, args=arguments)  # type: ignore[attr-defined]
    path = Path(kernels.__path__[0]) / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"emulated_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {known.__name__: known for known in (cuda, extending, typing)}):
        spec.loader.exec_module(module)
    return module
