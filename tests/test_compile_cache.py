"""Where compiled kernels are kept: a folder of the sources that this process runs."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from graphs import compile_cache
from graphs.compile_cache import kernel_cache_dir, writable_cache_dir
from graphs.cpu_executor import CpuExecutor
from kernels.lang import block_sum, cuda, f32, kernel


def test_sources_that_change_while_a_process_runs_do_not_rename_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles what it imported: under the name of newer sources another process would load old code as new."""
    before = kernel_cache_dir()

    def gone(self: Path) -> NoReturn:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_bytes", gone)
    assert kernel_cache_dir() == before


def test_the_place_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    assert kernel_cache_dir().parent == tmp_path / "kernels"


def test_the_home_of_nobody_is_no_folder_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", "~nobody-of-that-name/cache")
    monkeypatch.chdir(tmp_path)
    compile_cache._writable.cache_clear()
    try:
        assert writable_cache_dir() is None
    finally:
        compile_cache._writable.cache_clear()
    assert "cannot be written (that is nobody's home folder here)" in caplog.text
    assert not list(tmp_path.iterdir())


@kernel(writes=("out",))
def _sums(out, x):
    scratch = cuda.shared.array(1, f32)
    out[0] = block_sum(x[0], scratch)


def test_a_full_disk_costs_a_warning_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Numba has compiled when it fails to keep the code: a device function first, then the kernel that calls it."""

    def full(*args: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    monkeypatch.setattr(compile_cache, "_lost", [])
    monkeypatch.setattr("numba.core.caching.Cache.save_overload", full)
    compile_cache._writable.cache_clear()
    try:
        out = np.zeros(1, np.float32)
        executor = CpuExecutor()
        for _ in range(2):
            executor.bind(_sums, 1, 1, (out, np.full(1, 7, np.float32)))()
    finally:
        compile_cache._writable.cache_clear()
    assert out.tolist() == [7]
    (record,) = caplog.records
    assert "No space left on device: kernels are compiled anew by every process" in record.getMessage()


def test_a_filled_folder_that_cannot_be_written_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the cache of an image or of another user is: nothing is compiled that is in it, and nothing in it changes."""

    def hits() -> int:
        executor, out = CpuExecutor(), np.zeros(1, np.float32)
        executor.bind(_sums, 1, 1, (out, np.full(1, 7, np.float32)))()
        assert out.tolist() == [7]
        return sum(executor._compiled[_sums.py_func].stats.cache_hits.values())

    def refuses(folder: Path) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    compile_cache._writable.cache_clear()
    folders: list[Path] = []
    try:
        assert hits() == 0
        folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
        for folder in folders:
            folder.chmod(0o555)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        monkeypatch.setattr(compile_cache, "_prove_writable", refuses)
        compile_cache._writable.cache_clear()
        caplog.set_level("INFO")
        assert hits() == 1
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        assert "Read-only file system): what it holds is used, and nothing is added" in caplog.text
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
        links = compile_cache._writable()
        assert links is not None
        # Where it may not write, Numba would keep what it compiles beside the sources. Root may write anywhere.
        assert all(path.stat().st_mode & 0o200 for path in links.rglob("*") if path.is_dir())
    finally:
        for folder in folders:
            folder.chmod(0o755)
        compile_cache._writable.cache_clear()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", [b"", b"0.1\n", b"not a pickle at all", None], ids=["empty", "cut early", "other bytes", "cut"])
def test_kept_code_that_lost_its_end_is_compiled_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, damage: bytes | None
) -> None:
    """Of a kernel or of what it calls; and only once: what is compiled then is kept again."""

    def run() -> list[float]:
        out = np.zeros(1, np.float32)
        CpuExecutor().bind(_sums, 1, 1, (out, np.full(1, 7, np.float32)))()
        return out.tolist()

    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    compile_cache._writable.cache_clear()
    try:
        assert run() == [7]
        kept = [path for path in tmp_path.rglob(f"*{suffix}") if "_sums" in path.name]
        assert kept
        for path in kept:
            path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
        assert run() == [7]
        assert [record for record in caplog.records if "_sums cannot be read" in record.getMessage()]
        caplog.clear()
        assert run() == [7]
        assert not caplog.records
    finally:
        compile_cache._writable.cache_clear()


SOURCE = """
from kernels.lang import block_sum, cuda, f32, kernel

@kernel(writes=("out",))
def doubled(out, x):
    scratch = cuda.shared.array(1, f32)
    out[0] = block_sum(x[0], scratch) * f32(2.0)
"""


