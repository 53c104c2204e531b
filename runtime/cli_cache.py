"""`draftgraph cache`: what is kept of kernels on disk, by set of sources, and the end of what nobody uses any more."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from runtime.cli_session import exits
from runtime.errors import ConfigError


def cache(
    prune: Annotated[bool, typer.Option("--prune", help="Removes what was not used for --days; never these sources'.")] = False,
    days: Annotated[float, typer.Option(min=0, metavar="N", help="0 with --prune: all but these sources'.")] = 30,
) -> None:
    """Prints how much compiled kernels take on disk, and how much of it nobody has used for a month.

    That is removed by the first process of new sources, or with --prune now, with the choices that were measured of them; what is
    missing is compiled and measured again.
    """
    with exits():
        from graphs import cache_age
        from graphs.compile_cache import kernel_cache_dir

        own = kernel_cache_dir()
        if own.parent.exists() and not own.parent.is_dir():
            raise ConfigError(f"kernel cache {own.parent}: is no folder; remove it, or name another place with DRAFTGRAPH_CACHE")
        limit = time.time() - days * cache_age.DAY_SECONDS
        folders = cache_age.cache_folders(own.parent)
        sizes = {folder.path: folder.nbytes for folder in folders}
        old = [folder.path for folder in folders if folder.used <= limit and folder.path != own]
        removed = cache_age.prune(own.parent, own.name, days) if prune else []
        print(f"{own.parent}: {_said(len(folders), sum(sizes.values()))}, of these sources {_megabytes(sizes.get(own, 0))}")
        print(f"not used for {days:g} days: {_said(len(old), sum(sizes[path] for path in old))}", end="")
        print(f"; removed {_said(len(removed), sum(sizes.get(path, 0) for path in removed))}" if prune else "", flush=True)


def _said(count: int, nbytes: int) -> str:
    return f"{count} {'set' if count == 1 else 'sets'} of sources, {_megabytes(nbytes)}"


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"
