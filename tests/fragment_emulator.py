"""kernels/lang_wide.py and lang_group.py in emulated warps: their own code is run, and the instructions that it writes carried out.

What tests/warp_emulator.py hands to kernels are functions in the place of intrinsics; here the intrinsics themselves are tested,
so that an offset in the text of an instruction is too.
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


class _Builder:
    """Of llvmlite's IRBuilder what these modules use, on numbers."""

    def __init__(self, warp: Warp) -> None:
        self._warp = warp
        self._groups = WarpGroups(warp)
        self._barriers: dict[tuple[int, int], threading.Barrier] = {}
        self._lock = threading.Lock()

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
        if operation in ("bar", "wgmma"):
            assert "convergent" in attrs, f"{text}: a copy of it in each arm of a branch would run with half a warp"
        assert "~{memory}" in asm.constraint, text
        assert asm.side_effect, text
        if operation == "wgmma":
            return self._groups.run(text, asm.constraint, args)
        return getattr(self, f"_{operation}")(text, args)

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
