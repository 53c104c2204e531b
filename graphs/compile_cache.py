"""Where code that Numba compiled for a CPU is kept between processes.

The folder is named after the digest of every source that is compiled: Numba's own cache looks at one file only, and would keep a
kernel whose device functions (kernels/lang.py) have changed. The first process of a set of sources removes what was compiled of
others and not used for a month (graphs/cache_age.py).
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import platform
import tempfile
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba.core import config as numba_config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

from graphs.cache_age import mark_used, prune
from graphs.imported_sources import changed_imports, source_files

logger = logging.getLogger(__name__)


@cache
def _digest() -> str:
    """Of the sources as this process found them: where they change meanwhile, what it compiles from the old ones must not be kept
    under the name of the new ones. Where one did so too early for that, the digest is nobody else's."""
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__} {platform.machine()}".encode())
    for source in source_files():
        digest.update(Path(source).read_bytes())
    if changed_imports():
        digest.update(os.urandom(16))
    return digest.hexdigest()[:16]


def kernel_cache_dir() -> Path:
    """Where compiled kernels are kept: one folder for each set of sources, Numba version and processor."""
    base = os.environ.get("DRAFTGRAPH_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "draftgraph")
    return Path(os.path.expanduser(base)) / "kernels" / _digest()


_lost: list[str] = []  # why nothing more is kept, once something could not be


def give_up(error: OSError) -> None:
    """What was compiled could not be kept, as on a full disk: from now on nothing is, with a warning."""
    _lost.append(error.strerror or str(error))
    logger.warning("kernel cache %s: %s: kernels are compiled anew by every process", kernel_cache_dir(), _lost[-1])


def _prove_writable(folder: Path) -> None:
    """Raises OSError."""
    if str(folder).startswith("~"):  # expanduser knows no such user
        raise FileNotFoundError(errno.ENOENT, "that is nobody's home folder here", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _links_to(folder: Path) -> Path | None:
    """A folder of this process with links to all that is kept in one that cannot be written; None: nothing is, or no place is.

    Numba takes no folder that it cannot write to, though what is there may be all that it needs.
    """
    kept = [path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc")]
    if not any(path.suffix == ".nbi" and os.access(path, os.R_OK) for path in kept):
        return None
    try:
        own = tempfile.TemporaryDirectory(prefix="draftgraph-kernels-")
        atexit.register(own.cleanup)
        for path in kept:
            link = Path(own.name) / path.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)  # with rights of its own: Numba asks whether it may write there
            link.symlink_to(path.absolute())
    except OSError:
        return None
    return Path(own.name)


@cache
def _writable() -> Path | None:
    folder = kernel_cache_dir()
    try:
        _prove_writable(folder)
    except OSError as error:
        if (links := _links_to(folder)) is not None:
            text = "kernel cache %s cannot be written (%s): what it holds is used, and nothing is added"
            logger.info(text, folder, error.strerror)
            return links
        logger.warning("kernel cache %s cannot be written (%s): kernels are compiled anew by every process", folder, error.strerror)
        return None
    if mark_used(folder):
        prune(folder.parent, folder.name)
    return folder


def writable_cache_dir() -> Path | None:
    """`kernel_cache_dir()`; where it is filled but cannot be written, a folder of this process that stands for it; else None, with
    a warning: Numba would then cache beside the sources, under names that do not change with the device functions that a kernel
    calls. None too where sources changed between the import of the first and that of the last, or before the first call."""
    kernel_cache_dir()  # what is imported is looked at once its digest is taken
    if not _lost and (changed := changed_imports()):
        _lost.append(f"{', '.join(changed)} changed while this process started")
        logger.warning("kernel cache: %s: what it compiles of the old sources and the new ones is not kept", _lost[-1])
    return None if _lost else _writable()


def forgiving(dispatcher: Any) -> Any:
    """`dispatcher`, which compiles anew, with a warning, what was kept for it and cannot be read: Numba would raise whatever its
    pickles make of a file that lost its end with the machine's power. A function's other types are forgotten with it."""
    kept = dispatcher._cache
    load = kept.load_overload

    def load_overload(signature: Any, target_context: Any) -> Any:
        try:
            return load(signature, target_context)
        except Exception as error:  # a damaged pickle raises nearly anything
            text = "kernel cache %s: what was kept of %s cannot be read (%r): it is compiled anew"
            logger.warning(text, kept.cache_path, dispatcher.py_func.__name__, error)
            kept.flush()
            return None

    kept.load_overload = load_overload
    return dispatcher


class _Place(_CacheLocator):
    """Where a function's code is kept below Numba's folder: by its package's name and its file's text.

    Numba's own locators go by the path of the file: every copy of the sources, and every environment that they are installed in
    anew, would compile everything anew.
    """

    def __init__(self, line: int, file: str) -> None:
        self._line, self._file = line, Path(file)
        # Numba asks for the path again when it has compiled: its global is another then.
        self._path = os.path.join(numba_config.CACHE_DIR, self._file.parent.name)

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> _Place:
        place = cls(py_func.__code__.co_firstlineno, py_file)
        os.makedirs(place.get_cache_path(), exist_ok=True)
        return place

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return _text_digest(self._file)

    def get_disambiguator(self) -> str:
        return str(self._line)


@cache
def _text_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class _KeptForm(CompileResultCacheImpl):
    _locator_classes = (_Place,)


class _KeptCode(FunctionCache):
    _impl_class = _KeptForm


def kept(dispatcher: Any) -> Any:
    """`dispatcher`, whose code is looked for on disk, and kept there, in the folder of the `cache_at` around this call."""
    dispatcher._cache = _KeptCode(dispatcher.py_func)
    return forgiving(dispatcher)


class cache_at:  # noqa: N801 - reads as a statement
    """Numba takes the folder of its cache from a global at decoration time: set it for that long only."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._before = numba_config.CACHE_DIR
        if self._folder is not None:
            numba_config.CACHE_DIR = str(self._folder)

    def __exit__(self, *exc: object) -> None:
        numba_config.CACHE_DIR = self._before
