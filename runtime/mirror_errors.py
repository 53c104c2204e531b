"""What goes wrong between two copies of one value. Each text names the buffer, what was asked, and what to call instead."""

from __future__ import annotations

from runtime.errors import DeviceError


class MirrorError(DeviceError):
    """A mirrored buffer, ring or outcome that was used against its rules."""


class StaleReadError(MirrorError):
    """A read of the copy that is not the true one: buffer, both versions, the writer of the newer side, the remedy."""


class StaleValueError(MirrorError, TypeError):
    """A host value that is only an upper bound was used where an exact one is needed."""


class TwoWritersError(MirrorError):
    """A write that would make both copies of a buffer new, so that neither could be the true one."""


class PinnedBufferError(MirrorError):
    """A buffer that a captured graph holds was to be moved, resized or freed."""


class MovedBufferError(MirrorError):
    """A graph was to be launched that was captured for other arrays than the table has now."""


class StagingBusyError(MirrorError):
    """A staging block was asked for while the device may still read what it holds."""


class OutcomeError(MirrorError):
    """A result was read twice, before it was submitted, or would be overwritten before it was collected."""
