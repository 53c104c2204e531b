"""Whether the sources on disk are still those that this process imports.

Code is kept under the digest of the sources, which is taken of their files. Where one was changed before that, or before its
import, as by an update of the checkout under a process that starts, what is compiled of one text would be kept as that of another,
for good.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import graphs
import kernels
from kernels.source_stamps import Stamp, stamps


def source_files() -> list[str]:
    """Paths of all that is compiled: what kernels/__init__.py and graphs/__init__.py look at before any of it is imported."""
    return list(_now())


def changed_imports() -> list[str]:
    """Names of those that this process has imported and that are not what they were before the first of them was.

    What becomes of a file once its module was looked at does not matter: call this after the digest was taken, and before what was
    imported since is compiled.
    """
    _look_at_imports(len(sys.modules))
    return sorted(os.path.basename(path) for path, changed in _looked_at.items() if changed)


@cache
def _look_at_imports(modules: int) -> None:
    before, now = _before(), _now()
    loaded = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    for path in (loaded & (before.keys() | now.keys())) - _looked_at.keys():
        _looked_at[path] = before.get(path) != now.get(path)


_looked_at: dict[str, bool] = {}


def _before() -> dict[str, Stamp]:
    return kernels.BEFORE_IMPORT | graphs.BEFORE_IMPORT


def _now() -> dict[str, Stamp]:
    return stamps(kernels.__path__[0]) | stamps(graphs.__path__[0], "cpu_")
