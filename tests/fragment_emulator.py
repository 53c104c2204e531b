"""kernels/lang_wide.py, lang_group.py and lang_head.py in emulated warps: their own code is run, and what it writes carried out.

What tests/warp_emulator.py hands to kernels are functions in the place of intrinsics; here the intrinsics themselves are tested,
so that an offset in the text of an instruction is too.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import kernels
from tests.group_emulator import WarpGroups
from tests.turns import Meeting
from tests.warp_emulator import Warp

_STORE = re.compile(
    r"\{ \.reg \.pred p; \.reg \.s32 c; add\.s32 c, \$3, (\d+); setp\.lt\.s32 p, c, \$4; "
    r"@p st\.global\.v2\.f32 \[\$0\+(\d+)\], \{\$1, \$2\}; \}"
)


class _Builder:
    """Of llvmlite's IRBuilder what these modules use, on numbers."""

    def __init__(self, warp: Warp) -> None:
        self._warp = warp
        self._groups = WarpGroups(warp)
        self._barriers: dict[tuple[int, int], Meeting] = {}

    def lshr(self, value: Any, constant: Any) -> int:
        return int(value) >> int(constant.constant)

    def zext(self, value: Any, kind: Any) -> int:
        return int(value)

    def or_(self, value: Any, constant: Any) -> int:
        return int(value) | int(constant.constant)

    def add(self, value: Any, constant: Any) -> int:
        return int(value) + int(constant.constant)

    def and_(self, one: bool, other: bool) -> bool:
        return one and other

    def fcmp_ordered(self, operation: str, one: Any, other: Any) -> bool:
        assert operation == ">"
        return bool(one > other)

    def icmp_signed(self, operation: str, one: Any, other: Any) -> bool:
        assert operation == "<"
        return int(one) < int(other)

    def select(self, condition: bool, one: Any, other: Any) -> Any:
        return one if condition else other

    def ptrtoint(self, pointer: Any, kind: Any) -> Any:
        return pointer

    def extract_value(self, values: Any, index: int) -> Any:
        return values[index]

    def call(self, asm: Any, args: Any, attrs: Any = ()) -> Any:
        text = asm.asm
        operation = text.split(".")[0]
        if operation in ("bar", "wgmma"):
            assert "convergent" in attrs, f"{text}: a copy of it in each arm of a branch would run with half a warp"
        assert "~{memory}" in asm.constraint, text
        assert asm.side_effect, text
        if operation == "wgmma":
            return self._groups.run(text, asm.constraint, args)
        if operation == "{ ":
            return self._store(text, args)
        return getattr(self, f"_{operation}")(text, args)

    def _store(self, text: str, args: Any) -> None:
        """Two neighbouring columns, where they are below the end."""
        found = _STORE.fullmatch(text)
        assert found is not None, text
        (array, offset), first, second, column, end = args
        offset += int(found[2]) // 4
        assert array.dtype == np.float32
        assert offset % 2 == 0, "not aligned"
        if int(column) + int(found[1]) < int(end):
            array.reshape(-1)[offset : offset + 2] = first, second

    def _fence(self, text: str, args: Any) -> None:
        assert text == "fence.proxy.async.shared::cta;"
        self._warp.show_copies()

    def _cp(self, text: str, args: Any) -> None:
        assert text.startswith("cp.async.wait_group ")
        self._warp.wait(int(re.findall(r"\d+", text)[0]))

    def _bar(self, text: str, args: Any) -> None:
        name, threads = (int(number) for number in re.findall(r"\d+", text))
        assert name > 0, "that is cuda.syncthreads()"
        self._barriers.setdefault((int(self._warp.cluster_rank()), name), self._warp.meeting(threads)).wait()


def fragments_module(warp: Warp, name: str) -> ModuleType:
    """kernels/<name>.py, read anew, its intrinsics as functions of numbers."""
    builder = _Builder(warp)

    def number(value: Any) -> np.int32 | np.float32:
        value = getattr(value, "constant", value)
        return np.int32(value) if isinstance(value, (int, np.integer)) else np.float32(value)

    context = SimpleNamespace(make_tuple=lambda builder, kind, values: tuple(map(number, values)), get_dummy_value=lambda: None)

    def intrinsic(typed: Any) -> Any:
        def call(*args: Any) -> Any:
            sig, codegen = typed(None, *args)
            return codegen(context, builder, sig, args)

        return call

    cuda, extending, typing = (ModuleType(name) for name in ("numba.cuda", "numba.cuda.extending", "numba.cuda.typing"))
    cuda.cgutils = SimpleNamespace(unpack_tuple=lambda builder, values, count: list(values[:count]))  # type: ignore[attr-defined]
    names = ("float32", "int32", "uint32", "int64", "uint64", "void")
    kinds = {"UniTuple": lambda kind, count: None, "Tuple": lambda kinds: None} | dict.fromkeys(names)
    cuda.types = SimpleNamespace(**kinds)  # type: ignore[attr-defined]
    extending.intrinsic = intrinsic  # type: ignore[attr-defined]
    typing.signature = lambda result, *arguments: SimpleNamespace(return_type=result, args=arguments)  # type: ignore[attr-defined]
    mma = ModuleType("kernels.lang_mma")
    mma._address = lambda context, builder, kind, array, offset: (array, int(offset))  # type: ignore[attr-defined]
    path = Path(kernels.__path__[0]) / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"emulated_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {known.__name__: known for known in (cuda, extending, typing, mma)}):
        spec.loader.exec_module(module)
    return module
