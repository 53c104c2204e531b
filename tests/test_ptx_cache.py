"""PTX is compiled anew when anything that it is made of has changed, and else never."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.ptx_cache import UNUSED_SECONDS, PtxCache, closure, imports, toolchain

KERNELS = ROOT / "kernels"
PTX = {"float32": {"ptx": ".target sm_90"}}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, text in {
        "__init__": "",
        "lang": "import math\n",
        "far": "from kernels.lang import kernel\n",
        "form": "def f():\n    import kernels.far\n",
        "one": "from kernels import form\nfrom runtime.errors import ConfigError\n",
        "two": "from kernels.lang import kernel\n",
    }.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_what_a_kernel_is_made_of(sources: Path) -> None:
    assert closure(sources, "one") == {"__init__", "one", "form", "far", "lang"}
    assert closure(sources, "two") == {"__init__", "two", "lang"}
    (sources / "lang.py").write_text("import kernels.two\n")
    imports.cache_clear()
    assert closure(sources, "two") == {"__init__", "two", "lang"}


@pytest.mark.parametrize("changed", ["one", "form", "far", "lang", "__init__"])
def test_a_change_anywhere_below_is_another_key(sources: Path, changed: str) -> None:
    cache = PtxCache(sources.parent / "ptx", sources)
    before = cache.key("one", "k", "types"), cache.key("two", "k", "types")
    assert cache.key("one", "k", "other types") != before[0] != cache.key("one", "l", "types")
    (sources / f"{changed}.py").write_text((sources / f"{changed}.py").read_text() + "# more\n")
    imports.cache_clear()
    assert cache.key("one", "k", "types") != before[0]
    assert (cache.key("two", "k", "types") != before[1]) == (changed in ("lang", "__init__"))


def test_the_modules_of_a_kernel_are_those_that_python_loads() -> None:
    for module in ("attend_step", "wide_gate_up"):
        code = f"import sys, kernels.{module}; print(*[name[8:] for name in sys.modules if name.startswith('kernels.')])"
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) <= closure(KERNELS, module)


def test_no_kernel_imports_by_a_name_that_is_no_source() -> None:
    """What cannot be read off the sources would not be in a key."""
    for path in KERNELS.glob("*.py"):
        assert "importlib" not in path.read_text(), path
        assert all((KERNELS / f"{name}.py").exists() for name in imports(path)), path


def test_what_is_kept_comes_back_and_what_failed_is_not_kept(tmp_path: Path) -> None:
    cache = PtxCache(tmp_path / "ptx", KERNELS)
    assert cache.get("a") is None
    cache.put("a", PTX)
    assert cache.get("a") == PTX
    cache.put("b", {"float32": {"ptx": "x"}, "float16": {"error": "no such type"}})
    assert cache.get("b") is None
    (tmp_path / "ptx" / "a.json").write_text("{")
    assert cache.get("a") is None


def test_what_nobody_uses_goes(tmp_path: Path) -> None:
    cache = PtxCache(tmp_path, KERNELS)
    for key in ("old", "used"):
        cache.put(key, PTX)
        os.utime(tmp_path / f"{key}.json", (time.time() - 2 * UNUSED_SECONDS,) * 2)
    assert cache.get("used") == PTX
    cache.put("new", PTX)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.json", "used.json"]


def test_a_folder_that_takes_nothing_keeps_nothing() -> None:
    cache = PtxCache(Path("/dev/null/ptx"), KERNELS)
    cache.put("a", PTX)
    assert cache.get("a") is None


def test_the_tools_are_named() -> None:
    for name in ("numba=", "numba-cuda=", "llvmlite="):
        assert f"'{name}" in toolchain()
