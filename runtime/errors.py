"""The errors a user can cause. The CLI prints their text and exits with code 2; a traceback means a defect of ours."""

from __future__ import annotations

from collections.abc import Iterable


class DraftgraphError(Exception):
    """Base of every error that speaks to the user: `name = value`, the limit, what to do."""


class ConfigError(DraftgraphError):
    """A configuration file or `--set` override that cannot be used."""


class SourceError(DraftgraphError):
    """A model source that cannot be found, fetched, verified or unpacked."""


class CheckpointError(DraftgraphError):
    """A checkpoint that is truncated, corrupt, of an unknown architecture, or whose tensors do not fit it."""

    @classmethod
    def listing(cls, headline: str, problems: Iterable[str]) -> CheckpointError:
        """Everything that is wrong at once, a line each."""
        return cls("\n".join([f"{headline}:", *(f"  - {problem}" for problem in problems)]))


class DamagedFileError(CheckpointError):
    """A file of a checkpoint that is truncated, corrupt or unreadable. What to do about it is the same for all of them: whoever has
    fetched it, this program or somebody else, takes it for whole as long as it is there."""

    def __init__(self, file: object, problem: object) -> None:
        super().__init__(f"{file}: {problem}; remove it and fetch it again")


class PromptError(DraftgraphError):
    """A prompt, prompt file or chat template that cannot become token ids."""


class SamplingError(DraftgraphError):
    """A request parameter out of its range, or one that contradicts another."""


class DeviceError(DraftgraphError):
    """A device that is missing, too old, out of memory, or used against its rules."""


class CapacityError(DraftgraphError):
    """A request that cannot fit the configured KV blocks, slots or token budget."""