def test_copies_of_the_sources_share_what_is_compiled_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a checkout beside another and an environment that is made anew are; what says something else is compiled by itself."""

    def run(place: str, source: str) -> tuple[float, int]:
        """What the kernel yields, and how many of its functions were compiled before."""
        path = tmp_path / place / "package" / "module.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("package.module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        executor, out = CpuExecutor(), np.zeros(1, np.float32)
        executor.bind(module.doubled, 1, 1, (out, np.full(1, 7, np.float32)))()
        return float(out[0]), sum(sum(each.stats.cache_hits.values()) for each in executor._compiled.values())

    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path / "cache"))
    compile_cache._writable.cache_clear()
    try:
        assert run("here", SOURCE) == (14, 0)
        assert run("there", SOURCE) == (14, 1)
        assert run("elsewhere", SOURCE.replace("f32(2.0)", "f32(3.0)")) == (21, 1)  # block_sum is the same
    finally:
        compile_cache._writable.cache_clear()


ROOT = Path(__file__).resolve().parents[1]

RUN = """
import numpy as np
from graphs.cpu_executor import CpuExecutor
from pathlib import Path

def run(kernel):
    out, executor = np.zeros(1, np.float32), CpuExecutor()
    executor.bind(kernel, 1, 1, (out, np.full(1, 7, np.float32)))()
    return float(out[0]), sum(sum(each.stats.cache_hits.values()) for each in executor._compiled.values())
"""

FACTOR = """
from kernels.lang import device_function, f32

@device_function
def times(value):
    return value * f32(2.0)
"""

TIMES = """
from kernels.factor import times
from kernels.lang import kernel

@kernel(writes=("out",))
def multiplied(out, x):
    out[0] = times(x[0])
"""

OTHER = """
from kernels.lang import kernel

@kernel(writes=("out",))
def copied(out, x):
    out[0] = x[0]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources with kernels of its own: one whose device function stands in another file, and one without."""
    root = tmp_path / "tree"
    for package in ("kernels", "graphs"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (("factor", FACTOR), ("multiplied", TIMES), ("copied", OTHER)):
        (root / "kernels" / f"{name}.py").write_text(text)
    return root


def process(tree: Path, code: str, cwd: Path | None = None) -> tuple[str, str]:
    """stdout and stderr of `code`, in a process that keeps what it compiles beside `tree`."""
    environment = {**os.environ, "DRAFTGRAPH_CACHE": str(tree.parent / "cache"), "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", RUN + code]
    done = subprocess.run(command, cwd=cwd or tree, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


ONCE = "from kernels.multiplied import multiplied; print(*run(multiplied))"
PLACE = "from graphs.compile_cache import kernel_cache_dir; print(kernel_cache_dir().name)"


@pytest.mark.parametrize("what", ["empty", "a file of that name", "no place to write"])
def test_what_is_compiled_is_kept_wherever_a_process_runs(tree: Path, what: str) -> None:
    """A path that is relative by the time that Numba has compiled would lie there."""
    cwd = Path("/proc") if what == "no place to write" else tree.parent / "cwd"
    if what != "no place to write":
        cwd.mkdir()
    if what == "a file of that name":
        (cwd / "kernels").write_text("")
    assert process(tree, ONCE, cwd) == ("14.0 0", "")
    assert process(tree, ONCE, cwd) == ("14.0 1", "")
    if what == "empty":
        assert not list(cwd.iterdir())


def test_a_source_that_changes_after_its_import_is_not_kept_as_what_it_became(tree: Path) -> None:
    change = "path = Path('kernels/factor.py'); path.write_text(path.read_text().replace('2.0', '3.0'))"
    code = f"from kernels.multiplied import multiplied; {change}; print(*run(multiplied)); print(*run(multiplied)); {PLACE}"
    said, complaint = process(tree, code)
    *results, place = said.splitlines()
    assert results == ["14.0 0", "14.0 0"]
    assert complaint.count("factor.py changed while this process started") == 1
    assert process(tree, ONCE) == ("21.0 0", "")
    assert process(tree, ONCE) == ("21.0 1", "")
    # What is measured of the code that ran lies there as well (runtime/models/choose_ops.py): no later process may find it.
    later = {process(tree, f"from kernels.multiplied import multiplied; {PLACE}")[0] for _ in range(2)}
    assert len(later) == 1
    assert place not in later


def test_a_source_that_changes_before_a_late_import_is_not_kept_as_what_it_was(tree: Path) -> None:
    """The first kernel that is compiled fixes the digest."""
    change = "path = Path('kernels/factor.py'); path.write_text(path.read_text().replace('2.0', '3.0'))"
    said, complaint = process(tree, f"from kernels.copied import copied; print(*run(copied)); {change}; {ONCE}")
    assert said == "7.0 0\n21.0 0"
    assert complaint.count("factor.py changed while this process started") == 1
    (tree / "kernels" / "factor.py").write_text(FACTOR)
    assert process(tree, ONCE) == ("14.0 0", "")


def test_a_source_that_changes_once_all_is_imported_costs_nothing(tree: Path) -> None:
    change = "Path('kernels/factor.py').write_text('')"
    code = f"from kernels.multiplied import multiplied; print(*run(multiplied)); {change}; import wave; print(*run(multiplied))"
    assert process(tree, code) == ("14.0 0\n14.0 1", "")
